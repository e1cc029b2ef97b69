"""haproxy.cfg and its key map, from a `RouterConfig`. Pure. Written for HAProxy 2.6 (Debian 12) and later.

Choices that are not obvious:

- One thread. Servers with ``maxconn 1`` must never get two requests; with several threads HAProxy may exceed a limit
  for a moment. One thread moves far more tokens than a fleet makes.
- ``http-reuse never`` and ``http-server-close``: a connection to a server carries one request, so none is ever sent
  again because a kept connection had died. Opening one costs well under a millisecond inside a private network.
- Retries only when the connection could not be opened: a request that has reached a prefill node is not computed twice.
- Native servers stand as ``backup`` behind the cells, for requests that already wait when the last cell goes down.
  HAProxy hands these on only when some other request ends there, so a heartbeat sends one whenever somebody waits
  beside a free server.
- After a reload the old process serves its streams to their end and the new one counts from zero. A second request that
  a cell may get in that time waits at the cell's pd_router, before its prompt is computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256

from gpufleet.routing.config import Probe, RouterConfig, Server
from gpufleet.routing.errors import CannotRender
from gpufleet.routing.replies import defaults_replies, json_reply
from gpufleet.routing.routes import BUFFER, NATIVE, TILERT, priorities, routes

PROBE_PREFIX = "probe-"
"""Backends that only hold health checks."""

CONFIG_FILE = "haproxy.cfg"
KEYS_FILE = "keys.map"
PEM_FILE = "endpoint.pem"
SOCKET_FILE = "haproxy.sock"
METRICS_SOCKET_FILE = "metrics.sock"
HEARTBEAT_SOCKET_FILE = "beat.sock"
STATE_FILE = "server-state"

_MAX_DIRECTORY = 80
"""HAProxy binds a longer-named socket and renames it; the system's limit is 107 characters."""
_LOG = "%tr %ci channel=%[var(txn.channel)] %b/%s %HM %HP %ST %tsc queue=%Tw/%sq/%bq first=%Tr total=%Ta bytes=%B"
"""Neither headers nor bodies nor query strings, so no key and no prompt."""
_HOST = re.compile(r"[0-9A-Za-z.:-]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PATH = re.compile(r"/[A-Za-z0-9._/@+=,-]+")


def render_keys_map(keys: Mapping[str, str]) -> str:
    """Channel -> key, as the map file that HAProxy reads: ``<sha256 of the key> <channel>`` per line.

    HAProxy hashes the presented key the same way, so no key stands on disk.

    Raises:
        CannotRender: two channels have the same key.
    """
    channels: dict[str, str] = {}
    for channel, key in keys.items():
        digest = sha256(key.encode()).hexdigest()
        if digest in channels:
            raise CannotRender(
                f"channels {channels[digest]} and {channel} have the same key", hint="give each channel its own key"
            )
        channels[digest] = channel
    return "".join(f"{digest} {channel}\n" for digest, channel in sorted(channels.items()))


def render_haproxy(cfg: RouterConfig) -> str:
    """The whole haproxy.cfg.

    Raises:
        CannotRender: a name, an address or the directory cannot stand in the file.
    """
    _check(cfg)
    sections = [
        _global(cfg),
        _defaults(cfg),
        _front(cfg),
        *([_tilert(cfg)] if cfg.cells else []),
        *([_native(cfg)] if cfg.native else []),
        *(_probe_backend(server) for server in (*cfg.cells, *cfg.native)),
        *(_heartbeat(cfg) if cfg.cells and cfg.native else []),
        _metrics(cfg),
    ]
    return "\n\n".join("\n    ".join(section) for section in sections) + "\n"


def check_directory(directory: str) -> None:
    """Whether HAProxy can keep its files there, its sockets among them.

    Raises:
        CannotRender: the path is too long, or holds what the configuration cannot.
    """
    if len(directory) > _MAX_DIRECTORY or not _PATH.fullmatch(directory):
        raise CannotRender(
            f"HAProxy cannot keep its files in {directory!r}",
            hint=f"choose an absolute path of at most {_MAX_DIRECTORY} plain characters (GPUFLEET_STATE sets it)",
        )


def _check(cfg: RouterConfig) -> None:
    check_directory(cfg.directory)
    if not cfg.cells and not cfg.native:
        raise CannotRender("the router has nothing to route to", hint="give the fleet decode or native nodes")
    servers = [*cfg.cells, *cfg.native]
    names = [cfg.fleet, *(c.name for c in cfg.channels), *(s.name for s in servers)]
    for name in names:
        if not _NAME.fullmatch(name):
            raise CannotRender(f"{name!r} is not a name HAProxy can use", hint="use letters, digits, '-', '_' and '.'")
    probes = [probe for server in servers for probe in server.probes]
    for host in (cfg.listen_host, *(s.host for s in servers), *(p.host for p in probes)):
        if not _HOST.fullmatch(host):
            raise CannotRender(f"{host!r} is not an address")
    for probe in probes:
        if not _PATH.fullmatch(probe.path):
            raise CannotRender(f"{probe.path!r} is not the path of a health check")


def _global(cfg: RouterConfig) -> list[str]:
    return [
        f"global # fleet {cfg.fleet}",
        "nbthread 1",
        "maxconn 4000",
        "no strict-limits",
        "noreuseport",
        f"tune.bufsize {BUFFER}",
        "log stdout format raw local0",
        f"stats socket {cfg.directory}/{SOCKET_FILE} mode 600 level admin expose-fd listeners",
        f"server-state-file {cfg.directory}/{STATE_FILE}",
        "ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
        "ssl-default-bind-ciphers ECDHE+AESGCM:ECDHE+CHACHA20",
    ]


def _defaults(cfg: RouterConfig) -> list[str]:
    """Long times where a model computes or streams, short ones where a client or a dead host would hold a slot."""
    return [
        "defaults",
        "mode http",
        "log global",
        f'log-format "{_LOG}"',
        "option http-no-delay",
        "option http-server-close",
        "option abortonclose",
        "option redispatch 1",
        "option dontlognull",
        "http-reuse never",
        "retries 3",
        "retry-on conn-failure",
        "load-server-state-from-file global",
        "timeout connect 5s",
        "timeout check 5s",
        "timeout http-request 30s",
        "timeout http-keep-alive 60s",
        "timeout client 2h",
        "timeout server 2h",
        "timeout tunnel 2h",
        "timeout client-fin 30s",
        f"timeout queue {cfg.queue_timeout_s}s",
        *defaults_replies(cfg.queue_timeout_s),
    ]


def _front(cfg: RouterConfig) -> list[str]:
    tls = f" ssl crt {cfg.directory}/{PEM_FILE} alpn h2,http/1.1" if cfg.tls else ""
    backends = [TILERT] * bool(cfg.cells) + [NATIVE] * bool(cfg.native)
    return [
        "frontend front",
        f"bind {_address(cfg.listen_host, cfg.listen_port)}{tls}",
        *(f"acl serving nbsrv({backend}) gt 0" for backend in backends),
        "acl health path /health",
        'http-request return status 200 content-type application/json string \'{"status":"ok"}\' if health serving',
        f"http-request return status 503 {json_reply('nothing_serves')} if health",
        f"http-request set-var(txn.channel) http_auth_bearer,sha2(256),hex,lower,map_str({cfg.directory}/{KEYS_FILE})",
        f"http-request return status 401 {json_reply('invalid_api_key')} hdr WWW-Authenticate Bearer"
        " unless { var(txn.channel) -m found }",
        "http-request del-header authorization",
        "acl odd_path path -i -m sub .. %2e",
        f"http-request return status 404 {json_reply('not_found')} unless {{ path_beg /v1/ }} !odd_path",
        *priorities(cfg),
        *routes(cfg),
    ]


def _tilert(cfg: RouterConfig) -> list[str]:
    return [
        f"backend {TILERT}",
        "balance leastconn",
        *_response_headers(),
        "option allbackups",
        *(f"{_server(server)} maxconn 1" for server in cfg.cells),
        *(f"{_server(server)} backup maxconn 1000" for server in cfg.native),
    ]


def _native(cfg: RouterConfig) -> list[str]:
    return [f"backend {NATIVE}", "balance leastconn", *_response_headers(), *map(_server, cfg.native)]


def _server(server: Server) -> str:
    return f"server {server.name} {_address(server.host, server.port)} track {PROBE_PREFIX}{server.name}/all"


def _response_headers() -> list[str]:
    return [
        "http-response set-header x-gpufleet-served-by %s",
        "http-response set-header x-gpufleet-queue-ms %Tw",
    ]


def _probe_backend(server: Server) -> list[str]:
    """One check that asks every probe in turn; the servers that callers reach follow its result."""
    probes = server.probes or (Probe(server.host, server.port),)
    return [
        f"backend {PROBE_PREFIX}{server.name}",
        "option httpchk",
        *(line for probe in probes for line in _probe(probe)),
        f"server all {_address(server.host, server.port)} check inter 2s fastinter 500ms fall 3 rise 2",
    ]


def _probe(probe: Probe) -> Iterator[str]:
    yield f"http-check connect addr {_bracketed(probe.host)} port {probe.port}"
    yield f"http-check send meth GET uri {probe.path} ver HTTP/1.1 hdr host {_address(probe.host, probe.port)}"
    yield "http-check expect status 200"


def _heartbeat(cfg: RouterConfig) -> list[list[str]]:
    """A health check of HAProxy by itself, whose request passes through the cells' backend when its queue is stuck."""
    path = f"unix@{cfg.directory}/{HEARTBEAT_SOCKET_FILE}"
    return [
        [
            "frontend heartbeat",
            f"bind {path} mode 600",
            "option dontlog-normal",
            f"http-request return status 200 unless {{ queue({TILERT}) gt 0 }} {{ be_conn_free({TILERT}) gt 0 }}",
            f"default_backend {TILERT}",
        ],
        ["backend heartbeat", "option httpchk GET /health", f"server self {path} check inter 1s"],
    ]


def _metrics(cfg: RouterConfig) -> list[str]:
    """Prometheus on a unix socket: no port to protect."""
    return [
        "frontend metrics",
        f"bind unix@{cfg.directory}/{METRICS_SOCKET_FILE} mode 600",
        "option dontlog-normal",
        "http-request use-service prometheus-exporter if { path /metrics }",
        "http-request return status 404",
    ]


def _address(host: str, port: int) -> str:
    return f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
