"""The whole life of a rental on every described provider, through their recorded shapes: nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.domain.market import InstanceState, OfferQuery
from gpufleet.engine.listing import Listing, read
from gpufleet.engine.quotes import note_offers
from gpufleet.engine.release import confirm_gone, decide_end
from gpufleet.engine.rent import Wanted, rent
from gpufleet.engine.session import Session
from gpufleet.ledger.records import IntentState, Rental
from gpufleet.providers.errors import AuthError, CapacityError
from tests.engine.described import Market, described_market
from tests.engine.market import NODE
from tests.providers.fakes.backend import Answer, Call
from tests.providers.fakes.lambda_ import Lambda
from tests.providers.fakes.prime import Prime
from tests.providers.fakes.runpod import Runpod
from tests.providers.fakes.shadeform import Shadeform
from tests.providers.fakes.vast import Vast
from tests.providers.fakes.verda import Verda
from tests.providers.places import PUBLIC_KEY

MARKETS = {"lambda": Lambda, "shadeform": Shadeform, "runpod": Runpod, "vast": Vast, "verda": Verda, "prime": Prime}
CREATES = {
    "lambda": ("POST", "/instance-operations/launch"),
    "shadeform": ("POST", "/instances/create"),
    "runpod": ("POST", "/v2/pods$"),
    "vast": ("PUT", "/asks/"),
    "verda": ("POST", "/instances$"),
    "prime": ("POST", "/pods/"),
}


@pytest.fixture(params=sorted(MARKETS))
def market(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Market]:
    with described_market(request.param, MARKETS[request.param](), tmp_path, monkeypatch) as made:
        yield made


def rent_here(session: Session) -> Rental:
    provider = session.provider_named(session.fleet.provider.use)
    session.account(provider)
    offers = [o for o in read(provider, lambda: provider.offers(OfferQuery())) if o.cluster is None]
    wanted = Wanted(NODE, offers, None, disk_gb=100, deadline_at=None, ssh_public_key=PUBLIC_KEY)
    return rent(session, provider, Listing(provider), wanted)


def end_everything(session: Session) -> None:
    for rental in session.store.rentals("test"):
        decide_end(session, rental, "test")
    for owed in session.store.open_obligations("test"):
        session.store.oblige(owed.provider, owed.ref, fleet="test", reason="test", kind=owed.kind)
    confirm_gone(session, give_up=20.0)


@pytest.mark.report("dstack 3734")
def test_a_rental_comes_and_goes_and_leaves_nothing(market: Market) -> None:
    with market.session() as session:
        rental = rent_here(session)
        assert rental.usd_per_hour > 15
        instance = session.provider_named(market.name).get(rental.instance_id)
        assert instance.name == rental.key
        end_everything(session)
        assert session.store.open_obligations() == []
        assert market.left() == []


def test_an_answer_that_was_lost_is_found_by_its_key(market: Market) -> None:
    def lose(call: Call) -> Answer:
        assert market.backend.answer(call).status < 300
        return Answer(502, "<html>Bad Gateway</html>")

    market.backend.faults.append((*CREATES[market.name], lose))
    with market.session() as session:
        rental = rent_here(session)
        assert [i.state for i in session.store.intents("test")] == [IntentState.FOUND]
        assert [m.id for m in market.backend.made.values()] == [rental.instance_id]
        end_everything(session)
        assert market.left() == []


def test_a_create_that_failed_on_their_side_is_looked_for_and_never_sent_again(market: Market) -> None:
    market.backend.faults.append((*CREATES[market.name], lambda _: Answer(500, {"message": "internal error"})))
    with market.session() as session:
        rental = rent_here(session)
        outcomes = [i.state for i in session.store.intents("test")]
        assert outcomes == [IntentState.PRESUMED_ABSENT, IntentState.CREATED]
        assert len({i.intent.offer_id for i in session.store.intents("test")}) == 2
        assert rental.state is InstanceState.PROVISIONING
        end_everything(session)
        assert market.left() == []


@pytest.mark.report("skypilot 2261", "skypilot 5438")
def test_too_many_requests_is_waited_for(market: Market) -> None:
    def busy(_: Call) -> Answer:
        return Answer(429, "API requests too frequent endpoint threshold=3.0", {"retry-after": "0"})

    method, path = CREATES[market.name]
    market.backend.faults += [(method, path, busy), ("GET", ".", busy)]
    with market.session() as session:
        session.stop.wait = lambda _: False  # type: ignore[method-assign] - the pauses are not what is tested
        assert rent_here(session).live
        end_everything(session)
        assert market.left() == []


def test_a_wrong_key_rents_nothing_and_is_no_missing_stock(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    with market.session() as session:
        offers = session.provider_named(market.name).offers(OfferQuery())
        assert offers
        monkeypatch.setenv("FAKE_KEY", "another-key")
        with market.session() as other, pytest.raises(AuthError) as refusal:
            rent_here(other)
        assert "another-key" not in str(refusal.value)
        assert market.left() == []


def test_no_stock_is_no_stock(market: Market) -> None:
    with market.session() as session:
        provider = session.provider_named(market.name)
        offers = [o for o in provider.offers(OfferQuery()) if o.cluster is None]
        market.backend.stock = dict.fromkeys(market.backend.stock, 0)
        session.account(provider)
        note_offers(session, provider, offers)
        wanted = Wanted(NODE, offers, None, disk_gb=100, deadline_at=None, ssh_public_key=PUBLIC_KEY)
        with pytest.raises(CapacityError):
            rent(session, provider, Listing(provider), wanted)
        assert {i.state for i in session.store.intents("test")} == {IntentState.REFUSED}
        end_everything(session)


@pytest.mark.report("dstack 4036")
def test_ids_that_an_error_names_are_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Vast()

    def underbid(call: Call) -> Answer:
        made = backend.answer(call).body
        return Answer(400, {"success": False, "error": "invalid_price", "new_contract": made["new_contract"]})

    backend.faults.append(("PUT", "/asks/", underbid))
    with described_market("vast", backend, tmp_path, monkeypatch) as market:
        with market.session() as session:
            rental = rent_here(session)
            assert [m.id for m in backend.made.values()] == [rental.instance_id]
            end_everything(session)
        assert market.left() == []
