#!/bin/sh
# The whole life of a fleet on the mock provider, in about a minute: up, two answers, status, down, bill.
# Usage: make demo   (or: sh examples/demo.sh, with gpufleet on PATH)
set -eu
cd "$(dirname "$0")/.."

GPUFLEET_FILE=examples/quickstart.yaml
GPUFLEET_STATE=$PWD/.demo
GPUFLEET_CHAT_KEY=$(head -c 24 /dev/urandom | base64 | tr '+/' '-_')
GPUFLEET_BATCH_KEY=$(head -c 24 /dev/urandom | base64 | tr '+/' '-_')
export GPUFLEET_FILE GPUFLEET_STATE GPUFLEET_CHAT_KEY GPUFLEET_BATCH_KEY

# step WORD...: show the command as one would type it, and run it.
step() {
    printf '\n$ gpufleet'
    for word in "$@"; do
        case $word in
            *" "*) printf ' "%s"' "$word" ;;
            *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    gpufleet "$@"
}

# Whatever happens, nothing stays rented.
leave() {
    code=$?
    trap - EXIT INT TERM
    if [ "$code" != 0 ]; then
        echo "demo: failed with exit code $code; removing the fleet" >&2
        gpufleet down --yes >&2 || true
    fi
    exit "$code"
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A demo that was killed may have left a fleet behind.
[ ! -d "$GPUFLEET_STATE" ] || gpufleet down --yes >/dev/null 2>&1 || true
rm -rf "$GPUFLEET_STATE"

step validate
step plan
step up --yes
step ask --channel chat "Explain prefill and decode in one sentence."
step ask --channel batch "Count to ten."
step status
step down --yes

# Every process of a mock node carries its root, which lies below the state directory, in its environment; HAProxy
# has the state directory on its command line.
left=$(grep -lsa "TWIN_ROOT=${GPUFLEET_STATE}[/]" /proc/[0-9]*/environ || true)
left="$left $(grep -lsa "${GPUFLEET_STATE}[/]" /proc/[0-9]*/cmdline || true)"
if [ "$left" != " " ]; then
    echo "demo: still running after down: $left" >&2
    exit 1
fi
printf '\ndemo: nothing is left running\n'
