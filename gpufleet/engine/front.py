"""The front door of a fleet: HAProxy, on this machine or on a node, told about the cells and natives that serve."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpufleet.domain.nodes import NodeName
from gpufleet.domain.status import CellStatus, EndpointStatus, Serving
from gpufleet.engine.session import Session
from gpufleet.errors import EndpointFailed
from gpufleet.ledger.records import Rental
from gpufleet.playbook.compile import compile_job
from gpufleet.playbook.job import CompiledJob
from gpufleet.playbook.load import load_shipped
from gpufleet.routing.config import ChannelRule, Probe, RouterConfig, Server
from gpufleet.routing.errors import RouterGone
from gpufleet.routing.files import router_inputs
from gpufleet.routing.haproxy import SOCKET_FILE, check_directory
from gpufleet.routing.runtime import Ask, RuntimeApi, ServerStat
from gpufleet.serving.commands import vllm_router_port
from gpufleet.serving.gate import GATE_HEALTH
from gpufleet.serving.settings import fed_by
from gpufleet.serving.topology import (
    GATE_PORT,
    TILERT_HTTP_PORT,
    VLLM_PREFILL_PORT,
    Cell,
    Topology,
    build_topology,
    cell_name,
)
from gpufleet.spec.model import Fleet
from gpufleet.spec.values import split_listen

NATIVE = "native"
LOCAL = "local"


@dataclass(frozen=True)
class Front:
    """The router of one fleet."""

    session: Session
    ask: Ask | None = None
    """Carries a command to the runtime socket of a router on a node; without it such a router's cells are unknown."""

    @property
    def on_this_machine(self) -> bool:
        return self.session.fleet.router.host == LOCAL

    @property
    def url(self) -> str:
        """Where callers reach the endpoint, as far as this machine can tell."""
        scheme = "https" if self.tls else "http"
        host, port = self.address
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to: a wildcard address is replaced by one that can be reached."""
        host, port = split_listen(self.session.fleet.router.listen)
        if host not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
            return host, port
        rental = self.rental
        return (rental.ssh.host if rental and rental.ssh else "127.0.0.1"), port

    @property
    def tls(self) -> bool:
        """TLS unless the address is loopback or plain HTTP was asked for."""
        router = self.session.fleet.router
        host, _ = split_listen(router.listen)
        return router.tls is not None or not (router.insecure or host == "::1" or host.startswith("127."))

    @property
    def node(self) -> NodeName | None:
        """The node that HAProxy runs on; None for this machine."""
        return None if self.on_this_machine else NodeName.parse(self.session.fleet.router.host)

    @property
    def rental(self) -> Rental | None:
        """The rental that HAProxy runs on; None on this machine, or while there is none."""
        return self.session.rental_of(self.node) if self.node else None

    def config(self, topology: Topology, cells: Iterable[Cell], *, native: bool, directory: str) -> RouterConfig:
        """What HAProxy is told when these cells and the native pool serve."""
        router = self.session.fleet.router
        host, port = split_listen(router.listen)
        return RouterConfig(
            fleet=self.session.fleet.name,
            listen_host=host,
            listen_port=port,
            directory=directory,
            tls=self.tls,
            cells=tuple(_cell_server(cell) for cell in cells),
            native=_native_servers(self.session.fleet, topology) if native else (),
            channels=tuple(
                ChannelRule(name, channel.request_class, channel.priority) for name, channel in router.channels.items()
            ),
            spill_queue=router.spill_queue,
            queue_timeout_s=int(router.queue_timeout.total_seconds()),
            without_max_tokens_native=router.without_max_tokens == "native",
        )

    def open_job(self, config: RouterConfig, workdir: str) -> CompiledJob:
        """The job that brings HAProxy to this configuration."""
        pem = self.pem() if config.tls else ""
        return self._job("router", workdir, router_inputs(config, self._keys()), {"GF_PEM": pem})

    def close_job(self, directory: str, workdir: str) -> CompiledJob:
        """The job that stops HAProxy once its streams have ended."""
        return self._job("router-stop", workdir, {"GF_ROUTER_DIR": directory}, {})

    def check(self) -> None:
        """Everything about the front door that can be known before anything is rented.

        Raises:
            InvalidFleet: a secret is missing or empty, or the certificate cannot be served.
            EndpointFailed: haproxy is missing on this machine, its port is taken, or it cannot keep files where the
                state directory is.
        """
        if self.on_this_machine:
            check_directory(str(self.session.paths.router))
            _check_haproxy()
            if not self._servers:
                _check_port(*split_listen(self.session.fleet.router.listen))
        self._keys()
        if self.tls:
            self.pem()
        weights = self.session.fleet.weights
        for secret in (self.session.fleet.model.hf_token, weights.access_key, weights.secret_key):
            if secret:
                secret.read(self.session.path.parent)

    def status(self) -> EndpointStatus:
        """The endpoint as it is now; ``up`` is what the runtime socket says, or a router on a node about itself."""
        return EndpointStatus(
            url=self.url,
            up=bool(self._servers) if self.on_this_machine else self._answers(),
            tls_fingerprint=self._fingerprint(),
            channels=tuple(self.session.fleet.router.channels),
            waiting=self._waiting(),
        )

    def cells(self) -> tuple[CellStatus, ...]:
        """Every backend server with its load; unknown where the router cannot be asked."""
        by_name = {s.name: s for s in self._servers or () if (s.backend == NATIVE) == (s.name == NATIVE)}
        known = standing_backends(self.session.fleet, self.session.store.rentals(self.session.fleet.name))
        return tuple(_status(name, nodes, by_name.get(name)) for name, nodes in known.items())

    def sick_nodes(self) -> frozenset[NodeName]:
        """Nodes all of whose backends fail their health check now; a prefill node may stand behind several."""
        cells = self.cells()
        healthy = {node for cell in cells if cell.up is not False for node in cell.nodes}
        return frozenset(node for cell in cells for node in cell.nodes) - healthy

    @property
    def runtime(self) -> RuntimeApi | None:
        """HAProxy's runtime socket; None where it cannot be reached from here."""
        ask = self.session.paths.router / SOCKET_FILE if self.on_this_machine else self.ask
        return RuntimeApi(ask) if ask is not None else None

    @cached_property
    def _servers(self) -> list[ServerStat] | None:
        """None: no router that answers, or none that can be asked from here."""
        try:
            return self.runtime.servers() if self.runtime else None
        except RouterGone:
            return None

    def _waiting(self) -> int | None:
        """Requests that wait for any cell."""
        try:
            return self.runtime.queued() if self.runtime and self._servers else None
        except RouterGone:
            return None

    def _keys(self) -> dict[str, str]:
        base = self.session.path.parent
        return {name: channel.key.read(base) for name, channel in self.session.fleet.router.channels.items()}

    def pem(self) -> str:
        """The certificate and key to serve: the user's, or one made here and made anew before it ends."""
        from gpufleet.routing.tls import ensure_self_signed

        return self._users_pem() or ensure_self_signed(self.session.paths.certificate, self.address[0])

    def certificate(self) -> str | None:
        """The one certificate that callers are to accept; None where plain HTTP is spoken, or before the first `up`."""
        if not self.tls:
            return None
        from gpufleet.routing.tls import certificate_only, read_pem

        pem = self._users_pem() or read_pem(self.session.paths.certificate)
        return certificate_only(pem) if pem else None

    def _users_pem(self) -> str | None:
        from gpufleet.routing.tls import load_user_certificate

        tls = self.session.fleet.router.tls
        if tls is None or tls.certificate is None or tls.key is None:
            return None
        base = self.session.path.parent
        return load_user_certificate(tls.certificate.read(base), tls.key.read(base))

    def _fingerprint(self) -> str | None:
        certificate = self.certificate()
        if certificate is None:
            return None
        from gpufleet.routing.tls import fingerprint

        return fingerprint(certificate)

    def _answers(self) -> bool:
        """Whether the endpoint itself says that something serves."""
        if self.rental is None:
            return False
        from gpufleet.routing.health import serves

        return serves(*self.address, tls=self.tls, certificate=self.certificate())

    def _job(self, playbook: str, workdir: str, values: dict[str, str], secrets: dict[str, str]) -> CompiledJob:
        common = {"GF_WORK": workdir, "GF_FLEET": self.session.fleet.name, "GF_NODE": self.session.fleet.router.host}
        return compile_job(load_shipped(playbook), job_name=playbook, values={**common, **values}, secrets=secrets)


def _check_haproxy() -> None:
    """Debian keeps it in /usr/sbin, which is not on every user's PATH."""
    if shutil.which("haproxy") is None and shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin") is None:
        raise EndpointFailed("haproxy is not installed on this machine", hint="sudo apt-get install haproxy")


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise EndpointFailed(
            f"router.listen {host}:{port} cannot be used: {error.strerror}",
            hint="stop what listens there, or choose another port in the fleet file",
        ) from None


def seen_serving(rental: Rental, *, sick: bool) -> Serving:
    """What a node does for callers, given whether its backend's health check fails now."""
    return Serving.SICK if sick and rental.serving is Serving.READY else rental.serving


def standing_backends(fleet: Fleet, rentals: Iterable[Rental]) -> dict[str, tuple[NodeName, ...]]:
    """Backends by name with the nodes behind each: cells as they were last opened, else as the file has them."""
    by_node = {rental.node: rental for rental in rentals if not rental.duplicate}
    topology = build_topology(fleet, {node: rental.private_ip or "" for node, rental in by_node.items()})
    planned = {cell.decode: cell.prefill for cell in topology.cells}
    last = {node: prefill for node, rental in by_node.items() if (prefill := fed_by(rental.settings)) in by_node}
    cells = {cell_name(decode): (decode, prefill) for decode, prefill in {**planned, **last}.items() if prefill}
    return {**cells, **({NATIVE: topology.native} if topology.native else {})}


def local_workdir(session: Session) -> Path:
    """Where jobs on this machine keep their files."""
    return session.paths.root / "work"


def _cell_server(cell: Cell) -> Server:
    gate = (Probe(cell.prefill_ip, GATE_PORT, GATE_HEALTH),) if cell.gated else ()
    probes = (
        Probe(cell.prefill_ip, cell.port),
        Probe(cell.decode_ip, TILERT_HTTP_PORT),
        Probe(cell.prefill_ip, VLLM_PREFILL_PORT),
    )
    return Server(cell.name, cell.prefill_ip, cell.port, (*probes, *gate))


def _native_servers(fleet: Fleet, topology: Topology) -> tuple[Server, ...]:
    host = topology.native_router
    return (Server(NATIVE, topology.addresses[host], vllm_router_port(fleet, topology)),) if host else ()


def _status(name: str, nodes: tuple[NodeName, ...], server: ServerStat | None) -> CellStatus:
    if server is None:
        return CellStatus(name, nodes, None, None, None, None)
    return CellStatus(name, nodes, server.up, server.active, None, server.total)
