"""How the front door fails."""

from __future__ import annotations

from gpufleet.errors import EndpointFailed, InvalidFleet


class RouterGone(EndpointFailed):
    """HAProxy's runtime socket does not answer: it is not running, or not where it should be."""


class RouterRefused(EndpointFailed):
    """HAProxy answered a runtime command with an error."""


class CannotRender(InvalidFleet):
    """A name or path that cannot stand in haproxy.cfg."""


class BadCertificate(InvalidFleet):
    """The user's certificate or key cannot be served."""


class Unauthorized(EndpointFailed):
    """The endpoint knows no channel with this key."""


class Overloaded(EndpointFailed):
    """No server could take the request: none is up, or it waited too long in the queue."""


class CutAnswer(EndpointFailed):
    """The answer ended before it was complete."""
