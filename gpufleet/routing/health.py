"""Whether an endpoint serves, asked without the HTTP library that ``status`` must not wait for."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from gpufleet.routing.client import pinned

_TIMEOUT_S = 3.0


def serves(host: str, port: int, *, tls: bool, certificate: str | None) -> bool:
    """Whether ``/health`` answers 200: HAProxy is there and has something behind it.

    Args:
        certificate: PEM of the one certificate to accept; with TLS and without it nothing can be believed.
    """
    if tls and certificate is None:
        return False
    connection = _connection(host, port, certificate if tls else None)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException, ssl.SSLError):
        return False
    finally:
        connection.close()


def _connection(host: str, port: int, certificate: str | None) -> HTTPConnection:
    if certificate is None:
        return HTTPConnection(host, port, timeout=_TIMEOUT_S)
    return HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=pinned(certificate))
