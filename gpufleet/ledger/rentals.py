"""What providers created for us, from the answer to the create call to the confirmed end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, select

from gpufleet.domain.market import Extra, ExtraKind, Instance
from gpufleet.domain.status import Serving
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.intents import find_intent, intent_columns, known_intent
from gpufleet.ledger.obligations import INSTANCE, Obligations, open_one
from gpufleet.ledger.records import HAS_RENTAL, Intent, IntentRecord, IntentState, ObligationState, Rental
from gpufleet.ledger.rental_rows import (
    any_for,
    change_rental,
    known_rental,
    last_rental,
    node_for,
    pinned_key,
    rental_by_id,
    to_rental,
)
from gpufleet.ledger.reports import aware, is_news, rate_of, reported, told_endpoint, with_pinned_jump
from gpufleet.ledger.schema import INTENTS, OBLIGATIONS, RENTALS


class Rentals(Obligations):
    """Rentals are named by provider and instance id; of an id that came back (a host leased again) the last counts."""

    def record_rental(self, key: str, instance: Instance) -> Rental:
        """Store what a create call made, settle its intent and open its obligation, in one transaction.

        Recording the same instance again only updates it. A second instance for one key is kept as a duplicate whose
        end is decided at once. Whatever else the provider says (a price below zero, a time without a zone) is left
        out rather than lose the rental.

        Raises:
            LedgerConflict: no such intent, or another key holds the instance.
        """
        with self._db.write() as connection:
            return self._record(connection, key, instance)

    def adopt(self, intent: Intent, instance: Instance) -> Rental:
        """Store an instance that no create call of this ledger made: the call is written down as found, in one go.

        Raises:
            LedgerConflict: another key holds the instance.
        """
        with self._db.write() as connection:
            if find_intent(connection, intent.key) is None:
                row = {**intent_columns(intent), "state": IntentState.AMBIGUOUS, "opened_at": self._now()}
                connection.execute(insert(INTENTS).values(row))
                self._log(connection, intent.fleet, intent.node, "adopted", {"instance": instance.instance_id})
            return self._record(connection, intent.key, instance)

    def _record(self, connection: Connection, key: str, instance: Instance) -> Rental:
        record = known_intent(connection, key)
        known = last_rental(connection, instance.provider, instance.instance_id)
        if known is not None and known.key == key:
            return self._update(connection, known, instance)
        if known is not None and known.live:
            raise LedgerConflict(f"{instance.provider} {instance.instance_id} belongs to {known.key}, not to {key}")
        node = node_for(connection, record, instance)
        duplicate = any_for(connection, key, node)
        row = {**self._first_row(record, instance), "node": node, "duplicate": duplicate}
        created = connection.execute(insert(RENTALS).values(row).returning(RENTALS.c.rental_id))
        rental = rental_by_id(connection, created.scalar_one())
        self._hold(connection, rental)
        self._hold_extras(connection, rental, instance)
        self._settle_with_rental(connection, record)
        return rental

    def record_cluster(self, key: str, provider: str, cluster_id: str) -> None:
        """Store what a cluster's create call made, settle its intent and open its obligation, in one transaction.

        Its members are rentals of their own, recorded with the same key as the provider tells them. They end with the
        cluster, and it with them: a second cluster for one key ends at once.

        Raises:
            LedgerConflict: no such intent.
        """
        with self._db.write() as connection:
            record = known_intent(connection, key)
            if open_one(connection, provider, ExtraKind.CLUSTER, cluster_id) is not None:
                return
            again = record.state in HAS_RENTAL
            nodes = record.intent.nodes
            self._oblige(
                connection,
                provider,
                cluster_id,
                record.intent.fleet,
                f"a second cluster for {key}" if again else f"rented for {nodes[0]} and {len(nodes) - 1} more",
                kind=ExtraKind.CLUSTER,
                state=ObligationState.ENDING if again else ObligationState.HELD,
                parent=key,
                usd_per_hour=record.intent.usd_per_hour * len(nodes),
            )
            self._settle_with_rental(connection, record)

    def update_rental(self, instance: Instance) -> Rental:
        """Store how the provider reports an instance now. What it leaves out is kept.

        A host key that it tells is pinned when none is, for many tell it only once the node has its address.

        A rental that was confirmed gone and is reported alive is opened again, and its end decided.

        Raises:
            LedgerConflict: it was never recorded.
        """
        with self._db.write() as connection:
            return self._update(connection, known_rental(connection, instance.provider, instance.instance_id), instance)

    def update_rentals(self, instances: Iterable[Instance], *, known: Iterable[Rental]) -> None:
        """`update_rental` for many, in one transaction; what says nothing new is not written.

        Args:
            known: these rentals as they were read just now.

        Raises:
            LedgerConflict: one was never recorded.
        """
        before = {(r.provider, r.instance_id): r for r in known}
        told = [(before.get((i.provider, i.instance_id)), i) for i in instances]
        held = {(o.provider, o.kind, o.ref) for o in self.open_obligations()} if any(i.extras for _, i in told) else ()
        if news := [i for rental, i in told if is_news(rental, i, held)]:
            with self._db.write() as connection:
                for instance in news:
                    self._update(
                        connection, known_rental(connection, instance.provider, instance.instance_id), instance
                    )

    def pin_host_key(self, provider: str, instance_id: str, host_key: str) -> None:
        """Trust this SSH host key for the life of the rental.

        Raises:
            LedgerConflict: another key is pinned.
        """
        with self._db.write() as connection:
            rental = known_rental(connection, provider, instance_id)
            pinned = pinned_key(connection, rental)
            if pinned is not None and pinned != host_key:
                raise LedgerConflict(f"{rental.node} has another host key pinned", where=f"{provider} {instance_id}")
            change_rental(connection, rental, host_key=host_key)

    def pin_jump_key(self, provider: str, instance_id: str, host_key: str) -> None:
        """Trust this key of the host that the rental is reached through, for the life of the rental.

        Raises:
            LedgerConflict: another key is pinned, or it is reached directly.
        """
        with self._db.write() as connection:
            rental = known_rental(connection, provider, instance_id)
            jump = rental.ssh.jump if rental.ssh else None
            if jump is None or jump.host_key not in {None, host_key}:
                raise LedgerConflict(
                    f"{rental.node} is reached through another host", where=f"{provider} {instance_id}"
                )
            assert rental.ssh is not None
            change_rental(
                connection, rental, ssh=told_endpoint(replace(rental.ssh, jump=replace(jump, host_key=host_key)))
            )

    def set_serving(
        self,
        provider: str,
        instance_id: str,
        serving: Serving,
        *,
        settings: Mapping[str, str] | None = None,
        note: str | None = None,
    ) -> None:
        """Store what the node does for callers; settings and note stay as they are when left out."""
        values: dict[str, Any] = {"serving": serving}
        if settings is not None:
            values["settings"] = dict(settings)
        if note is not None:
            values["note"] = note
        with self._db.write() as connection:
            rental = known_rental(connection, provider, instance_id)
            change_rental(connection, rental, **values)
            if serving is not rental.serving:
                self._log(connection, rental.fleet, rental.node, "serving", {"serving": serving, "note": note})

    def set_fingerprint(self, provider: str, instance_id: str, fingerprint: Mapping[str, str]) -> None:
        """Store what the node said of itself: GPUs, driver, disk, and an address where its provider told none."""
        with self._db.write() as connection:
            rental = known_rental(connection, provider, instance_id)
            address = rental.private_ip or fingerprint.get("private_ip")
            change_rental(connection, rental, fingerprint=dict(fingerprint), private_ip=address)

    def rentals(self, fleet: str | None = None, *, live_only: bool = True) -> list[Rental]:
        """Rentals by their start; live ones are those not yet confirmed gone."""
        wanted = select(RENTALS).order_by(RENTALS.c.rental_id)
        if fleet is not None:
            wanted = wanted.where(RENTALS.c.fleet == fleet)
        if live_only:
            wanted = wanted.where(RENTALS.c.ended_at.is_(None))
        with self._db.read() as connection:
            return [to_rental(row) for row in connection.execute(wanted).mappings()]

    def rental(self, provider: str, instance_id: str) -> Rental | None:
        """One rental, live or not."""
        with self._db.read() as connection:
            return last_rental(connection, provider, instance_id)

    def hold_extras(self, provider: str, parent: str, extras: Iterable[Extra], *, fleet: str) -> None:
        """Owe what came with a cluster, or with an instance that does not tell of it, for as long as that is owed."""
        if not (wanted := list(extras)):
            return
        with self._db.write() as connection:
            owners = (open_one(connection, provider, kind, parent) for kind in (ExtraKind.CLUSTER, INSTANCE))
            state = next((owner.state for owner in owners if owner), ObligationState.ENDING)
            for extra in wanted:
                if open_one(connection, provider, extra.kind, extra.ref) is None:
                    self._oblige(
                        connection,
                        provider,
                        extra.ref,
                        fleet,
                        f"came with {parent}",
                        kind=extra.kind,
                        state=state,
                        parent=parent,
                        usd_per_hour=extra.usd_per_hour,
                    )

    def cluster_of(self, key: str) -> str | None:
        """The provider's id of the cluster that a create call made, while it is not confirmed gone."""
        wanted = select(OBLIGATIONS.c.ref).where(
            OBLIGATIONS.c.kind == ExtraKind.CLUSTER.value,
            OBLIGATIONS.c.parent == key,
            OBLIGATIONS.c.closed_at.is_(None),
        )
        with self._db.read() as connection:
            cluster: str | None = connection.execute(wanted.order_by(OBLIGATIONS.c.obligation_id)).scalar()
            return cluster

    def _first_row(self, record: IntentRecord, instance: Instance) -> dict[str, Any]:
        intent = record.intent
        started = aware(instance.created_at) or record.sent_at or record.opened_at
        rate = intent.usd_per_hour if rate_of(instance) is None else instance.usd_per_hour
        return {
            "key": intent.key,
            "fleet": intent.fleet,
            "provider": instance.provider,
            "account": intent.account,
            "instance_id": instance.instance_id,
            "offer_id": intent.offer_id,
            "gpu": instance.gpu or intent.gpu,
            "region": instance.region or intent.region,
            "rates": [[started.isoformat(), str(rate)]],
            "started_at": started,
            "deadline_at": intent.deadline_at,
            "billing_increment_s": intent.billing_increment_s,
            "min_rental_s": intent.min_rental_s,
            "runtime": intent.runtime,
            "serving": Serving.STARTING,
            "settings": {},
            "fingerprint": {},
            "note": "",
            **reported(instance),
            "host_key": instance.ssh.host_key if instance.ssh else None,
        }

    def _hold(self, connection: Connection, rental: Rental) -> None:
        state = ObligationState.ENDING if rental.duplicate else ObligationState.HELD
        reason = f"a second instance for {rental.key}" if rental.duplicate else f"rented for {rental.node}"
        self._oblige(
            connection,
            rental.provider,
            rental.instance_id,
            rental.fleet,
            reason,
            state=state,
            parent=rental.cluster_id,
        )
        said = {"key": rental.key, "instance": rental.instance_id, "usd_per_hour": str(rental.usd_per_hour)}
        self._log(connection, rental.fleet, rental.node, "rented", said)

    def _hold_extras(self, connection: Connection, rental: Rental, instance: Instance) -> None:
        """What came with an instance is owed as long as that is, and ends after it."""
        for extra in instance.extras:
            known = open_one(connection, rental.provider, extra.kind, extra.ref)
            if known is None:
                owner = open_one(connection, rental.provider, INSTANCE, rental.instance_id)
                self._oblige(
                    connection,
                    rental.provider,
                    extra.ref,
                    rental.fleet,
                    f"came with {rental.node}",
                    kind=extra.kind,
                    state=owner.state if owner else ObligationState.ENDING,
                    parent=rental.instance_id,
                    usd_per_hour=extra.usd_per_hour,
                )

    def _settle_with_rental(self, connection: Connection, record: IntentRecord) -> None:
        if record.state in HAS_RENTAL:
            return
        answered = record.state in {IntentState.PREPARED, IntentState.SENT}
        outcome = IntentState.CREATED if answered else IntentState.FOUND
        self._move(connection, record, {"state": outcome, "settled_at": self._now()})

    def _update(self, connection: Connection, rental: Rental, instance: Instance) -> Rental:
        values = {name: value for name, value in reported(instance).items() if value is not None}
        values |= self._new_terms(rental, instance)
        if "ssh" in values and instance.ssh is not None:
            values["ssh"] = told_endpoint(with_pinned_jump(instance.ssh, rental.ssh))
        if instance.ssh is not None and instance.ssh.host_key is not None and pinned_key(connection, rental) is None:
            values["host_key"] = instance.ssh.host_key
        if not rental.live and instance.state.may_bill and aware(instance.ended_at) is None:
            values |= {"ended_at": None, "meter_stopped_at": None}
            self._reopen(connection, rental)
        if rental.live:
            self._hold_extras(connection, rental, instance)
        if instance.state is not rental.state:
            self._log(
                connection,
                rental.fleet,
                rental.node,
                "state",
                {"state": instance.state, "raw": instance.raw_state, "message": instance.message},
            )
        return change_rental(connection, rental, **values)

    def _new_terms(self, rental: Rental, instance: Instance) -> dict[str, Any]:
        """Start and price, where the provider now says something else."""
        terms: dict[str, Any] = {}
        rates = [[rate.since.isoformat(), str(rate.usd_per_hour)] for rate in rental.rates]
        started = aware(instance.created_at)
        if started is not None and started != rental.started_at:
            rates[0][0] = started.isoformat()
            terms |= {"started_at": started, "rates": rates}
        rate = rate_of(instance)
        if rate is not None and rate != rental.usd_per_hour:
            terms["rates"] = [*rates, [self._now().isoformat(), str(rate)]]
        return terms

    def _reopen(self, connection: Connection, rental: Rental) -> None:
        reason = "reported alive after it was confirmed gone"
        self._oblige(connection, rental.provider, rental.instance_id, rental.fleet, reason)
        self._log(connection, rental.fleet, rental.node, "back", {"instance": rental.instance_id})
