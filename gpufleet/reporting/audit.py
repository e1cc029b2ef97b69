"""What ``reconcile`` found, as tables."""

from __future__ import annotations

from rich.console import RenderableType

from gpufleet.domain.audit import Audit, Found, ProviderAudit, Standing
from gpufleet.domain.money import usd_per_hour
from gpufleet.reporting.console import BAD, DIM, GOOD, WARN, Page, table, text
from gpufleet.reporting.words import count, duration, named

_STYLES = {Standing.ORPHAN: BAD, Standing.FOREIGN: WARN, Standing.ENDING: WARN, Standing.HELD: GOOD}


def audit_view(audit: Audit, path: str) -> RenderableType:
    """Each provider in a line, what is not held one by one, and the command that comes next."""
    parts: list[RenderableType] = [_line(provider) for provider in audit.providers]
    told = [f for p in audit.providers for f in p.found if f.standing not in {Standing.HELD, Standing.STRANGER}]
    if told:
        parts += [text(""), _rows(told)]
    parts += [text(f"next: {line}", DIM) for line in _next(audit, path)]
    return Page(*parts)


def _line(provider: ProviderAudit) -> RenderableType:
    if provider.failure:
        return text(f"{provider.provider}: unknown: {provider.failure}", BAD)
    counts = {standing: len(provider.of(standing)) for standing in Standing}
    words = [f"{number} {standing}" for standing, number in counts.items() if number]
    lost = f"; gone without being asked: {named(provider.lost)}" if provider.lost else ""
    style = BAD if counts[Standing.ORPHAN] or provider.lost else GOOD
    return text(f"{provider.provider} ({provider.account}): {', '.join(words) or 'nothing'}{lost}", style)


def _rows(found: list[Found]) -> RenderableType:
    rows = table("what", "provider", "id", "name", "age", "$/h", right=("age", "$/h"), folding=("id", "name"))
    for one in found:
        rows.add_row(
            text(one.standing, _STYLES.get(one.standing, "")),
            text(one.provider),
            text(one.instance_id),
            text(one.name),
            text(duration(one.age_seconds)),
            text(usd_per_hour(one.usd_per_hour).removesuffix("/h")),
        )
    return rows


def _next(audit: Audit, path: str) -> list[str]:
    lines = []
    if audit.orphans:
        ripe = sum(f.ripe for f in audit.orphans)
        lines.append(f"gpufleet reconcile {path} --kill (ends {count(ripe, 'orphan')}; younger ones must age first)")
    foreign = [f for p in audit.providers for f in p.of(Standing.FOREIGN)]
    if foreign:
        owner = next((f.owner for f in foreign if f.owner), "OWNER")
        lines.append(f"theirs, or yours before the state was lost: gpufleet adopt {path}, or --kill --owner {owner}")
    if any(p.lost for p in audit.providers):
        lines.append(f"gpufleet up {path} replaces what is gone")
    return lines
