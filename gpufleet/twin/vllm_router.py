"""Stand-in for ``vllm-router`` 0.1.17: prefill/decode disaggregation over NIXL, or plain spreading over workers.

Messages and statuses were taken from the real program, run in front of these stand-ins.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/gpufleet/", 1)[0])

from gpufleet.twin import vllm_router_flags
from gpufleet.twin.httpd import HttpServer
from gpufleet.twin.nodefacts import NodeFacts, bind_address, die, log, node_facts, require
from gpufleet.twin.vllm_router_app import RouterApp, Worker, Workers

_SHORTEST_WAIT = 0.2
_SHORTEST_INTERVAL = 1.0
"""Real seconds: however fast simulated time runs, waiting must not cost the machine's CPU."""


def main(argv: list[str]) -> int:
    """Wait until every worker is healthy, then listen."""
    require("vllm-router")
    args = vllm_router_flags.build_parser().parse_args(argv)
    facts = node_facts()
    workers = Workers(_workers(args), args.health_failure_threshold, args.health_success_threshold)
    log(f"INFO vllm_router_rs::server: Starting router on {args.host}:{args.port} | policy: {args.policy}")
    _await_workers(workers, args, facts)
    app = RouterApp(workers, request_seconds=args.request_timeout_secs, disaggregated=args.vllm_pd_disaggregation)
    _serve_metrics(app, args, facts)
    try:
        server = HttpServer(bind_address(args.host, facts), args.port, app.handler())
    except OSError:
        die("RuntimeError: Address already in use (os error 98)")
    threading.Thread(target=_check_forever, args=(workers, args, facts), daemon=True).start()
    log(f"INFO vllm_router_rs::server: Router ready | workers: {[worker.url for worker in workers.all]}")
    server.serve()
    return 0


def _workers(args: argparse.Namespace) -> list[Worker]:
    if not args.vllm_pd_disaggregation:
        return [Worker(url, "regular") for url in args.worker_urls]
    if not args.prefill:
        die("ValueError: PD disaggregation mode requires --prefill")
    if not args.decode:
        die("ValueError: PD disaggregation mode requires --decode")
    decode = [Worker(url, "decode") for url in args.decode]
    return decode + [Worker(words[0], "prefill", _bootstrap_port(words)) for words in args.prefill]


def _bootstrap_port(words: list[str]) -> int | None:
    if len(words) == 1 or words[1].lower() == "none":
        return None
    try:
        return int(words[1])
    except ValueError:
        die(f"ValueError: Invalid bootstrap port: {words[1]}. Must be a number or 'none'")


def _await_workers(workers: Workers, args: argparse.Namespace, facts: NodeFacts) -> None:
    """Nothing listens before all are healthy; the flags' seconds are simulated ones."""
    deadline = time.monotonic() + args.worker_startup_timeout_secs / facts.time_scale
    pause = max(_SHORTEST_WAIT, args.worker_startup_check_interval / facts.time_scale)
    while unhealthy := [w.url for w in workers.all if not w.probe(args.health_check_endpoint, 5)]:
        if time.monotonic() >= deadline:
            quoted = ", ".join(f'"{url}"' for url in unhealthy)
            die(f"RuntimeError: Timeout {args.worker_startup_timeout_secs}s waiting for hosts [{quoted}] to become "
                "healthy. Please set --worker-startup-timeout-secs to a larger value")  # fmt: skip
        time.sleep(pause)


def _check_forever(workers: Workers, args: argparse.Namespace, facts: NodeFacts) -> None:
    pause = max(_SHORTEST_INTERVAL, args.health_check_interval_secs / facts.time_scale)
    while True:
        time.sleep(pause)
        workers.check(args.health_check_endpoint, args.health_check_timeout_secs)


def _serve_metrics(app: RouterApp, args: argparse.Namespace, facts: NodeFacts) -> None:
    """Not on a loopback host: every simulated node shares that one."""
    if args.prometheus_host in ("127.0.0.1", "localhost"):
        return
    try:
        server = HttpServer(bind_address(args.prometheus_host, facts), args.prometheus_port, app.metrics_handler())
    except OSError:
        log("WARN vllm_router_rs::metrics: failed to install the Prometheus exporter: address already in use")
        return
    threading.Thread(target=server.serve, daemon=True).start()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
