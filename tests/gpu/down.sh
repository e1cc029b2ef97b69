#!/bin/sh
# Ends what up.sh started. Usage: down.sh FOLDER
set -eu
while read -r pid; do kill -TERM -- "-$pid" 2>/dev/null || true; done <"$1/pids"
rm -f "$1/pids"
