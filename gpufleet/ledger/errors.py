"""What can go wrong between us and our own record."""

from __future__ import annotations

from sqlalchemy.exc import DontWrapMixin

from gpufleet.errors import GpufleetError, StillBilling


class LedgerUnreadable(DontWrapMixin, StillBilling):
    """The record exists and cannot be understood, so nobody can say that nothing is billing."""


class LedgerUnwritable(GpufleetError):
    """The record cannot take a write now (disk full, read-only, locked, server away); nothing of it was stored."""


class LedgerConflict(GpufleetError):
    """The write contradicts what is recorded, for example a create call that would be sent twice."""


class BadValue(DontWrapMixin, GpufleetError):
    """A time without a zone, or an amount of money that is not a finite number of at least zero."""
