#!/bin/sh
# Starts four decode nodes, vLLM's prefill and the KV gate on this machine's GPU, and waits until all are healthy.
# Usage: up.sh FOLDER     (logs, process ids, the model and the gate's program go there)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/log"
work=$(cd "$1" && pwd)
nodes=4
max_seq=1024
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 PYTHONUNBUFFERED=1 UCX_TLS=all
export TILERT_PD_SENDERS=1 TILERT_PD_SHARDS=1 TILERT_PD_PROBE_ADDR=127.0.0.1
export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1 VLLM_NIXL_SIDE_CHANNEL_PORT=5600

start() { # NAME COMMAND...: in a session of its own, so that all of it can be ended
    name=$1
    shift
    setsid "$@" >"$work/log/$name.log" 2>&1 </dev/null &
    echo $! >>"$work/pids"
}

wait_for() { # NAME URL SECONDS
    left=$3
    until curl -fs --noproxy '*' --max-time 3 -o /dev/null "$2"; do
        left=$((left - 2))
        [ "$left" -gt 0 ] || { echo "$1 is not healthy after $3 s:"; tail -n 20 "$work/log/$1.log"; exit 1; }
        sleep 2
    done
    echo "$1 is healthy"
}

: >"$work/pids"
[ -f "$work/model/config.json" ] || python3 "$here/model.py" "$work/model"
PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}" python3 -c '
import pathlib, sys
from gpufleet.gate.bundle import bundle
pathlib.Path(sys.argv[1]).write_bytes(bundle())' "$work/gate.pyz"

number=0
while [ $number -lt $nodes ]; do
    start "decode-$number" python3 "$here/decode_probe.py" $((5556 + 100 * number)) $((5557 + 100 * number)) $max_seq
    number=$((number + 1))
done
tilert='{"kv_connector":"TileRTConnector","kv_connector_module_path":"tilert.pd_vllm.prefill_connector",
"kv_role":"kv_producer","kv_connector_extra_config":{"tilert_ctrl_port":5556,"tilert_model":"glm5",
"tilert_max_seq_len":'$max_seq',"tilert_transport":"nixl"}}'
both='{"kv_connector":"MultiConnector","kv_role":"kv_producer","kv_connector_extra_config":{"connectors":[
{"kv_connector":"NixlConnector","kv_role":"kv_producer"},'$tilert']}}'
start prefill python3 -m vllm.entrypoints.cli.main serve "$work/model" --load-format dummy \
    --served-model-name glm5 --host 127.0.0.1 --port 8000 --tensor-parallel-size 1 --max-model-len $max_seq \
    --enforce-eager --trust-remote-code --return-tokens-as-token-ids --kv-cache-dtype fp8_ds_mla \
    --no-enable-prefix-caching --gpu-memory-utilization 0.25 --scheduling-policy priority \
    --speculative-config '{"method":"mtp","num_speculative_tokens":1}' --kv-transfer-config "$both"
start gate python3 "$work/gate.pyz" --listen 127.0.0.1:8100 --upstream http://127.0.0.1:8000 \
    --state "$work/gate.busy" --priority -1000
wait_for prefill http://127.0.0.1:8000/health 540
wait_for gate http://127.0.0.1:8100/gate/health 60
number=0
while [ $number -lt $nodes ]; do
    wait_for "decode-$number" "http://127.0.0.1:$((5557 + 100 * number))/health" 60
    number=$((number + 1))
done
