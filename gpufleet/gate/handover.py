"""What is known about one request's KV on its way: which ranks asked, were admitted, are done.

A rank can touch the decode node's memory only after it got the node's answer "accepted", which passes through the gate.
So a rank that has not been let through can be shut out for good, and of the others the connection shows when they end:
the connector sends ``done`` after its last write has completed and closes its connection when its sender has returned.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from gpufleet.gate.config import Address
from gpufleet.gate.replies import Refusal, Reply

TRANSIENT = frozenset({"busy", "cancelling"})
"""Refusals after which a rank asks again (prefill_connector.py)."""


class Handover:
    """One request's turn. Methods of the first half are called by the relay, of the second by the gate."""

    def __init__(self, node: Address, attempts: int) -> None:
        self.node = node
        self.rid: str | None = None
        self.tokens = 0
        self.failure: Refusal | None = None
        self.broke_off = False
        """An admitted rank ended without ``done``: what it had posted may still be under way to the node."""
        self.answered = False
        """vLLM runs nothing for this request any more."""
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._attempts = attempts
        self._senders: int | None = None
        self._refused: Counter[int] = Counter()
        self._admitted: set[int] = set()
        self._done: set[int] = set()
        self._writing = 0
        self._changed = asyncio.Event()
        self.on_revoke: list[Callable[[], None]] = []

    def hello(self, senders: object) -> None:
        """The decode node said how many ranks it expects; both sides have compared that by the time one is admitted."""
        self._senders = senders if isinstance(senders, int) and senders > 0 else 1

    def asks(self, rid: str, tokens: object) -> bool:
        """A rank wants to hand over ``rid``; False when this turn belongs to another request."""
        self.rid = self.rid or rid
        self.tokens = tokens if isinstance(tokens, int) else 0
        return rid == self.rid

    def admit(self, rank: int) -> bool:
        """The node's consent is about to reach the rank; False when it must not."""
        if self.revoked:
            return False
        self._admitted.add(rank)
        self._writing += 1
        self._changed.set()
        return True

    def refused(self, rank: int, reason: str) -> None:
        """The node turned the rank away."""
        self._refused[rank] += 1
        if reason not in TRANSIENT or self._refused[rank] >= self._attempts:
            self.fail(Refusal(503, "refused", f"decode node {self.node} refused the KV of rank {rank}: {reason}"))

    def done(self, rank: int) -> None:
        """All that the rank had to write has been written."""
        self._done.add(rank)
        self._changed.set()

    def finished(self, rank: int) -> bool:
        """Whether the rank is done."""
        return rank in self._done

    def left(self, rank: int) -> None:
        """The connection of an admitted rank has ended."""
        self._writing -= 1
        if not self.finished(rank):
            self.broke_off = True
            self.fail(Refusal(503, "broke-off", f"rank {rank} broke off while it sent KV to decode node {self.node}"))
        self._changed.set()

    @property
    def revoked(self) -> bool:
        """Whether ranks are let through no more."""
        return self.failure is not None

    @property
    def all_admitted(self) -> bool:
        """Nothing but a broken transfer can now go wrong."""
        return self._senders is not None and len(self._admitted) >= self._senders

    @property
    def landed(self) -> bool:
        """Every rank is done."""
        return self._senders is not None and len(self._done) >= self._senders

    @property
    def over(self) -> bool:
        """The staging buffers are free: nothing will read them for this request, nor write them."""
        return self.landed or (self.answered and self.revoked and self._writing == 0)

    @property
    def outcome(self) -> str:
        """For metrics."""
        return self.failure.reason if self.failure else "landed" if self.landed else "running"

    def fail(self, failure: Refusal) -> None:
        """Give the request up and shut out the ranks that have not been admitted; the first reason stays."""
        if self.failure is not None:
            return
        self.failure = failure
        if not self.reply.done():
            self.reply.set_result(failure.reply())
        for revoke in self.on_revoke:
            revoke()
        self._changed.set()

    def answer(self, reply: Reply) -> None:
        """Let the client have vLLM's answer, unless it was told otherwise."""
        if not self.reply.done():
            self.reply.set_result(reply)

    def vllm_is_through(self) -> None:
        """vLLM has answered, or is known to run this request no more."""
        self.answered = True
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; it is looked at after each change."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def what_is_missing(self) -> str:
        """For messages: why it is not over yet."""
        expected = range(self._senders or 0)
        if not self.answered and not self._admitted:
            return "vLLM has not answered"
        absent = [rank for rank in expected if rank not in self._admitted]
        if not self._senders or absent:
            return f"ranks {absent or 'all'} never came to the gate or were not admitted"
        return f"ranks {[rank for rank in expected if rank not in self._done]} still send"
