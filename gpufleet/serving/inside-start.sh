# The command of a rental that is itself a container. It brings up an SSH server that takes the fleet's key, whatever the
# image has, and stays as the container's first process, where it collects what other programs leave behind.
# Two lines stand before this text: key='ssh-ed25519 ...' and work='/var/lib/gpufleet'.
# shellcheck shell=sh disable=SC2154
set -u
umask 077
own=$work/sshd
home=${HOME:-/root}
port=${GF_SSHD_PORT:-22}
mkdir -p "$own" "$home/.ssh"

# A login does not see the image's environment. Only what says where programs, libraries and GPUs are is kept: providers
# put API keys among the rest.
names='PATH|LD_LIBRARY_PATH|LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|(CONDA|CUDA|CUDNN|NVIDIA|NCCL|TORCH|UCX|VLLM)_[A-Z0-9_]+'
sh -c 'export -p' | grep -E "^export ($names)=('[^']*'|\"[^\"\$\`]*\")\$" | grep -viE '^export [^=]*(KEY|TOKEN|SECRET|PASS)' >"$work/image.env"

allow() { # $1: file
  touch "$1"
  chmod 600 "$1"
  grep -qxF "$key" "$1" || printf '%s\n' "$key" >>"$1"
}
allow "$own/authorized_keys"
allow "$home/.ssh/authorized_keys"

# 0A is LISTEN.
listening() {
  grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$port") [0-9A-F]+:0000 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

server() {
  for sshd in /usr/sbin/sshd /usr/local/sbin/sshd "$(command -v sshd)"; do
    [ ! -x "$sshd" ] || return 0
  done
  return 1
}

install() {
  if command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends openssh-server
  elif command -v apk >/dev/null; then
    apk add --no-cache openssh-server openssh-keygen
  elif command -v dnf >/dev/null; then
    dnf install -y -q openssh-server
  else
    echo "no SSH server, and no apt-get, apk or dnf to install one"
  fi
}

# What ran when the container stopped runs again.
for one in "$work"/run/*/supervise.sh; do
  [ ! -r "$one" ] || sh "$one" revive "${one%/*}"
done

trap 'kill "$child" 2>/dev/null; exit 0' TERM INT
child=
if listening; then
  [ $$ -eq 1 ] || exit 0
  while :; do
    sleep 3600 &
    child=$!
    wait "$child"
  done
fi
until server; do
  install
  server || sleep 10
done
[ -s "$own/host_key" ] || ssh-keygen -q -t ed25519 -N '' -f "$own/host_key"
cat >"$own/sshd_config" <<END
Port $port
HostKey $own/host_key
AuthorizedKeysFile $own/authorized_keys .ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
MaxStartups 100
Subsystem sftp internal-sftp
END
mkdir -p /run/sshd
chmod 755 /run/sshd
while :; do
  "$sshd" -D -e -f "$own/sshd_config" &
  child=$!
  wait "$child"
  sleep 1
done
