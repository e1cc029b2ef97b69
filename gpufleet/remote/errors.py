"""Failures between us and a node."""

from __future__ import annotations

from gpufleet.errors import NodeFailed


class ConnectionLost(NodeFailed):
    """The link broke or never came up; the node may be fine. Connecting again is safe."""


class HostKeyChanged(NodeFailed):
    """The host shows another key than the one pinned for this rental. Never accepted silently."""


class LoginRefused(NodeFailed):
    """The host does not take our key (early in a boot this may still change)."""


class JobFailed(NodeFailed):
    """A step of a job on a node failed; the message names the step and shows the end of its output."""
