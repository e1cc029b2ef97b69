#!/bin/sh
# Keeps one program running where there is neither docker nor an init system. Needs POSIX sh, setsid and flock.
#
#   supervise.sh start DIR DIGEST   run what DIR holds; what runs with this digest already is left alone
#   supervise.sh stop DIR           end it, the whole session, TERM first; it stays ended
#   supervise.sh state DIR          running RESTARTS | restarting RESTARTS EXIT_CODE | stopped
#   supervise.sh revive DIR         start it again after the container was stopped, unless it was stopped by "stop"
#
# DIR holds argv (shell-quoted words) and env (shell text, 0600). Written here: log (log.1 and log.2 are older), digest,
# state, stopped; and locks, which say by themselves who is alive: alive (the supervisor), lock (a start or a stop).
#
# This file must be a copy of its own beside argv and env: a shell reads the file that it runs bit by bit.
set -u
umask 077
self=$0
dir=$2
mark="GPUFLEET_PROCESS=$dir/."
steady_seconds=10
longest_pause=600 # tenths of a second
grace=100         # tenths of a second from TERM to KILL
log_bytes=${SUPERVISE_LOG_BYTES:-100000000}

# shellcheck disable=SC2119 # become_program takes no arguments
main() {
  case $1 in
  start) start "$3" ;;
  stop) stop ;;
  state) state ;;
  revive) revive ;;
  supervise) supervise ;;
  program) become_program ;;
  rotate) keep_rotating ;;
  esac
}

# --- asked from outside ---------------------------------------------------------------------------------------

start() {
  lock
  if alive && [ "$(cat "$dir/digest" 2>/dev/null)" = "$1" ]; then return; fi
  end_supervisor
  printf '%s\n' "$1" >"$dir/digest"
  launch
}

revive() {
  lock
  if alive || [ -e "$dir/stopped" ] || [ ! -e "$dir/digest" ]; then return; fi
  end_supervisor
  launch
}

stop() {
  lock
  : >"$dir/stopped"
  end_supervisor
}

state() {
  said=stopped
  if alive; then { read -r said <"$dir/state"; } 2>/dev/null; fi
  printf '%s\n' "$said"
}

lock() {
  exec 8>>"$dir/lock"
  flock -w 60 8 || die "another start or stop of $dir has been going on for a minute"
}

# Whether a supervisor holds its lock. Shared, so that two who ask do not see each other.
alive() {
  [ -e "$dir/alive" ] && ! flock -s -n "$dir/alive" true
}

launch() {
  rm -f "$dir/stopped" "$dir/state"
  shift_logs
  : >"$dir/log"
  setsid sh "$self" supervise "$dir" </dev/null >>"$dir/log" 2>&1 8>&- &
  tries=0
  until alive && [ -e "$dir/state" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || die "the supervisor of $dir does not start: $(tail -n 1 "$dir/log")"
    sleep 0.1
  done
}

# A supervisor that was killed has left its program: that is found by its mark.
end_supervisor() {
  if alive; then
    read -r supervisor <"$dir/supervisor" && kill -TERM "$supervisor"
    flock -s -w $((grace / 10 + 10)) "$dir/alive" true || kill -KILL "$supervisor"
  fi
  end_marked
}

die() {
  printf '%s\n' "$1" >&2
  exit 1
}

# --- the supervisor -------------------------------------------------------------------------------------------

supervise() {
  exec 9>>"$dir/alive"
  flock -w 5 9 || die "another supervisor of $dir is there"
  printf '%s\n' $$ >"$dir/supervisor"
  stopping=
  child=
  sleeper=
  restarts=0
  pause=1
  trap '' HUP
  trap on_stop TERM INT
  setsid sh "$self" rotate "$dir" </dev/null >/dev/null 2>&1 9>&- &
  rotator=$!
  while :; do
    run_once
    [ -z "$stopping" ] || break
    say "ended with exit code $code; starting it again"
    tell "restarting $restarts $code"
    rest
    [ -z "$stopping" ] || break
    restarts=$((restarts + 1))
  done
  kill -s TERM -- "-$rotator" 2>/dev/null
  say "stopped"
}

run_once() {
  began=$(seconds)
  setsid env "$mark" sh "$self" program "$dir" </dev/null >>"$dir/log" 2>&1 9>&- &
  child=$!
  tell "running $restarts"
  wait "$child" # a stop ends this wait, and the program before it
  code=$?
  # Nothing of it outlives its first process.
  kill -s KILL -- "-$child" 2>/dev/null
  end_marked
  child=
  if [ $(($(seconds) - began)) -ge $steady_seconds ]; then pause=1; fi
}

# A pause that doubles with every restart, and ends at once when all is to end.
rest() {
  sleep "$((pause / 10)).$((pause % 10))" 9>&- &
  sleeper=$!
  wait "$sleeper"
  kill "$sleeper" 2>/dev/null
  pause=$((pause * 2))
  if [ "$pause" -gt "$longest_pause" ]; then pause=$longest_pause; fi
}

on_stop() {
  stopping=1
  [ -n "$child" ] || return 0
  kill -s TERM -- "-$child" 2>/dev/null
  waited=0
  while [ "$waited" -lt "$grace" ] && lives "$child"; do
    waited=$((waited + 1))
    sleep 0.1 9>&-
  done
  kill -s KILL -- "-$child" 2>/dev/null
}

# Whether a session has a process that is more than an entry which nobody has collected yet.
lives() {
  kill -s 0 -- "-$1" 2>/dev/null || return 1
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    # shellcheck disable=SC2086 # fields after the name: state parent group session
    set -- "$1" ${line##*) }
    if [ "$5" = "$1" ] && [ "$2" != Z ]; then return 0; fi
  done
  return 1
}

tell() {
  printf '%s\n' "$1" >"$dir/state.new"
  mv -f "$dir/state.new" "$dir/state"
}

say() {
  printf '== supervise: %s\n' "$1"
}

seconds() {
  read -r uptime _ </proc/uptime
  printf '%s' "${uptime%.*}"
}

# What left its session is killed too: everything that has the mark in the environment it was started with.
end_marked() {
  for environ in /proc/[0-9]*/environ; do
    if grep -aqF "$mark" "$environ" 2>/dev/null; then
      pid=${environ#/proc/}
      kill -KILL "${pid%/environ}" 2>/dev/null
    fi
  done
  return 0
}

# --- the program ----------------------------------------------------------------------------------------------

# shellcheck disable=SC2120 # its arguments are those that it sets itself
become_program() {
  # RDMA and CUDA pin memory; what the container does not allow cannot be raised from inside.
  # shellcheck disable=SC3045 # dash, bash and busybox have it
  ulimit -l unlimited 2>/dev/null || ulimit -l "$(ulimit -H -l)" 2>/dev/null || :
  # shellcheck source=/dev/null
  . "$dir/env"
  eval "set -- $(cat "$dir/argv")"
  cd / || exit 1
  exec "$@"
}

# --- its log --------------------------------------------------------------------------------------------------

keep_rotating() {
  while alive; do
    if [ "$(wc -c <"$dir/log")" -gt "$log_bytes" ]; then
      # Writers append, so a file cut under their hands goes on at its start. A line written meanwhile may be lost.
      shift_logs
      : >"$dir/log"
    fi
    sleep "${SUPERVISE_LOG_SECONDS:-30}"
  done
}

shift_logs() {
  [ ! -e "$dir/log.1" ] || mv -f "$dir/log.1" "$dir/log.2"
  [ ! -e "$dir/log" ] || cp "$dir/log" "$dir/log.1"
}

main "$@"
