"""The router: where it runs, what it listens on, and where each channel's requests go."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from os.path import normpath

from gpufleet.domain.nodes import Role
from gpufleet.spec.feeding import router_ports
from gpufleet.spec.model import Fleet, RequestClass
from gpufleet.spec.problems import Problem, Severity, did_you_mean
from gpufleet.spec.values import SecretRef, split_listen

NODE_PORTS = frozenset({8000, 8001, 8100, 5556, 5557, 5600, 23333, 29000, 30000, 18765})
"""Ports that the service itself uses on nodes (`gpufleet.serving.topology`; 29000 is vllm-router's Prometheus port)."""


def check_router(fleet: Fleet) -> Iterator[Problem]:
    """The front door and its channels."""
    yield from _host(fleet)
    yield from _tls(fleet)
    yield from _destinations(fleet)
    yield from _same_key(fleet)


def _host(fleet: Fleet) -> Iterator[Problem]:
    router = fleet.router
    if router.host == "local":
        return
    names = [str(node) for node in fleet.nodes()]
    if router.host not in names:
        yield Problem(
            f"router.host: '{router.host}' is not a node of this fleet{did_you_mean(router.host, ['local', *names])}",
            loc=("router", "host"),
            hint="local (this machine), or a node such as " + ", ".join(names[:3]),
        )
        return
    address, port = split_listen(router.listen)
    if port in NODE_PORTS or port in router_ports(fleet):
        yield Problem(
            f"router.listen: port {port} is taken by the service itself on {router.host}",
            loc=("router", "listen"),
            hint="choose another port, e.g. 8443",
        )
    if ipaddress.ip_address(address).is_loopback:
        yield Problem(
            f"router.listen: {router.listen} on {router.host} can be reached from that node only",
            loc=("router", "listen"),
            hint=f"0.0.0.0:{port} listens on every interface",
            severity=Severity.WARNING,
        )


def _tls(fleet: Fleet) -> Iterator[Problem]:
    if fleet.router.tls and fleet.router.insecure:
        yield Problem(
            "router.insecure asks for plain HTTP, and router.tls for a certificate",
            loc=("router", "insecure"),
            hint="remove one of the two",
        )


def _destinations(fleet: Fleet) -> Iterator[Problem]:
    """No channel without somewhere to go."""
    decode, native = bool(fleet.nodes_of(Role.DECODE)), bool(fleet.nodes_of(Role.NATIVE))
    classes = {name: channel.request_class for name, channel in fleet.router.channels.items()}
    for name, wanted in classes.items():
        if wanted is RequestClass.BATCH and not native:
            yield _nowhere(name, "batch, which is served by native nodes, and the fleet has none", "add a native pool")
        if wanted is RequestClass.INTERACTIVE and not decode and not native:
            yield _nowhere(name, "interactive, and the fleet has neither decode nor native nodes", "add a decode pool")
    needs_native = fleet.router.without_max_tokens == "native" and decode and not native
    if needs_native and RequestClass.INTERACTIVE in classes.values():
        yield Problem(
            "requests without max_tokens go to native nodes, and the fleet has none",
            loc=("router", "without_max_tokens"),
            hint="add a native pool, or set without_max_tokens to tilert, which ends such answers at 256 tokens",
        )


def _nowhere(channel: str, why: str, hint: str) -> Problem:
    return Problem(f"router.channels.{channel} is {why}", loc=("router", "channels", channel, "class"), hint=hint)


def _same_key(fleet: Fleet) -> Iterator[Problem]:
    """Callers are told apart by their key alone."""
    first: dict[SecretRef, str] = {}
    for name, channel in fleet.router.channels.items():
        key = SecretRef(channel.key.kind, normpath(channel.key.name))
        if key in first:
            yield Problem(
                f"router.channels.{name} and {first[key]} have the same key, and only the key tells callers apart",
                loc=("router", "channels", name, "key"),
                hint="give each channel a key of its own",
            )
        first.setdefault(key, name)
