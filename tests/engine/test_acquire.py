"""A provider that rents this account nothing is asked once per run, not once per node."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.domain.market import OfferQuery
from gpufleet.domain.nodes import NodeName
from gpufleet.engine.acquire import Acquirer
from gpufleet.engine.listing import Listing
from gpufleet.engine.machines import Machines
from gpufleet.engine.rent import Wanted
from gpufleet.errors import ProviderRefused
from gpufleet.providers.errors import AuthError, CapacityError, PaymentError, QuotaError
from tests.engine.market import NODE, end_all, place, provider_of
from tests.providers.places import PUBLIC_KEY


@pytest.mark.parametrize(
    ("kind", "error", "asked"),
    [("quota", QuotaError, 1), ("payment", PaymentError, 1), ("auth", AuthError, 1), ("capacity", CapacityError, 2)],
)
def test_a_refusal_of_the_account_holds_for_the_other_nodes(
    tmp_path: Path, kind: str, error: type[ProviderRefused], asked: int
) -> None:
    with place(tmp_path, {"at": "create", "kind": kind}) as here, here.session() as session, Machines(session) as on:
        provider = provider_of(session)
        session.account(provider)
        acquirer = Acquirer(session, on, {"mock": Listing(provider)})
        offer = provider.offers(OfferQuery(gpu=session.fleet.pools["prefill"].gpu))[0]
        first, second = (Wanted(node, [offer], None, 100, None, PUBLIC_KEY) for node in (NODE, NodeName("native", 0)))
        with pytest.raises(error):
            acquirer._rent_anywhere(first)
        if asked == 1:
            with pytest.raises(error):
                acquirer._rent_anywhere(second)
        else:
            acquirer._rent_anywhere(second)
        assert len(session.store.intents("test")) == asked
        end_all(session)
