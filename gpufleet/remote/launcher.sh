# Starts a job on this node, or joins the one that runs, and prints its event log from a byte offset to its end.
# One SSH exec runs this. Standard input: the job's script followed by its environment file, of known sizes.
# Arguments: job directory, digest, bytes of the script, bytes of both, run that was followed before, offset in it.
# Prints "gf-run ID" first, then the log as it grows, then "gf-end"; or one line "gf-error TEXT".
set -u
umask 077
dir=$1 digest=$2 script_bytes=$3 all_bytes=$4 seen=$5 offset=$6

refuse() {
  printf 'gf-error %s\n' "$1"
  exit 1
}

# First line of a file into $value; empty when there is none.
read_line() {
  value=
  { read -r value <"$1"; } 2>/dev/null
}

# End every process of the recorded session, if it is still the one that we started: session ids are used again.
kill_session() {
  read_line "$dir/pid"
  session=${value%% *} mark=${value#* }
  [ -n "$session" ] || return 0
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    pid=${stat#/proc/}
    pid=${pid%/stat}
    # shellcheck disable=SC2086 # fields after the name: state parent group session
    set -- ${line##*) }
    [ "$4" = "$session" ] && grep -qF "GF_RUN=$mark" "/proc/$pid/environ" 2>/dev/null && kill -KILL "$pid" 2>/dev/null
  done
}

# Take the lock that a running job holds; ask it to stop first, then make it.
stop_running() {
  read_line "$dir/pid"
  session=${value%% *} mark=${value#* }
  [ -n "$session" ] && grep -qF "GF_RUN=$mark" "/proc/$session/environ" 2>/dev/null && kill -TERM "$session"
  flock -w 15 9 && return
  kill_session
  flock -w 5 9 || refuse "an earlier run of this job cannot be stopped"
}

start() {
  kill_session # what a killed runner left behind
  head -c "$script_bytes" "$dir/in.$$" >"$dir/script.new" || refuse "cannot write in $dir"
  tail -c +$((script_bytes + 1)) "$dir/in.$$" >"$dir/env" || refuse "cannot write in $dir"
  : >"$dir/events.new"
  mv -f "$dir/script.new" "$dir/script"
  mv -f "$dir/events.new" "$dir/events"
  [ ! -s "$dir/log" ] || mv -f "$dir/log" "$dir/log.1"
  read -r run </proc/sys/kernel/random/uuid
  GF_JOB_DIR=$dir GF_RUN=$run setsid sh "$dir/script" </dev/null >>"$dir/log" 2>&1 8>&- &
  printf '%s %s\n' $! "$run" >"$dir/pid"
  printf '%s\n' "$digest" >"$dir/digest"
  printf '%s\n' "$run" >"$dir/run"
}

mkdir -p "$dir" 2>/dev/null || refuse "cannot make the directory $dir"
cat >"$dir/in.$$" || refuse "cannot write in $dir"
trap 'rm -f "$dir/in.$$"' EXIT
[ "$(wc -c <"$dir/in.$$")" -eq "$all_bytes" ] || refuse "the upload was cut short"

exec 8>"$dir/lock" 9>>"$dir/alive"
flock -w 60 8 || refuse "another client has been starting this job for a minute"
read_line "$dir/run"
run=$value
if [ -z "$seen" ] || [ "$seen" != "$run" ]; then
  offset=0
  # Wait a moment: someone who waits for the end of a run holds this lock for an instant when it comes.
  if flock -w 0.3 9; then
    start
  else
    read_line "$dir/digest"
    if [ "$value" != "$digest" ]; then
      stop_running
      start
    fi
  fi
fi
exec 8>&- 9>&-
rm -f "$dir/in.$$"

printf 'gf-run %s\n' "$run"
flock -s "$dir/alive" true &
watch=$!
tail -c +$((offset + 1)) -s 0.2 -f --pid=$watch "$dir/events"
kill $watch 2>/dev/null
printf '\ngf-end\n'
