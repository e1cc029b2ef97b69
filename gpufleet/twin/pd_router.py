"""Stand-in for ``python -m tilert.pd_vllm.pd_router`` (0.1.6.post3): one vLLM prefill, a list of decode nodes."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/gpufleet/", 1)[0])

from gpufleet.twin.httpd import HttpServer
from gpufleet.twin.nodefacts import bind_address, die, log, node_facts, require, stamp, visible
from gpufleet.twin.pd_app import Context, PdApp
from gpufleet.twin.pd_pool import DecodeNode, Pool
from gpufleet.twin.pd_prefill import Prefill


def build_parser() -> argparse.ArgumentParser:
    """Flags and defaults of the real program; repeating --decode keeps only the last."""
    parser = argparse.ArgumentParser(prog="pd_router.py")
    parser.add_argument("--vllm-url", required=True)
    parser.add_argument("--decode", nargs="+", required=True)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=23333)
    parser.add_argument("--model-path", default="")
    parser.add_argument("--parser", choices=["glm47", "none"], default="glm47")
    parser.add_argument("--model", default="")
    parser.add_argument("--generation-config", choices=["auto", "vllm"], default="auto")
    for name in ("temperature", "top-p", "repetition-penalty"):
        parser.add_argument(f"--default-{name}", type=float)
    parser.add_argument("--default-top-k", type=int)
    parser.add_argument("--queue-timeout", type=float, default=0.0)
    parser.add_argument("--force-include-usage", action="store_true")
    parser.add_argument("--chat-template")
    parser.add_argument("--default-chat-template-kwargs", type=json.loads)
    return parser


def main(argv: list[str]) -> int:
    """Check what the real one checks (neither vLLM nor the decode nodes), serve."""
    require("tilert", "fastapi", "uvicorn", "httpx", "requests", "pydantic")
    args = build_parser().parse_args(argv)
    try:
        nodes = [DecodeNode(spec) for spec in args.decode]
    except ValueError as error:
        die(f"ValueError: {error}")
    _check_model_path(args)
    context = Context(
        pool=Pool(nodes, args.queue_timeout),
        prefill=Prefill(args.vllm_url, tokenizer=bool(args.model_path)),
        tokenizer=bool(args.model_path),
        force_include_usage=args.force_include_usage,
    )
    log(
        f"{stamp()} pd_vllm.router router on :{args.port} -> vllm={args.vllm_url}, "
        f"{len(nodes)} decode node(s), parser={args.parser}"
    )
    try:
        server = HttpServer(bind_address(args.host, node_facts()), args.port, PdApp(context).handler())
    except OSError:
        die(f"ERROR:    [Errno 98] error while attempting to bind on address ('{args.host}', {args.port}): "
            "address already in use")  # fmt: skip
    server.serve()
    return 0


def _check_model_path(args: argparse.Namespace) -> None:
    path = args.model_path
    if path:
        require("transformers")
        if not visible(f"{path}/tokenizer_config.json"):
            die(f"OSError: Can't load tokenizer for '{path}'. Make sure it contains all relevant tokenizer files.")
        if args.generation_config == "auto":
            _check_generation_config(path)
    if args.parser != "none":
        if not path:
            die("--parser requires --model-path (tokenizer)")
        require("vllm")


def _check_generation_config(path: str) -> None:
    file_name = f"{path}/generation_config.json"
    if not visible(file_name):
        return
    with open(file_name, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs start-up time
        config: dict[str, Any] = json.load(file)
    for field, neutral in (("min_p", 0.0), ("repetition_penalty", 1.0)):
        value = config.get(field)
        if value is not None and float(value) != neutral:
            die(f"cannot serve with these sampling defaults:\n{file_name} sets {field}={value}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
