"""An offer is read again before money is spent on it, once for all nodes that want it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import pytest

from gpufleet.domain.market import Offer, OfferQuery
from gpufleet.domain.nodes import NodeName
from gpufleet.engine import quotes
from gpufleet.engine.quotes import note_offers, still_offered
from gpufleet.providers.errors import CapacityError, PriceChanged, Transient
from tests.engine.market import Odd, place, provider_of, rent_one

OTHER = NodeName("native", 0)


@dataclass
class Shop(Odd):
    """The market's offers as a test wants them."""

    shown: list[Offer] = field(default_factory=list)
    asked: int = 0

    def offers(self, _query: OfferQuery) -> list[Offer]:
        self.asked += 1
        return self.shown


def offer(price: str = "28", name: str = "a", **more: object) -> Offer:
    from gpufleet.domain.market import GpuShape

    return Offer("mock", name, GpuShape("H200", 8), 141, Decimal(price), "east", **more)  # type: ignore[arg-type]


def ask(session: object, shop: Shop, seen: Offer, limit: str = "30") -> Offer:
    return still_offered(session, shop, seen, limit=Decimal(limit), disk_gb=1)  # type: ignore[arg-type]


def test_what_was_just_read_holds(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        shop = Shop(provider_of(session))
        note_offers(session, shop, [offer()])  # type: ignore[arg-type]
        assert ask(session, shop, offer()) == offer()
        assert shop.asked == 0


@pytest.mark.report("skypilot 3794")
def test_what_one_node_learned_holds_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place(tmp_path) as here, here.session() as session:
        shop = Shop(provider_of(session), shown=[offer("35"), offer("20", "b")])
        for _ in range(2):
            with pytest.raises(PriceChanged, match=r"\$35\.00/h now, above \$30\.00/h"):
                ask(session, shop, offer())
        assert ask(session, shop, offer("19", "b")).usd_per_hour == 20
        for _ in range(2):
            with pytest.raises(CapacityError, match="is gone"):
                ask(session, shop, offer("20", "c"))
        assert shop.asked == 2
        monkeypatch.setattr(quotes, "FRESH_SECONDS", 0.0)
        shop.shown = [offer("29")]
        assert ask(session, shop, offer()).usd_per_hour == 29


def test_an_offer_without_stock_is_gone(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session, pytest.raises(CapacityError):
        ask(session, Shop(provider_of(session), shown=[offer(stock=0)]), offer())


def test_a_market_that_cannot_be_read_says_nothing_of_an_offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[Offer]:
        raise Transient("not now")

    with place(tmp_path) as here, here.session() as session:
        shop = Shop(provider_of(session), shown=[offer()])
        monkeypatch.setattr(quotes, "read", fail)
        with pytest.raises(Transient):
            ask(session, shop, offer())
        monkeypatch.undo()
        assert ask(session, shop, offer()) == offer()


def test_of_many_nodes_one_asks(tmp_path: Path) -> None:
    class Slow(Shop):
        def offers(self, query: OfferQuery) -> list[Offer]:
            all_here.wait(10)
            return super().offers(query)

    all_here = threading.Event()
    with place(tmp_path) as here, here.session() as session:
        shop = Slow(provider_of(session), shown=[offer()])
        with ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(ask, session, shop, offer()) for _ in range(8)]
            all_here.set()
        assert [call.result() for call in calls] == [offer()] * 8
        assert shop.asked == 1


def test_a_price_that_rose_since_the_plan_is_not_paid_by_the_second_node_either(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.session() as session:
        real = provider_of(session)
        planned = real.offers(OfferQuery())

        class Dearer(Odd):
            def offers(self, query: OfferQuery) -> list[Offer]:
                if query.gpu is None:
                    return planned
                return [replace(o, usd_per_hour=o.usd_per_hour * 2) for o in real.offers(query)]

        for node in (NodeName("prefill", 0), OTHER):
            with pytest.raises(PriceChanged):
                rent_one(session, Dearer(real), node=node, limit=Decimal(50))  # type: ignore[arg-type]
        assert here.charges() == []
