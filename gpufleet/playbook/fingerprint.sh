# What this node is, as the data of the first event. An unknown value is left out, never guessed.

gf_fact() {
  [ -n "$2" ] || return 0
  printf '%s\n' "$2" >"$GF_JOB_DIR/facts/$1"
  gf_escape "$2"
  printf '%s"%s":"%s"' "$gf_comma" "$1" "$gf_text"
  gf_comma=,
}

gf_gpu_facts() {
  command -v nvidia-smi >/dev/null || return 0
  gf_gpus=$(timeout 30 nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap \
    --format=csv,noheader,nounits 2>/dev/null) || return 0
  [ -n "$gf_gpus" ] || return 0
  # 8 x NVIDIA B200, 1 x NVIDIA H200
  gf_fact gpus "$(printf '%s\n' "$gf_gpus" | awk -F, '{ n[$1]++ } END { for (i in n) { printf "%s%d x %s", comma, n[i], i; comma = ", " } }')"
  gf_ifs=$IFS
  IFS=,
  # shellcheck disable=SC2086 # split at the commas of the first line
  set -- ${gf_gpus%%"
"*}
  IFS=$gf_ifs
  gf_fact gpu "$1"
  gf_fact vram_mib "${2# }"
  gf_fact driver "${3# }"
  gf_fact compute_cap "${4# }"
}

# Active RDMA ports as UCX_NET_DEVICES wants them: mlx5_0:1,mlx5_1:1
gf_rdma_ports() {
  if command -v ibstat >/dev/null; then
    timeout 20 ibstat 2>/dev/null | awk '
      /^CA / { gsub(/\047/, "", $2); ca = $2 }
      $1 == "Port" { port = $2; sub(/:$/, "", port) }
      $1 == "State:" && $2 == "Active" { printf "%s%s:%s", comma, ca, port; comma = "," }'
    return
  fi
  gf_found=
  for gf_state in /sys/class/infiniband/*/ports/*/state; do
    { read -r gf_text <"$gf_state"; } 2>/dev/null || continue
    case $gf_text in *ACTIVE*) ;; *) continue ;; esac
    gf_text=${gf_state#/sys/class/infiniband/}
    gf_port=${gf_text#*/ports/}
    gf_found="$gf_found${gf_found:+,}${gf_text%%/*}:${gf_port%/state}"
  done
  printf '%s' "$gf_found"
}

# The size is told; what is free changes all the time, so it is kept for steps only, as the fact disk_free_bytes.
gf_disk_facts() {
  # shellcheck disable=SC2046 # two numbers
  set -- $(df -B1 --output=size,avail "$GF_WORK" 2>/dev/null | tail -n 1)
  gf_fact disk_bytes "${1-}"
  [ -z "${2-}" ] || printf '%s\n' "$2" >"$GF_JOB_DIR/facts/disk_free_bytes"
}

# The machine's own address in a private network, for providers that do not tell it. Docker's bridge is not one.
gf_private_ip() {
  # shellcheck disable=SC2046 # words
  for gf_address in $(hostname -I 2>/dev/null); do
    case $gf_address in
    172.1[6-9].0.1 | 172.2[0-9].0.1 | 172.3[01].0.1) ;;
    10.* | 192.168.* | 172.1[6-9].* | 172.2[0-9].* | 172.3[01].* | 100.6[4-9].* | 100.[7-9][0-9].* | 100.1[01][0-9].* | 100.12[0-7].*)
      printf '%s' "$gf_address"
      return
      ;;
    esac
  done
}

gf_os() {
  # shellcheck source=/dev/null
  [ -r /etc/os-release ] && . /etc/os-release && printf '%s' "${PRETTY_NAME-}"
}

gf_gather() {
  rm -rf "$GF_JOB_DIR/facts"
  mkdir -p "$GF_JOB_DIR/facts"
  gf_comma=
  gf_gpu_facts
  gf_fact rdma_ports "$(gf_rdma_ports)"
  gf_fact private_ip "$(gf_private_ip)"
  gf_disk_facts
  gf_fact ram_bytes "$(free -b 2>/dev/null | awk '/^Mem:/ { print $2 }')"
  gf_fact cpus "$(nproc 2>/dev/null)"
  gf_fact kernel "$(uname -r)"
  gf_fact arch "$(uname -m)"
  gf_fact os "$(gf_os)"
  command -v docker >/dev/null && gf_fact docker "$(timeout 20 docker version --format '{{.Server.Version}}' 2>/dev/null)"
}
