# Takes this host for one rental: exactly one holder, also between operators who do not know of each other.
# An expired holder is replaced. To take a host over by hand, remove the file that the message names.
set -eu
mkdir -p "$GF_LEASE_DIR"
exec 9>>"$GF_LEASE_DIR/.lock"
if ! flock -w 30 9; then
	echo "the lease of this host is being changed by somebody else; try again" >&2
	exit 75
fi
holder="$GF_LEASE_DIR/holder"
if [ -s "$holder" ]; then
	key=$(sed -n 's/^key=//p' "$holder")
	expires=$(sed -n 's/^expires=//p' "$holder")
	case $expires in '' | *[!0-9]*) expires=0 ;; esac
	if [ "$key" != "$GF_LEASE_KEY" ] && { [ "$expires" -eq 0 ] || [ "$expires" -gt "$(date +%s)" ]; }; then
		echo "this host is leased: $(tr '\n' ' ' <"$holder")(to take it over, remove $holder there)" >&2
		exit 75
	fi
fi
printf '%s\n' "owner=$GF_LEASE_OWNER" "fleet=$GF_LEASE_FLEET" "node=$GF_LEASE_NODE" "key=$GF_LEASE_KEY" \
	"since=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "expires=$GF_LEASE_EXPIRES" >"$holder.new"
mv -f "$holder.new" "$holder"
