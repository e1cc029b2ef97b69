# Gives this host back if the rental still holds it; a lease of somebody else stays.
set -eu
[ -d "$GF_LEASE_DIR" ] || exit 0
exec 9>>"$GF_LEASE_DIR/.lock"
flock -w 30 9
holder="$GF_LEASE_DIR/holder"
if [ -e "$holder" ] && [ "$(sed -n 's/^key=//p' "$holder")" = "$GF_LEASE_KEY" ]; then
	rm -f "$holder"
fi
