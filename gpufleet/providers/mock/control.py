"""What only the mock market itself may do: look at all of its processes, take a rental back, end everything."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from gpufleet.providers.mock import billing, lifecycle, processes
from gpufleet.providers.mock.market import document


def running(directory: Path) -> list[int]:
    """Processes of all nodes of the market that lives in ``directory``, tracked or not."""
    found = processes.by_root(_roots(directory.resolve()))
    return sorted(pid for pids in found.values() for pid in pids)


def stop_all(directory: Path) -> None:
    """End every rental of the market now with its processes, and delete what is beside them.

    Safe when there is no market.
    """
    directory = directory.resolve()
    if not directory.is_dir():
        return
    memory = document(directory)
    with memory.locked() as market:
        now = datetime.now(UTC)
        for rental in market.rentals.values():
            ended = lifecycle.ends_at(rental)
            if ended is None or ended > now:
                rental.terminate_at, rental.terminating_seconds = now, 0.0
            rental.lagging_polls, rental.swept = 0, True
        for volume in market.volumes.values():
            volume.deleted_at = volume.deleted_at or now
        market.ssh_keys.clear()
        billing.settle(directory, market, now)
        memory.save(market)
        processes.end(_roots(directory))


def preempt(directory: Path, instance_id: str) -> None:
    """Take one rental back now, as a market does with spot instances: its processes end, its meter goes on."""
    memory = document(directory.resolve())
    with memory.locked() as market:
        market.rentals[instance_id].preempted_after_seconds = 0.0
        memory.save(market)


def _roots(directory: Path) -> list[str]:
    nodes = directory / "nodes"
    return [str(path) for path in nodes.iterdir()] if nodes.is_dir() else []
