"""One run's context: the fleet, its ledger, its providers, its keys and whoever watches."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.domain.market import Offer
from gpufleet.domain.nodes import NodeName
from gpufleet.domain.progress import Progress, ProgressSink
from gpufleet.engine.paths import FleetPaths, default_state_dir
from gpufleet.errors import InvalidFleet
from gpufleet.planning.counts import Asked, counts_in_force
from gpufleet.spec.checks import check_counts
from gpufleet.spec.load import LoadedFleet, load_fleet
from gpufleet.spec.model import Fleet, ProviderUse
from gpufleet.spec.problems import Problem, Severity

if TYPE_CHECKING:
    from gpufleet.ledger.records import Rental
    from gpufleet.ledger.store import Store
    from gpufleet.providers.base import Account, Provider


def ignore(progress: Progress) -> None:
    """A sink that shows nothing."""


def now() -> datetime:
    """The engine's only clock for what is recorded; aware UTC."""
    return datetime.now(UTC)


@dataclass
class Quotes:
    """One provider's offers as this run last read them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while they are read, so that of many nodes one asks and the others use the answer."""
    last: dict[str, tuple[float, Offer | None]] = field(default_factory=dict)
    """By offer id: when (monotonic seconds), and what it was; None where it was gone."""


@dataclass
class Session:
    """Everything a command needs; made by `open_session`."""

    loaded: LoadedFleet
    state_dir: Path
    store: Store
    ledger: Path | str
    """Where the ledger is: a file or a database URL."""
    sink: ProgressSink = ignore
    stop: threading.Event = field(default_factory=threading.Event)
    read_seconds: float = 60.0
    """How long reads of a provider are tried again before it counts as unreachable."""
    terms: dict[str, Offer] = field(default_factory=dict)
    """The offers that this run's keys were sent for."""
    notes: set[str] = field(default_factory=set)
    """What the user should know beside the plan."""
    offers: dict[str, Sequence[Offer]] = field(default_factory=dict)
    """Per pool what the last plan could choose from."""
    _in_force: Fleet | None = None
    _turns: dict[str, threading.Semaphore] = field(default_factory=dict)
    _quotes: dict[str, Quotes] = field(default_factory=dict)
    _key_refs: dict[str, str] = field(default_factory=dict)
    _accounts: dict[str, Account] = field(default_factory=dict)
    _providers: dict[str, Provider] = field(default_factory=dict)
    _options: dict[str, dict[str, object]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _keys_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def fleet(self) -> Fleet:
        """The fleet as it is to be now: the file's, with the counts of its schedule and of `scale`."""
        if self._in_force is None:
            self._in_force = self.loaded.fleet.with_counts(counts_in_force(self.loaded.fleet, now(), self.asked))
        return self._in_force

    @property
    def asked(self) -> Asked | None:
        """What `scale` asked for last; None when nothing, or since the fleet was taken down."""
        record = self.store.fleet(self.loaded.fleet.name)
        if record is None or record.asked_at is None:
            return None
        return Asked(record.asked["counts"], record.asked["of_file"], record.asked_at)

    def ask_for(self, counts: Mapping[str, int]) -> None:
        """From now on, in this run, other counts; it is the caller who writes them down.

        Raises:
            InvalidFleet: the fleet would not work with them.
        """
        for problem in check_counts(self.fleet.with_counts(counts)):
            if problem.severity is Severity.ERROR:
                raise InvalidFleet(problem.message, hint=problem.hint)
        self.run_with(counts)

    def run_with(self, counts: Mapping[str, int]) -> None:
        """The same without a look at whether every channel is still served: to run less is always allowed."""
        self._in_force = self.fleet.with_counts(counts)

    def look_again(self) -> None:
        """Forget what was in force when this run began: time has passed, or another run has asked for something."""
        self._in_force = None

    @property
    def path(self) -> Path:
        return self.loaded.path

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Doubtful things in the fleet file that are no reason to stop."""
        return self.loaded.warnings

    @property
    def paths(self) -> FleetPaths:
        return FleetPaths(self.state_dir / "fleets" / self.fleet.name)

    def provider(self, use: ProviderUse) -> Provider:
        """The adapter for a provider section of the fleet file; one per name and run.

        Raises:
            InvalidFleet: the section or its provider file is wrong, or another section gives it other options.
        """
        from gpufleet.providers.registry import open_provider

        with self._lock:
            if use.use not in self._providers:
                self._providers[use.use] = open_provider(use, fleet_dir=self.path.parent, state_dir=self.state_dir)
                self._options[use.use] = use.options
            if self._options[use.use] != use.options:
                raise InvalidFleet(
                    f"provider {use.use} is used with two sets of options",
                    where=str(self.path),
                    hint="rentals are known by their provider's name: give the second one a provider file of its own",
                )
            return self._providers[use.use]

    def provider_named(self, name: str) -> Provider:
        """The adapter that a rental was made with: as the fleet file has it, else as it was when it was last used."""
        with self._lock:
            if name in self._providers:
                return self._providers[name]
        use = next((u for u in self.fleet.uses() if u.use == name), None)
        return self.provider(use or ProviderUse(use=name, **self.store.provider_options(self.fleet.name, name) or {}))

    def rental_of(self, node: NodeName) -> Rental | None:
        """The newest live rental of a node; None while it is not rented."""
        rentals = self.store.rentals(self.fleet.name)
        return next((r for r in reversed(rentals) if r.node == node and not r.duplicate), None)

    def owing_providers(self) -> list[str]:
        """Names of providers where something of this fleet is not confirmed gone, or may be."""
        return self.store.owing_providers(self.fleet.name)

    def providers(self) -> list[Provider]:
        """Every provider that this fleet uses or still has rentals with."""
        used = {use.use for pool in self.fleet.pools for use in self.fleet.providers_of(pool)}
        names = used | {*self.owing_providers()}
        return [self.provider_named(name) for name in sorted(names)]

    def quotes(self, provider: str) -> Quotes:
        """What is known of a provider's offers."""
        with self._lock:
            return self._quotes.setdefault(provider, Quotes())

    def turns(self, provider: Provider) -> threading.Semaphore:
        """As many create calls at a time as the provider takes."""
        with self._lock:
            return self._turns.setdefault(provider.name, threading.Semaphore(provider.caps.creates_at_once))

    def ssh_key_ref(self, provider: Provider, public_key: str) -> str | None:
        """What the provider calls the fleet's public key, uploaded on first use; None where it needs none.

        It is written down before it is uploaded, so that `down` removes it whatever happens in between.
        """
        from gpufleet.domain.market import ExtraKind
        from gpufleet.engine.listing import read
        from gpufleet.providers.base import HasExtras, InstallsKeys

        if not isinstance(provider, InstallsKeys):
            return None
        with self._keys_lock:
            if provider.name not in self._key_refs:
                name = f"gf-{self.fleet.name}-{self.store.owner_id()}"
                if isinstance(provider, HasExtras):
                    why, kind = "the fleet's SSH key", ExtraKind.SSH_KEY
                    self.store.hold(provider.name, name, fleet=self.fleet.name, reason=why, kind=kind)
                self._key_refs[provider.name] = read(provider, lambda: provider.ensure_ssh_key(name, public_key))
            return self._key_refs[provider.name]

    def account(self, provider: Provider) -> str:
        """Whose money a provider spends; asked once per run, and refused when it is not the fleet's.

        Raises:
            LedgerConflict: these are the credentials of another account than the one that still owes.
        """
        return self.whose(provider).account_id

    def whose(self, provider: Provider) -> Account:
        """The same with balance and limit, as they were when the run asked.

        Another account than the one that owes is believed when the provider says so twice: one answer may be a slip.
        """
        from gpufleet.ledger.errors import LedgerConflict

        with self._lock:
            if provider.name not in self._accounts:
                try:
                    self._accounts[provider.name] = self._bound(provider)
                except LedgerConflict:
                    self._accounts[provider.name] = self._bound(provider)
            return self._accounts[provider.name]

    def _bound(self, provider: Provider) -> Account:
        from gpufleet.engine.listing import read

        account = read(provider, provider.whoami, give_up=self.read_seconds)
        options = self._options.get(provider.name, {})
        self.store.bind_account(self.fleet.name, provider.name, account.account_id, options)
        return account

    def close(self) -> None:
        """Let go of the ledger."""
        self.store.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_session(
    fleet_file: Path, *, sink: ProgressSink = ignore, state_dir: Path | None = None, recover: bool = False
) -> Session:
    """Read and check the fleet file and open the ledger.

    Args:
        recover: where the file is gone, broken or renamed and what it brought up still runs, take the text that the
            ledger has of it, with a warning. For commands that only look or remove.

    Raises:
        InvalidFleet: when the file is wrong.
    """
    import os

    from gpufleet.engine.recover import load_or_recover
    from gpufleet.ledger.store import Store

    state = state_dir or default_state_dir()
    ledger: Path | str = os.environ.get("GPUFLEET_LEDGER") or state / "ledger.db"
    if not recover or (isinstance(ledger, Path) and not ledger.exists()):
        return Session(load_fleet(fleet_file), state, Store.open(ledger), ledger, sink)
    store = Store.open(ledger)
    try:
        return Session(load_or_recover(fleet_file, store), state, store, ledger, sink)
    except InvalidFleet:
        store.close()
        raise
