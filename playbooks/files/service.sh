#!/bin/sh
# One service of a node, whichever way the node runs it: in a docker container, or, where the rental is itself a container
# (GF_RUNTIME=inside), as a supervised process.
#
#   service.sh is NAME DIGEST     succeeds when it runs with this digest
#   service.sh start NAME DIGEST  run GF_RUN_ARGV (shell-quoted words) under this name; what ran under it ends first
#   service.sh stop NAME          end it; it stays ended. One that is not there has ended already
#   service.sh state NAME         running RESTARTS | created | exited CODE | restarting CODE | gone
#   service.sh log NAME LINES     its last lines
#   service.sh names              those that are there, one a line
#
# For docker, GF_RUN_ARGV is its whole command line; inside, the program's, with GF_RUN_ENV (shell text) for its environment.
set -eu

docker_is() {
  is=$(docker inspect --format '{{.State.Running}} {{index .Config.Labels "gpufleet.digest"}}' "$1" 2>/dev/null) || return 1
  [ "$is" = "true $2" ]
}

docker_start() {
  docker rm -f "$1" >/dev/null 2>&1 || true
  eval "set -- $GF_RUN_ARGV"
  "$@"
}

docker_stop() {
  [ "$(docker_state "$1")" = gone ] || docker rm -f "$1"
}

docker_state() {
  said=$(docker inspect --format '{{.State.Status}} {{.RestartCount}} {{.State.ExitCode}}' "$1" 2>/dev/null) || said=
  # shellcheck disable=SC2086 # three words
  set -- $said
  case ${1-gone} in
  running) echo "running $2" ;;
  created | gone) echo "${1-gone}" ;;
  *) echo "$1 $3" ;;
  esac
}

docker_log() {
  docker logs --tail "$2" "$1"
}

docker_names() {
  docker ps --format '{{.Names}}'
}

inside_is() {
  [ "$(cat "$GF_WORK/run/$1/digest" 2>/dev/null)" = "$2" ] || return 1
  case $(inside_state "$1") in running*) ;; *) return 1 ;; esac
}

inside_start() {
  dir=$GF_WORK/run/$1
  mkdir -p "$dir"
  put "$dir/argv" "$GF_RUN_ARGV"
  put "$dir/env" "$GF_RUN_ENV"
  put "$dir/supervise.sh" "$(cat "${0%/*}/supervise.sh")"
  sh "$dir/supervise.sh" start "$dir" "$2"
}

inside_stop() {
  dir=$GF_WORK/run/$1
  [ ! -r "$dir/supervise.sh" ] || sh "$dir/supervise.sh" stop "$dir"
}

# In one step: a supervisor at work reads these files whenever it starts the program again.
put() {
  (umask 077 && printf '%s\n' "$2" >"$1.new")
  mv -f "$1.new" "$1"
}

inside_state() {
  dir=$GF_WORK/run/$1
  said=stopped
  if [ -r "$dir/supervise.sh" ]; then said=$(sh "$dir/supervise.sh" state "$dir"); fi
  # shellcheck disable=SC2086 # three words at most
  set -- $said
  case $1 in
  running) echo "running $2" ;;
  restarting) echo "restarting $3" ;;
  *) echo gone ;;
  esac
}

inside_log() {
  tail -n "$2" "$GF_WORK/run/$1/log"
}

inside_names() {
  for dir in "$GF_WORK"/run/*/; do
    if [ -d "$dir" ]; then basename "$dir"; fi
  done
}

command=$1
shift
"${GF_RUNTIME}_$command" "$@"
