# A node that does nothing: one process with a child that ignores the request to end.
trap 'exit 0' TERM
(trap '' TERM; while :; do sleep 3600; done) &
while :; do sleep 3600 & wait $!; done
