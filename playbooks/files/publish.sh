#!/bin/sh
# publish.sh NEW DIR: DIR becomes NEW, whole; what stood there stays until NEW does.
set -eu
if [ -e "$2" ]; then
  rm -rf "$2.old"
  mv -T "$2" "$2.old"
fi
mv -T "$1" "$2"
rm -rf "$2.old"
