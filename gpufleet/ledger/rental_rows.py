"""Rows of the rentals table, read and changed inside a caller's transaction."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, RowMapping, select, update

from gpufleet.domain.market import Instance
from gpufleet.domain.nodes import NodeName
from gpufleet.ledger.errors import LedgerConflict
from gpufleet.ledger.records import IntentRecord, Rate, Rental
from gpufleet.ledger.reports import endpoint_of
from gpufleet.ledger.schema import RENTALS


def last_rental(connection: Connection, provider: str, instance_id: str) -> Rental | None:
    """The newest rental of an instance id."""
    wanted = select(RENTALS).where(RENTALS.c.provider == provider, RENTALS.c.instance_id == instance_id)
    row = connection.execute(wanted.order_by(RENTALS.c.rental_id.desc()).limit(1)).mappings().first()
    return None if row is None else to_rental(row)


def known_rental(connection: Connection, provider: str, instance_id: str) -> Rental:
    """The same.

    Raises:
        LedgerConflict: there is none.
    """
    rental = last_rental(connection, provider, instance_id)
    if rental is None:
        raise LedgerConflict(f"{provider} {instance_id} is in no record of ours")
    return rental


def pinned_key(connection: Connection, rental: Rental) -> str | None:
    """The pinned host key, which may be there before the rental's address is."""
    wanted = select(RENTALS.c.host_key).where(RENTALS.c.rental_id == rental.rental_id)
    key: str | None = connection.execute(wanted).scalar()
    return key


def any_for(connection: Connection, key: str, node: NodeName) -> bool:
    """Whether the key has made something for this node already."""
    wanted = select(RENTALS.c.rental_id).where(RENTALS.c.key == key, RENTALS.c.node == node)
    return connection.execute(wanted).first() is not None


def node_for(connection: Connection, record: IntentRecord, instance: Instance) -> NodeName:
    """The node that an instance was made for: a cluster's member by its rank, else the first one still without."""
    nodes = record.intent.nodes
    if instance.rank is not None and 0 <= instance.rank < len(nodes):
        return nodes[instance.rank]
    taken = connection.execute(select(RENTALS.c.node).where(RENTALS.c.key == record.intent.key)).scalars().all()
    return next((node for node in nodes if node not in taken), nodes[0])


def rental_by_id(connection: Connection, rental_id: int) -> Rental:
    """One row."""
    row = connection.execute(select(RENTALS).where(RENTALS.c.rental_id == rental_id)).mappings().one()
    return to_rental(row)


def change_rental(connection: Connection, rental: Rental, **values: object) -> Rental:
    """Write columns; returns the rental as it is then."""
    connection.execute(update(RENTALS).where(RENTALS.c.rental_id == rental.rental_id).values(**values))
    return rental_by_id(connection, rental.rental_id)


def to_rental(row: RowMapping) -> Rental:
    """A row as a value."""
    fields = dict(row)
    host_key = fields.pop("host_key")
    del fields["meter_stopped_at"]
    if fields["ssh"] is not None:
        fields["ssh"] = endpoint_of(fields["ssh"], host_key)
    fields["rates"] = tuple(Rate(datetime.fromisoformat(at), Decimal(usd)) for at, usd in fields["rates"])
    return Rental(**fields)
