#!/bin/sh
# Check gate.pml with spin: the gate as it is must hold, each weakened one must fail. Needs spin and gcc.
# Usage: models/check.sh [VARIANT]     VARIANT: gate NO_TURNS FORGET_WRITERS NO_REVOKE NO_SETTLE; all when left out
set -eu
model=$(cd "$(dirname "$0")" && pwd)/gate.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

errors() {
    if [ "$1" = gate ]; then spin -a "$model"; else spin "-D$1" -a "$model"; fi
    gcc -O2 -w -DSAFETY -DCOLLAPSE -o pan pan.c
    ./pan -m10000 >pan.log
    # A search that was cut short proves nothing.
    if grep -q -e "max search depth too small" -e "out of memory" pan.log; then cat pan.log; exit 1; fi
    sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log
}

for variant in ${1:-gate NO_TURNS FORGET_WRITERS NO_REVOKE NO_SETTLE}; do
    found=$(errors "$variant")
    states=$(sed -n 's/^ *\([0-9e.+]*\) states, stored.*/\1/p' pan.log)
    echo "$variant: $found errors in $states states"
    if [ "$variant" = gate ]; then [ "$found" = 0 ]; else [ "$found" = 1 ]; fi
done
