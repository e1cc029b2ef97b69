"""Stand-in for ``python -m tilert.pd_vllm.decode_server`` (0.1.6.post3): one request at a time, weights to serve it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/gpufleet/", 1)[0])

from gpufleet.twin import decode_app, decode_engine, wire
from gpufleet.twin.httpd import HttpServer
from gpufleet.twin.kv_receiver import Receiver
from gpufleet.twin.nodefacts import (
    NodeFacts,
    die,
    installed,
    log,
    major,
    no_gpu_in_container,
    node_facts,
    require,
    stamp,
    transport_package,
    visible,
)

BLACKWELL = ("B200", "B300", "GB200", "GB300")
MINIMUM_DRIVER = 580


def build_parser() -> argparse.ArgumentParser:
    """Flags and defaults of the real program; several defaults are traps."""
    parser = argparse.ArgumentParser(prog="decode_server.py")
    parser.add_argument("--engine", choices=["stub", "tilert"], default="stub")
    parser.add_argument("--model", default="glm5")
    parser.add_argument("--max-seq-len", type=int, default=4096)
    parser.add_argument("--ctrl-port", type=int, default=5556)
    parser.add_argument("--http-port", type=int, default=5557)
    parser.add_argument("--model-weights-dir", default="")
    parser.add_argument("--with-mtp", action="store_true")
    parser.add_argument("--num-mtp", type=int, choices=(3,), default=3)
    parser.add_argument("--transport", choices=["mooncake", "nixl"], default="mooncake")
    parser.add_argument("--kv-cache-dtype", default="fp8_ds_mla")
    buffer = (os.environ.get("TILERT_PD_BUFFER_DEVICE") or "cuda").lower()
    parser.add_argument("--pd-buffer-device", choices=["cuda", "cpu"], default=buffer)
    return parser


def main(argv: list[str]) -> int:
    """Check what the real one checks, load, serve."""
    require("tilert", "fastapi", "uvicorn", "pydantic", "requests", "torch")
    args = build_parser().parse_args(argv)
    facts = node_facts()
    layout = _layout_version(args)
    _log(f"profile {args.model} MLA cache dtype = {args.kv_cache_dtype} (layout v{layout})")
    _require_gpu(facts)
    if args.engine == "tilert":
        _load_engine(args, facts)
    receiver = _start_receiver(args, facts, layout)
    engine = decode_engine.make_engine(args.engine, facts, args.max_seq_len, with_mtp=args.with_mtp)
    app = decode_app.DecodeApp(receiver, engine, wire.profile_name(args.model))
    try:
        server = HttpServer(facts.address, args.http_port, app.handler())
    except OSError:
        die("OSError: [Errno 98] Address already in use")
    _log(f"decode server on :{args.http_port} (profile={args.model}, engine={args.engine}, ctrl=:{args.ctrl_port})")
    server.serve()
    return 0


def _layout_version(args: argparse.Namespace) -> int:
    try:
        return wire.layout_version(args.model, args.kv_cache_dtype)
    except (KeyError, ValueError) as error:
        die(f"{type(error).__name__}: {error}")


def _require_gpu(facts: NodeFacts) -> None:
    if no_gpu_in_container() or facts.gpu_count == 0:
        die("RuntimeError: Found no NVIDIA driver on your system.")
    if major(facts.driver) < MINIMUM_DRIVER:
        die("RuntimeError: The NVIDIA driver on your system is too old (found version 12080).")


def _load_engine(args: argparse.Namespace, facts: NodeFacts) -> None:
    _log(f"loading TileRT engine (profile={args.model}, weights={args.model_weights_dir})...")
    if facts.gpu_model not in BLACKWELL:
        die("RuntimeError: CUDA error: no kernel image is available for execution on the device")
    if facts.gpu_count < wire.NUM_RANKS:
        die("RuntimeError: CUDA error: invalid device ordinal")
    _require_weights(args.model_weights_dir)
    time.sleep(facts.load_wait)
    log(
        f"{stamp()} pd_vllm.decode_server TileRT engine ready (cache window {args.max_seq_len}, num_mtp {args.num_mtp})"
    )


def _require_weights(folder: str) -> None:
    """Index, every file it names, chat template and tokenizer, in the order the real one opens them."""
    index = f"{folder}/model.safetensors.index.json"
    if not visible(index):
        die(f"ValueError: Index file {index} not found")
    try:
        files = set(_read_json(index)["weight_map"].values())
    except (ValueError, KeyError, TypeError) as error:
        die(f"{type(error).__name__}: {error} in {index}")
    for path in sorted(files):
        if not visible(f"{folder}/{path}"):
            die(f'FileNotFoundError: No such file or directory: "{folder}/{path}"')
    _require_tokenizer(folder)


def _require_tokenizer(folder: str) -> None:
    require("transformers")
    if not visible(f"{folder}/tokenizer.json") or not visible(f"{folder}/tokenizer_config.json"):
        die(f"OSError: Can't load tokenizer for '{folder}'. Make sure it contains all relevant tokenizer files.")
    transformers = installed("transformers")
    if transformers and major(transformers) < 5:
        die("ValueError: Tokenizer class TokenizersBackend does not exist or is not currently imported.")
    if not visible(f"{folder}/chat_template.jinja"):
        die(f"FileNotFoundError: [Errno 2] No such file or directory: '{folder}/chat_template.jinja'")


def _read_json(path: str) -> Any:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time
        return json.load(file)


def _start_receiver(args: argparse.Namespace, facts: NodeFacts, layout: int) -> Receiver:
    require(transport_package(args.transport))
    try:
        wire.local_ip(facts.address)
        receiver = Receiver(
            facts.address,
            args.ctrl_port,
            max_seq_len=args.max_seq_len,
            layout_version=layout,
            transport=args.transport,
        )
    except OSError as error:
        die(f"{type(error).__name__}: {error}")
    log(f"{stamp()} pd_vllm.receive transport={args.transport} ready, buffer registered")
    log(f"{stamp()} pd_vllm.receive control plane listening on :{args.ctrl_port}")
    return receiver


def _log(line: str) -> None:
    log(f"{stamp()} pd_vllm.decode_server {line}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
