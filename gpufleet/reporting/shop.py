"""Providers and offers as tables."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from rich.console import RenderableType

from gpufleet.catalog.facts import gpus
from gpufleet.domain.market import Offer
from gpufleet.domain.money import usd
from gpufleet.domain.shop import ProviderFacts, Verified
from gpufleet.reporting.console import BAD, DIM, GOOD, WARN, Page, table, text
from gpufleet.reporting.words import duration


def providers_view(facts: Sequence[ProviderFacts]) -> RenderableType:
    """One line per provider, and what keeps it from being used."""
    rows = table("provider", "key by", "dead-man", "clusters", "runtime", "spot", "ready", folding=("ready",))
    for one in facts:
        able = one.abilities
        rows.add_row(
            text(one.name, "bold"),
            *(text(able.get(name, "?")) for name in ("ownership", "dead-man", "clusters", "runtime", "spot")),
            _ready(one),
        )
    return Page(rows, text(""), text("more: gpufleet providers show NAME", DIM))


def provider_view(one: ProviderFacts) -> RenderableType:
    """Everything about one."""
    lines: list[RenderableType] = [text(f"{one.name}: {one.summary}", "bold")]
    lines += [text(f"verified: {one.verified or 'not said'}")]
    if one.docs:
        lines.append(text(f"docs: {one.docs}"))
    if one.missing:
        lines.append(text(f"missing: {one.missing}", WARN))
    if one.refused:
        lines.append(text(f"nothing can be rented: {one.refused}", BAD))
    if one.abilities:
        rows = table("can", "")
        for name, value in one.abilities.items():
            rows.add_row(text(name), text(value))
        lines += [text(""), rows]
    return Page(*lines)


def offers_view(offers: Sequence[Offer]) -> RenderableType:
    """One line per offer."""
    rows = table(
        "$/h",
        "gpu",
        "vram",
        "TB/s",
        "where",
        "net",
        "stock",
        "least",
        right=("$/h", "vram", "TB/s"),
        folding=("where",),
    )
    for offer in offers:
        rows.add_row(
            text(usd(offer.usd_per_hour), GOOD),
            text(f"{offer.gpu}{' spot' if offer.spot else ''}"),
            text(f"{vram_gb(offer)} GB" if vram_gb(offer) else "?"),
            text(_tb_s(offer)),
            text(f"{offer.provider} {offer.region}".strip()),
            text(_net(offer)),
            text("?" if offer.stock is None else offer.stock),
            text(_least(offer)),
        )
    return Page(rows)


def verified_view(told: Verified) -> RenderableType:
    """What a trial showed, and what it could not show."""
    lines = [
        text(f"{told.provider}: account {told.account}, {told.offers} offers, {told.instances} instances", "bold"),
        *(text(f"  {shape} from {price}") for shape, price in told.cheapest.items()),
    ]
    if told.unknown_states:
        lines.append(text(f"states that the file does not know: {', '.join(told.unknown_states)}", WARN))
    lines.append(text("not tried, for they cost money: create and terminate", DIM))
    if told.record:
        lines.append(text(f"remembered in {told.record}; to rent, set acknowledged_unverified: true", DIM))
    return Page(*lines)


def sorted_offers(offers: Sequence[Offer], by: str) -> list[Offer]:
    """Best first; what is unknown comes last."""
    return sorted(offers, key=lambda o: (_worth(o, by), o.usd_per_hour, o.provider, o.offer_id))


def _worth(offer: Offer, by: str) -> Decimal:
    """Sorts the best first."""
    match by:
        case "vram":
            return Decimal(-vram_gb(offer))
        case "bandwidth":
            return -(bandwidth_tb_s(offer) or Decimal(0))
        case "$/GB":
            return offer.usd_per_hour / vram_gb(offer) if vram_gb(offer) else Decimal("Infinity")
        case _:
            return offer.usd_per_hour


def vram_gb(offer: Offer) -> int:
    """All GPUs of the node together."""
    return offer.vram_gb_per_gpu * offer.gpu.count


def bandwidth_tb_s(offer: Offer) -> Decimal | None:
    """Memory bandwidth of all GPUs together; None for a GPU that the catalog lacks."""
    known = gpus().get(offer.gpu.model)
    return known.memory_tb_s * offer.gpu.count if known and known.memory_tb_s else None


def _ready(one: ProviderFacts) -> RenderableType:
    if one.missing:
        return text(one.missing, WARN)
    return text("no: see show", BAD) if one.refused else text("yes", GOOD)


def _tb_s(offer: Offer) -> str:
    found = bandwidth_tb_s(offer)
    return "?" if found is None else f"{found:.1f}"


def _net(offer: Offer) -> str:
    speed = f" {offer.interconnect_gbps}G" if offer.interconnect_gbps else ""
    group = f" x{offer.cluster.min_nodes}-{offer.cluster.max_nodes}" if offer.cluster else ""
    return f"{'?' if offer.interconnect == 'unknown' else offer.interconnect}{speed}{group}"


def _least(offer: Offer) -> str:
    least = max(offer.min_rental_seconds, offer.billing_increment_seconds)
    return duration(least) if least >= 60 else f"{least} s"
