# Runs the steps of one job in order, on the node. The launcher starts it in a session of its own with
# GF_JOB_DIR set, file descriptor 9 holding the lock that says "this job runs", and output going to the job's log.
# Every change is one JSON line in $GF_JOB_DIR/events. Steps are functions step_<n>_<part>, generated below.
# shellcheck disable=SC2154 # gf_job, gf_count, gf_limit and the like come with the generated part
# shellcheck disable=SC2181 # a part of a step runs outside of conditions, see gf_try
set -u
umask 077
PATH=${PATH:-/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/nvidia/bin
export PATH GF_JOB_DIR GF_FILES="$GF_JOB_DIR/files"

# --- what a step may call -------------------------------------------------------------------------------------

# progress PERCENT [TEXT]
progress() {
  case $1 in '' | *[!0-9.]* | *.*.* | .* | *.) return 0 ;; esac
  gf_emit progress "$gf_name" "$1" "${2-}"
}

# note TEXT: shown beside the running step.
note() {
  printf '%s\n' "$1"
  gf_emit progress "$gf_name" '' "$1"
}

# fail TEXT: the step has failed for good; no retry. TEXT is what the user reads.
fail() {
  printf '%s\n' "$1" >"$GF_JOB_DIR/failure"
  printf 'failed: %s\n' "$1" >&2
  exit 1
}

# data KEY VALUE: a fact for the record of this run, reported when the step is done and remembered with it.
data() {
  gf_escape "$2"
  printf '"%s":"%s",' "$1" "$gf_text" >>"$GF_JOB_DIR/data"
}

# fact KEY: prints a value of the fingerprint, nothing when it is unknown. Only in playbooks that gather one.
fact() {
  gf_value=
  { read -r gf_value <"$GF_JOB_DIR/facts/$1"; } 2>/dev/null
  printf '%s\n' "$gf_value"
}

# --- events ---------------------------------------------------------------------------------------------------

# Centiseconds since boot, without starting a process. The leading 1 keeps "08" from being read as octal.
gf_uptime() {
  read -r gf_up _ </proc/uptime
  gf_cs=$((${gf_up%.*} * 100 + 1${gf_up#*.} - 100))
}

# Text as the inside of a JSON string, in gf_text: at most 2,000 bytes, so that one event is one write.
gf_escape() {
  gf_text=$1
  case $gf_text in
  *[\"\\]* | *[[:cntrl:]]*) ;;
  *) [ ${#gf_text} -gt 500 ] || return 0 ;;
  esac
  gf_text=$(printf '%s\n' "$gf_text" | head -c 2000 | LC_ALL=C tr '\t\r' '  ' | LC_ALL=C tr -d '\000-\011\013-\037\177' |
    LC_ALL=C sed 's/[\\"]/\\&/g' | LC_ALL=C awk 'NR > 1 { printf "%s", "\\n" } { printf "%s", $0 }')
}

# gf_emit KIND STEP PERCENT MESSAGE [DATA]
gf_emit() {
  gf_uptime
  gf_now=$((GF_CLOCK + gf_cs))
  gf_escape "$4"
  printf '{"kind":"%s","job":"%s","step":"%s","percent":%s,"message":"%s","at":%d.%02d,"data":{%s}}\n' \
    "$1" "$gf_job" "$2" "${3:-null}" "$gf_text" $((gf_now / 100)) $((gf_now % 100)) "${5-}" >>"$GF_JOB_DIR/events"
}

# The end of the running step's output. A secret that a program printed is blanked.
gf_tail() {
  tail -c 4000 "$GF_JOB_DIR/log" | tr -d '\000' | LC_ALL=C awk -v names="$gf_secrets" '
    BEGIN { count = split(names, name, " ") }
    /^== step / { kept = 0; next }
    {
      for (i = 1; i <= count; i++) {
        secret = ENVIRON[name[i]]
        while (length(secret) > 3 && (at = index($0, secret)))
          $0 = substr($0, 1, at - 1) "***" substr($0, at + length(secret))
      }
      line[kept++] = $0
    }
    END { for (i = (kept > 12 ? kept - 12 : 0); i < kept; i++) print line[i] }' | tail -c 1900
}

# --- one step -------------------------------------------------------------------------------------------------

# Run a part of a step under "set -e"; call it plainly, since a shell ignores -e inside conditions.
gf_try() {
  (
    set -eu
    "$1"
  )
}

gf_skip() {
  printf '%s\n' "$1" >"$GF_JOB_DIR/skip"
  exit 0
}

# In a process of its own, so that a timeout ends all of it. $1: number; $2: finished, when an earlier run did it.
gf_child() {
  gf_step "$1"
  if [ -n "$gf_has_when" ]; then
    gf_try "step_$1_when" >/dev/null 2>&1
    [ $? -ne 0 ] && gf_skip "not needed here"
  fi
  if [ "$2" = finished ]; then
    gf_try "step_$1_verify" >/dev/null 2>&1
    [ $? -eq 0 ] && gf_skip "finished earlier"
  fi
  if [ -n "$gf_has_unless" ]; then
    gf_try "step_$1_unless" >/dev/null 2>&1
    [ $? -eq 0 ] && gf_skip "already so"
  fi
  : >"$GF_JOB_DIR/failure"
  gf_try "step_$1_run"
  gf_rc=$?
  [ $gf_rc -eq 0 ] || exit $gf_rc
  [ -n "$gf_has_verify" ] || exit 0
  gf_try "step_$1_verify"
  gf_rc=$?
  [ $gf_rc -eq 0 ] || printf 'the step ran, but its check does not hold\n' >&2
  exit $gf_rc
}

# Asks for the percentage every 2 s, ever more seldom up to every 10 s, since a step may take hours.
gf_poll() {
  trap - TERM
  gf_last=
  gf_asked=0
  sleep 0.5
  while :; do
    gf_out=$(timeout -k 1 20 sh "$0" measure "$1" 2>/dev/null)
    if [ "$gf_out" != "$gf_last" ]; then
      gf_last=$gf_out
      case $gf_out in
      *' '*) progress "${gf_out%% *}" "${gf_out#* }" ;;
      *) progress "$gf_out" ;;
      esac
    fi
    gf_asked=$((gf_asked + 1))
    if [ $gf_asked -lt 24 ]; then sleep $((2 + gf_asked / 3)); else sleep 10; fi
  done
}

# One attempt; sets gf_rc and gf_spent (centiseconds).
gf_attempt() {
  : >"$GF_JOB_DIR/failure"
  : >"$GF_JOB_DIR/skip"
  : >"$GF_JOB_DIR/data"
  gf_uptime
  gf_began=$gf_cs
  timeout -k 10 "$gf_limit" sh "$0" child "$1" "$2" </dev/null 9>&- &
  gf_child=$!
  gf_poller=
  if [ -n "$gf_has_progress" ]; then
    gf_poll "$1" </dev/null 9>&- &
    gf_poller=$!
  fi
  while :; do
    wait "$gf_child"
    gf_rc=$?
    kill -0 "$gf_child" 2>/dev/null || break
  done
  gf_child=
  if [ -n "$gf_poller" ]; then
    kill "$gf_poller" 2>/dev/null
    wait "$gf_poller" 2>/dev/null
  fi
  gf_uptime
  gf_spent=$((gf_cs - gf_began))
}

# Why the attempt failed, in gf_why.
gf_explain() {
  gf_why=$(cat "$GF_JOB_DIR/failure")
  [ -n "$gf_why" ] && return
  gf_why=$(gf_tail)
  case $gf_rc in
  124 | 137)
    [ "$gf_spent" -lt $((gf_limit * 100)) ] || gf_why="not done after ${gf_limit}s
$gf_why"
    ;;
  esac
}

gf_run_step() {
  gf_step "$1"
  eval "gf_hash=\$gf_hash_$1"
  gf_marker="$GF_JOB_DIR/done/$gf_name"
  gf_was=
  gf_facts=
  { read -r gf_was gf_facts <"$gf_marker"; } 2>/dev/null
  gf_state=new
  if [ "$gf_was" = "$gf_hash" ] && [ -z "$gf_always" ]; then
    gf_state=finished
    if [ -z "$gf_has_verify" ]; then
      gf_emit step-skipped "$gf_name" '' "finished earlier" "$gf_facts"
      return
    fi
  fi
  gf_emit step-started "$gf_name" '' ''
  gf_left=$gf_retries
  while :; do
    printf '== step %s\n' "$gf_name"
    gf_attempt "$1" "$gf_state"
    [ -n "$gf_stopping" ] && gf_end job-failed "$gf_name" "stopped" 143
    [ "$gf_rc" -eq 0 ] && break
    gf_explain
    if [ "$gf_left" -eq 0 ] || [ -s "$GF_JOB_DIR/failure" ]; then
      gf_emit step-failed "$gf_name" '' "$gf_why" "\"exit_code\":\"$gf_rc\",\"log\":\"$GF_JOB_DIR/log\""
      gf_end job-failed "$gf_name" "step $gf_name failed" 1
    fi
    gf_left=$((gf_left - 1))
    gf_state=new
    gf_emit step-retried "$gf_name" '' "$gf_why"
    gf_pause "$gf_retry_wait"
  done
  gf_reason=
  { read -r gf_reason <"$GF_JOB_DIR/skip"; } 2>/dev/null
  if [ -n "$gf_reason" ]; then
    gf_emit step-skipped "$gf_name" '' "$gf_reason" "$gf_facts"
    return
  fi
  gf_facts=
  { read -r gf_facts <"$GF_JOB_DIR/data"; } 2>/dev/null
  gf_facts=${gf_facts%,}
  printf '%s %s\n' "$gf_hash" "$gf_facts" >"$gf_marker"
  gf_emit step-done "$gf_name" '' '' "$gf_facts"
}

# Wait so that a stop is noticed at once.
gf_pause() {
  sleep "$1" 9>&- &
  gf_child=$!
  wait "$gf_child"
  gf_child=
  [ -z "$gf_stopping" ] || gf_end job-failed "$gf_name" "stopped" 143
}

# gf_end KIND STEP MESSAGE EXIT_CODE
gf_end() {
  : >"$GF_JOB_DIR/pid"
  gf_emit "$1" "$2" '' "$3"
  exit "$4"
}

gf_stop() {
  gf_stopping=1
  [ -z "$gf_child" ] || kill -TERM "$gf_child" 2>/dev/null
}

gf_main() {
  gf_child=
  gf_stopping=
  gf_name=
  trap gf_stop TERM INT
  # shellcheck source=/dev/null
  . "$GF_JOB_DIR/env"
  rm -f "$GF_JOB_DIR/env"
  gf_uptime
  GF_CLOCK=$(($(date +%s) * 100 - gf_cs))
  export GF_CLOCK
  printf '%s\n' "$GF_FLEET" >"$GF_JOB_DIR/owner"
  if ! mkdir -p "$GF_WORK" "$GF_JOB_DIR/done" "$GF_FILES" || ! cd "$GF_WORK"; then
    gf_end job-failed '' "cannot use the directory $GF_WORK" 1
  fi
  gf_write_files
  [ -z "$gf_fingerprint" ] || gf_emit fingerprint '' '' '' "$(timeout -k 5 60 sh "$0" fingerprint 9>&-)"
  gf_number=1
  while [ $gf_number -le "$gf_count" ]; do
    gf_run_step $gf_number
    gf_number=$((gf_number + 1))
  done
  gf_end job-done '' '' 0
}

gf_dispatch() {
  case ${1-run} in
  run) gf_main ;;
  child) gf_child "$2" "$3" ;;
  measure) gf_try "step_$2_progress" ;;
  fingerprint) gf_gather ;;
  esac
}
