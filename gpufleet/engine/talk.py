"""Talking to the served endpoint: ``ask``, and the real request per channel before ``up`` says ready."""

from __future__ import annotations

from collections.abc import Callable

from gpufleet.engine.front import Front
from gpufleet.engine.session import Session
from gpufleet.errors import EndpointFailed, UsageError
from gpufleet.routing import client
from gpufleet.spec.model import RequestClass

_PROOF = "Say yes."
_PROOF_TOKENS = 8
_PROOF_TIMEOUT_S = 300.0


def ask(
    session: Session, text: str, *, channel: str | None, max_tokens: int, on_text: Callable[[str], None]
) -> client.Answer:
    """Stream one answer as a channel; the first one of the file when none is named.

    Raises:
        UsageError: no such channel.
        EndpointFailed: the endpoint refused, broke off or cannot be reached.
    """
    return client.ask(_endpoint(session, channel), text, max_tokens=max_tokens, on_text=on_text)


def prove_channels(session: Session, *, native: bool) -> None:
    """One real streamed request per channel that something serves.

    Raises:
        EndpointFailed: a request failed or was cut, or a batch was served by a cell.
    """
    for name, channel in session.fleet.router.channels.items():
        if channel.request_class is RequestClass.BATCH and not native:
            continue
        endpoint = _endpoint(session, name, timeout_s=_PROOF_TIMEOUT_S)
        answer = client.ask(endpoint, _PROOF, max_tokens=_PROOF_TOKENS)
        if channel.request_class is RequestClass.BATCH and answer.served_by.startswith("cell-"):
            raise EndpointFailed(f"channel {name} was served by {answer.served_by}", where=endpoint.url)


def _endpoint(session: Session, channel: str | None, *, timeout_s: float = 3600.0) -> client.Endpoint:
    channels = session.fleet.router.channels
    name = channel or next(iter(channels))
    if name not in channels:
        raise UsageError(f"there is no channel '{name}'", hint=f"channels are: {', '.join(channels)}")
    front = Front(session)
    certificate = front.certificate()
    if front.tls and certificate is None:
        raise EndpointFailed("the endpoint has no certificate to pin yet", hint=f"gpufleet up {session.path}")
    return client.Endpoint(
        url=front.url,
        key=channels[name].key.read(session.path.parent),
        model=session.fleet.model.served_name,
        certificate=certificate,
        timeout_s=timeout_s,
    )
