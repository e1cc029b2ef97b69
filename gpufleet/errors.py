"""The errors a user can meet, and the exit code each one ends the program with.

Every class is one *kind* of failure as a script sees it; `docs/exit-codes.md` lists them. The top of the CLI prints
``message`` on one line, ``where`` and ``hint`` on the next ones, and keeps the traceback for ``--debug``.
"""

from __future__ import annotations

from typing import ClassVar


class GpufleetError(Exception):
    """Anything gpufleet raises on purpose.

    Args:
        message: what happened, in one line, with the offending value.
        where: file and line, node, or step it happened at.
        hint: the command or edit that comes next.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint


class UsageError(GpufleetError):
    """The command line asks for something that does not exist (an unknown node, a missing argument)."""

    exit_code = 2


class InvalidFleet(GpufleetError):
    """The fleet file (or a provider or playbook file) is wrong; nothing was rented."""

    exit_code = 3


class ProviderRefused(GpufleetError):
    """A provider answered no, could not be reached, or lied. See `gpufleet.providers.errors` for the kinds."""

    exit_code = 4


class NodeFailed(GpufleetError):
    """A node, a step on it, or the service on it did not come up."""

    exit_code = 5


class StillBilling(GpufleetError):
    """Something that costs money could not be confirmed gone."""

    exit_code = 6


class Declined(GpufleetError):
    """The user said no, or could not be asked (no terminal and no ``--yes``)."""

    exit_code = 7


class EndpointFailed(GpufleetError):
    """The served endpoint refused or broke a request."""

    exit_code = 8


class FleetBusy(GpufleetError):
    """Another gpufleet run holds this fleet's lock."""

    exit_code = 9


class Interrupted(GpufleetError):
    """Ctrl-C or SIGTERM: what exists is recorded, and the next run continues."""

    exit_code = 130
