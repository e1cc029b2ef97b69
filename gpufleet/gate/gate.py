"""Hand-overs one at a time: wait for a turn, send to vLLM, let the ranks through, leave when the buffers are free."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress

from gpufleet.gate import upstream
from gpufleet.gate.claim import Claim
from gpufleet.gate.config import Address, GateConfig
from gpufleet.gate.handover import Handover
from gpufleet.gate.http1 import Head, with_body
from gpufleet.gate.metrics import Metrics
from gpufleet.gate.relay import Relay
from gpufleet.gate.replies import Refusal, Reply
from gpufleet.gate.turnstile import Turnstile

logger = logging.getLogger("gpufleet.gate")
PRIORITY_FIELD = "x-gpufleet-priority"
_PROBE_EVERY_S = 0.25
_RECENT_PORTS = 4096
_NO_ANSWER = "vLLM may still run a hand-over that the gate has lost sight of"


class Gate:
    """The hand-over side of the proxy."""

    def __init__(self, config: GateConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._turnstile = Turnstile()
        self._current: Handover | None = None
        self._since = 0.0
        self._spare: Relay | None = None
        self._quarantine: dict[Address, float] = {}
        self._ports: deque[int] = deque(maxlen=_RECENT_PORTS)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Call once at start: wait until no hand-over of an earlier gate can still run.

        A state file that is there says that one ran when that gate ended; without a file the worst is assumed.
        """
        state = self._config.state
        if state is None or state.exists():
            self._spawn(self._settle("the gate was restarted during a hand-over"))

    @property
    def refusal(self) -> Refusal | None:
        """Why no hand-over is accepted now, if so."""
        return self._turnstile.refusal

    def gauges(self) -> dict[str, float]:
        """For metrics."""
        return {
            "waiting": self._turnstile.waiting,
            "busy": float(self._current is not None),
            "busy_seconds": time.monotonic() - self._since if self._current else 0.0,
            "shut": float(self.refusal is not None),
            "quarantined_nodes": sum(until > time.monotonic() for until in self._quarantine.values()),
        }

    async def carry(self, head: Head, claim: Claim, line: upstream.Line, gone: asyncio.Event) -> Reply:
        """Carry one request out; returns vLLM's answer once every rank has been admitted.

        Raises:
            Refusal: it was not sent, or it failed.
            ClientGone: the client left while it waited.
        """
        priority = priority_of(head, self._config.priority)
        arrived = time.monotonic()
        self._check_node(claim.node)
        try:
            await self._turnstile.enter(priority or 0, self._config.queue_s, gone)
        except TimeoutError:
            raise self._queue_timeout() from None
        self._metrics.queue_seconds.observe((), time.monotonic() - arrived)
        handover = Handover(claim.node, self._config.attempts)
        self._current, self._since = handover, time.monotonic()
        self._spawn(self._run(handover, head, claim, priority, line))
        return await asyncio.shield(handover.reply)

    async def drain(self) -> None:
        """Wait for what runs."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _check_node(self, node: Address) -> None:
        left = self._quarantine.get(node, 0.0) - time.monotonic()
        if left > 0:
            why = f"a rank broke off while it wrote to decode node {node}; late writes may still reach it"
            raise Refusal(503, "quarantine", why, left)
        self._quarantine.pop(node, None)

    def _queue_timeout(self) -> Refusal:
        current = self._current
        why = "other requests came first"
        if current is not None:
            spent = time.monotonic() - self._since
            why = f"the hand-over to {current.node} runs since {spent:.1f} s: {current.what_is_missing()}"
        return Refusal(503, "queue", f"no turn at the KV gate within {self._config.queue_s:g} s; {why}")

    async def _run(
        self, handover: Handover, head: Head, claim: Claim, priority: int | None, line: upstream.Line
    ) -> None:
        """From turn to turn. Not ended by the client: once sent, only vLLM and its ranks say when it is over.

        A fault of the gate's own, or its end, leaves the turn taken and the state file there: that is the safe side.
        """
        relay, self._spare = self._spare or self._new_relay(), None
        relay.assign(handover)
        timer = self._later(self._config.handover_s, lambda: self._overdue(handover))
        try:
            self._check_node(claim.node)
            await self._open(relay)
            await self._prefill(handover, line, with_body(head, claim.rewritten(relay.address, priority)))
            await handover.until(lambda: handover.over)
        except Refusal as refusal:
            handover.fail(refusal)
        finally:
            timer.cancel()
            relay.close()
            if not handover.reply.done():
                handover.fail(Refusal(500, "gate-fault", "the KV gate failed; its log says how"))
        self._account(handover)
        self._current = None
        self._turnstile.leave()
        await self._make_ready()

    def _new_relay(self) -> Relay:
        return Relay(self._config.relay_host, self._config.connect_s)

    async def _make_ready(self) -> None:
        """Listen for the next hand-over already: that saves it the wait."""
        relay = self._new_relay()
        with suppress(Refusal):
            await self._open(relay)
        if self._spare is None:
            self._spare = relay
        else:
            relay.close()

    async def _open(self, relay: Relay) -> None:
        if relay.address.port:
            return
        try:
            await relay.open(self._ports)
        except OSError as error:
            why = f"the gate cannot listen on {self._config.relay_host}: {error}"
            raise Refusal(500, "relay", why) from None

    async def _prefill(self, handover: Handover, line: upstream.Line, request: bytes) -> None:
        """Send to vLLM and take its answer; returns when vLLM cannot extract KV for this request any more."""
        try:
            vllm = await line.take()
        except upstream.Unreachable as error:
            raise Refusal(502, "vllm-unreachable", f"vLLM cannot be reached: {error}") from None
        self._mark(running=True)
        try:
            answer = await upstream.ask(vllm, request)
        except upstream.AnswerLost as error:
            await self._lost(handover, Refusal(502, "answer-lost", f"vLLM gave no whole answer: {error}"))
        else:
            await self._answered(handover, answer)
        handover.vllm_is_through()

    async def _answered(self, handover: Handover, answer: Reply) -> None:
        failure = Refusal(answer.status, f"vllm-{answer.status // 100}xx", f"vLLM answered {answer.status}")
        if answer.status >= 500:
            handover.answer(answer)
            await self._lost(handover, failure)
        elif answer.status != 200:
            handover.answer(answer)
            handover.fail(failure)
        else:
            late = self._later(self._config.connect_s, lambda: self._ranks_missing(handover))
            handover.vllm_is_through()
            await handover.until(lambda: handover.all_admitted or handover.revoked)
            late.cancel()
            if not handover.revoked:
                handover.answer(answer)

    async def _lost(self, handover: Handover, failure: Refusal) -> None:
        """vLLM may go on with the request: its ranks are shut out, and nobody follows until it must have ended."""
        handover.fail(failure)
        if not handover.landed:
            await self._settle(failure.message)

    async def _settle(self, why: str) -> None:
        """Refuse hand-overs until vLLM's port refuses, which proves its end, or ``settle_s`` have passed."""
        self._mark(running=True)
        deadline = time.monotonic() + self._config.settle_s
        logger.warning("no hand-over for %g s or until vLLM is restarted: %s", self._config.settle_s, why)
        while (left := deadline - time.monotonic()) > 0:
            self._turnstile.shut(Refusal(503, "settling", f"{_NO_ANSWER} ({why})", left))
            if await upstream.refuses(self._config.upstream):
                break
            await asyncio.sleep(min(left, _PROBE_EVERY_S))
        self._turnstile.unshut()
        if self._current is None:
            self._mark(running=False)

    def _overdue(self, handover: Handover) -> None:
        missing = handover.what_is_missing()
        why = f"the KV did not reach {handover.node} within {self._config.handover_s:g} s: {missing}"
        handover.fail(Refusal(504, "handover-deadline", why))

    def _ranks_missing(self, handover: Handover) -> None:
        if not handover.all_admitted:
            why = f"{self._config.connect_s:g} s after vLLM's answer {handover.what_is_missing()}"
            handover.fail(Refusal(504, "ranks-missing", f"no KV for {handover.node}: {why}"))

    def _account(self, handover: Handover) -> None:
        self._mark(running=False)
        node = self._metrics.node(str(handover.node))
        self._metrics.handovers[(node, ("outcome", handover.outcome))] += 1
        self._metrics.handover_seconds.observe((node,), time.monotonic() - self._since)
        if handover.landed:
            self._metrics.tokens[(node,)] += handover.tokens
            self._metrics.bytes[(node,)] += handover.tokens * self._config.token_bytes
        if handover.broke_off:
            self._quarantine[handover.node] = time.monotonic() + self._config.quarantine_s
        if handover.failure is not None:
            logger.warning("hand-over of %s to %s failed: %s", handover.rid, handover.node, handover.failure.message)

    def _mark(self, *, running: bool) -> None:
        """Keep on disk whether vLLM may be at a hand-over."""
        if self._config.state is None:
            return
        if running:
            self._config.state.touch()
        else:
            self._config.state.unlink(missing_ok=True)

    def _later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, call)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def priority_of(head: Head, default: int | None) -> int | None:
    """The request's ``priority`` for vLLM; Refusal when the header holds no number."""
    values = head.all(PRIORITY_FIELD)
    if not values:
        return default
    try:
        return int(values[-1])
    except ValueError:
        raise Refusal(400, "priority", f"{PRIORITY_FIELD} is no whole number: {values[-1]!r}") from None
