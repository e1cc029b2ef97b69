"""Providers without a fleet: which there are, what they offer, and whether a description works."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufleet.domain.market import InstanceState, OfferQuery
from gpufleet.domain.money import usd_per_hour
from gpufleet.domain.shop import ProviderFacts, ProviderOffers, Verified
from gpufleet.engine.listing import read
from gpufleet.engine.paths import default_state_dir
from gpufleet.errors import GpufleetError, InvalidFleet
from gpufleet.providers.registry import ProviderFile, load_provider_file, open_provider, provider_names
from gpufleet.spec.model import ProviderUse
from gpufleet.spec.values import SecretRef

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from gpufleet.providers.base import Provider
    from gpufleet.providers.sandbox.server import Sandbox

_READ_SECONDS = 20.0
_PARALLEL = 8
_SIMULATED = "mock"


def known_providers(folder: Path) -> list[ProviderFacts]:
    """Every provider file that a fleet in ``folder`` could use, by name. Asks no provider."""
    return [facts_of(name, folder) for name in provider_names(folder)]


def facts_of(name: str, folder: Path) -> ProviderFacts:
    """One of them.

    Raises:
        InvalidFleet: there is no such file, or it is wrong.
    """
    file = load_provider_file(name, fleet_dir=folder)
    missing = _missing_secrets(file, folder)
    try:
        provider = _open(name, folder)
    except InvalidFleet as error:
        told = missing or error.message
        return ProviderFacts(name, file.kind, file.summary, file.verified, file.docs, missing=told)
    refused = provider.caps.create_refused or None
    return ProviderFacts(
        name, file.kind, file.summary, file.verified, file.docs, _abilities(provider), missing, refused
    )


def find_offers(query: OfferQuery, names: Sequence[str], folder: Path) -> list[ProviderOffers]:
    """Live offers of these providers (of all real ones, when none is named), asked side by side."""
    wanted = list(names) or [name for name in provider_names(folder) if _is_market(name, folder)]
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        return list(pool.map(lambda name: _offers_of(name, query, folder), wanted))


def verify(name: str, folder: Path) -> Verified:
    """Try a description without changing anything: whose account it is, what is offered, what runs.

    Raises:
        ProviderRefused: the provider does not answer as the description says.
        InvalidFleet: an option is missing.
    """
    provider = _open(name, folder)
    account = read(provider, provider.whoami, give_up=_READ_SECONDS)
    offers = read(provider, lambda: provider.offers(OfferQuery()), give_up=_READ_SECONDS)
    inventory = read(provider, provider.inventory, give_up=_READ_SECONDS)
    cheapest = {str(o.gpu): usd_per_hour(o.usd_per_hour) for o in reversed(offers)}
    unknown = {i.raw_state for i in inventory.instances if i.state is InstanceState.UNKNOWN}
    record = _remember(provider, account.account_id, len(offers), len(inventory.instances))
    return Verified(
        provider=name,
        account=account.account_id,
        offers=len(offers),
        cheapest=dict(sorted(cheapest.items())),
        instances=len(inventory.instances),
        unknown_states=tuple(sorted(unknown)),
        record=record,
    )


def sandbox_of(name: str, folder: Path, host: str, port: int) -> tuple[ThreadingHTTPServer, Sandbox]:
    """A server that speaks a provider file; not running yet.

    Raises:
        InvalidFleet: the file is wrong, or describes no HTTP provider.
        UsageError: the address is not one of this machine alone, or is taken.
    """
    from gpufleet.providers.rest.loading import check_description
    from gpufleet.providers.sandbox.server import Sandbox, serve

    file = load_provider_file(name, fleet_dir=folder)
    if not file.rest:
        raise InvalidFleet(
            f"provider {name} is of kind {file.kind}: there is no HTTP to speak", where=f"provider {name}"
        )
    sandbox = Sandbox(name, check_description(file.rest, name=name))
    return serve(sandbox, host, port), sandbox


def _open(name: str, folder: Path) -> Provider:
    use = ProviderUse(use=name)
    return open_provider(use, fleet_dir=folder, state_dir=default_state_dir())


def _offers_of(name: str, query: OfferQuery, folder: Path) -> ProviderOffers:
    try:
        missing = _missing_secrets(load_provider_file(name, fleet_dir=folder), folder)
        if missing:
            return ProviderOffers(name, failure=missing)
        provider = _open(name, folder)
        found = read(provider, lambda: provider.offers(query), give_up=_READ_SECONDS)
    except GpufleetError as error:
        return ProviderOffers(name, failure=error.message + (f"; {error.hint}" if error.hint else ""))
    return ProviderOffers(name, tuple(found))


def _is_market(name: str, folder: Path) -> bool:
    """Whether it sells to whoever has a key: the mock costs nothing, and listed hosts stand in a fleet file."""
    return load_provider_file(name, fleet_dir=folder).kind not in {_SIMULATED, "ssh"}


def _missing_secrets(file: ProviderFile, folder: Path) -> str | None:
    for value in file.options.values():
        if isinstance(value, str) and value.startswith(("env:", "file:")):
            try:
                SecretRef.parse(value).read(folder)
            except InvalidFleet as error:
                return f"set {value.removeprefix('env:')}" if value.startswith("env:") else error.message
    return None


def _abilities(provider: Provider) -> dict[str, str]:
    from gpufleet.providers.base import HasExtras, InstallsKeys

    caps = provider.caps
    told: dict[str, Any] = {
        "ownership": caps.ownership.value,
        "dead-man": caps.server_expiry,
        "price guard": caps.price_guard,
        "spot": caps.spot,
        "clusters": caps.clusters,
        "runtime": caps.runtime.value,
        "login": caps.login.value,
        "volumes and keys listed": isinstance(provider, HasExtras),
        "installs the SSH key": isinstance(provider, InstallsKeys),
        "ends while provisioning": caps.terminate_while_provisioning,
        "power-off stops the meter": caps.poweroff_stops_billing,
        "end of a rental": caps.lifetime.value,
        "creates at once": str(caps.creates_at_once),
        "settle window": f"{caps.settle_seconds:g} s",
    }
    return {name: ("yes" if value else "no") if isinstance(value, bool) else value for name, value in told.items()}


def _remember(provider: Provider, account: str, offers: int, instances: int) -> str | None:
    """Leave the record that a guessed description needs."""
    from gpufleet.providers.rest.provider import RestProvider
    from gpufleet.providers.rest.verified import Verification, digest_of, record_path

    if not isinstance(provider, RestProvider) or not provider.description.assumed:
        return None
    path = record_path(default_state_dir(), provider.name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = digest_of(provider.description, provider.base_url)
    record = Verification(digest=digest, at=datetime.now(UTC), account=account, offers=offers, instances=instances)
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(record.model_dump_json(indent=1))
    Path(draft).replace(path)
    return str(path)
