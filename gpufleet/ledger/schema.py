"""Tables, and how an older ledger becomes a current one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    false,
    insert,
    inspect,
    select,
    text,
    update,
)

from gpufleet.domain.market import InstanceState, Runtime
from gpufleet.domain.status import Serving
from gpufleet.ledger.columns import Json, Node, Nodes, Shape, Usd, UtcTime, Word, Words
from gpufleet.ledger.errors import LedgerUnreadable
from gpufleet.ledger.records import IntentKind, IntentState, ObligationState

METADATA = MetaData()

SCHEMA_VERSION = Table("schema_version", METADATA, Column("version", Integer, nullable=False))

FLEETS = Table(
    "fleets",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("spec_text", Text, nullable=False),
    Column("spec_path", Text, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("running", Boolean, nullable=False, server_default=false()),
    Column("asked", Json, nullable=False, server_default="{}"),
    Column("asked_at", UtcTime),
)

ACCOUNTS = Table(
    "accounts",
    METADATA,
    Column("fleet", String(64), primary_key=True),
    Column("provider", String(64), primary_key=True),
    Column("account", Text, nullable=False),
    Column("options", Json, nullable=False),
)

INTENTS = Table(
    "intents",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("fleet", String(64), nullable=False, index=True),
    Column("node", Node, nullable=False),
    Column("provider", String(64), nullable=False),
    Column("account", Text, nullable=False),
    Column("offer_id", Text, nullable=False),
    Column("gpu", Shape, nullable=False),
    Column("usd_per_hour", Usd, nullable=False),
    Column("max_usd_per_hour", Usd, nullable=False),
    Column("region", Text, nullable=False),
    Column("deadline_at", UtcTime),
    Column("billing_increment_s", Integer, nullable=False),
    Column("min_rental_s", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("kind", Word(IntentKind), nullable=False, server_default=IntentKind.INSTANCE.value),
    Column("members", Nodes, nullable=False, server_default="[]"),
    Column("runtime", Word(Runtime), nullable=False, server_default=Runtime.DOCKER.value),
    Column("seen_before", Words),
    Column("state", Word(IntentState), nullable=False),
    Column("opened_at", UtcTime, nullable=False),
    Column("sent_at", UtcTime),
    Column("settled_at", UtcTime),
    Column("error", Text),
)

RENTALS = Table(
    "rentals",
    METADATA,
    Column("rental_id", Integer, primary_key=True),
    Column("key", String(64), ForeignKey("intents.key"), nullable=False),
    Column("fleet", String(64), nullable=False, index=True),
    Column("node", Node, nullable=False),
    Column("provider", String(64), nullable=False),
    Column("account", Text, nullable=False),
    Column("instance_id", Text, nullable=False),
    Column("offer_id", Text, nullable=False),
    Column("state", Word(InstanceState), nullable=False),
    Column("rates", Json, nullable=False),
    Column("gpu", Shape, nullable=False),
    Column("region", Text, nullable=False),
    Column("ssh", Json),
    Column("host_key", Text),
    Column("private_ip", Text),
    Column("host_id", Text),
    Column("started_at", UtcTime, nullable=False),
    Column("meter_stopped_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("deadline_at", UtcTime),
    Column("billing_increment_s", Integer, nullable=False),
    Column("min_rental_s", Integer, nullable=False),
    Column("serving", Word(Serving), nullable=False),
    Column("settings", Json, nullable=False),
    Column("fingerprint", Json, nullable=False),
    Column("note", Text, nullable=False),
    Column("duplicate", Boolean, nullable=False),
    Column("runtime", Word(Runtime), nullable=False, server_default=Runtime.DOCKER.value),
    Column("cluster_id", Text),
    Column("rank", Integer),
    Column("expires_at", UtcTime),
)
Index("rentals_once", RENTALS.c.provider, RENTALS.c.instance_id, RENTALS.c.key, unique=True)

OBLIGATIONS = Table(
    "obligations",
    METADATA,
    Column("obligation_id", Integer, primary_key=True),
    Column("provider", String(64), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("ref", Text, nullable=False),
    Column("fleet", String(64), nullable=False, index=True),
    Column("reason", Text, nullable=False),
    Column("state", Word(ObligationState), nullable=False),
    Column("opened_at", UtcTime, nullable=False),
    Column("ending_since", UtcTime),
    Column("gone_observations", Integer, nullable=False),
    Column("first_gone_at", UtcTime),
    Column("closed_at", UtcTime),
    Column("last_error", Text),
    Column("parent", Text),
    Column("usd_per_hour", Usd),
)
Index(
    "obligations_open_once",
    OBLIGATIONS.c.provider,
    OBLIGATIONS.c.kind,
    OBLIGATIONS.c.ref,
    unique=True,
    sqlite_where=OBLIGATIONS.c.closed_at.is_(None),
    postgresql_where=OBLIGATIONS.c.closed_at.is_(None),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("event_id", Integer, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("fleet", String(64), nullable=False, index=True),
    Column("node", Node),
    Column("kind", String(64), nullable=False),
    Column("data", Json, nullable=False),
)

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", Integer, primary_key=True),
    Column("fleet", String(64), nullable=False, index=True),
    Column("command", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("outcome", Text),
)

FACTS = Table("facts", METADATA, Column("name", String(64), primary_key=True), Column("value", Text, nullable=False))
"""What holds for the ledger as a whole, such as whose it is."""

CURRENT_VERSION = 3


def _add_clusters_and_extras(connection: Connection) -> None:
    """Version 2: clusters, containers as rentals, what providers keep beside instances, and the ledger's owner."""
    for statement in (
        "ALTER TABLE intents ADD COLUMN kind VARCHAR(32) DEFAULT 'instance' NOT NULL",
        "ALTER TABLE intents ADD COLUMN members TEXT DEFAULT '[]' NOT NULL",
        "ALTER TABLE intents ADD COLUMN runtime VARCHAR(32) DEFAULT 'docker' NOT NULL",
        "ALTER TABLE intents ADD COLUMN seen_before TEXT",
        "ALTER TABLE rentals ADD COLUMN runtime VARCHAR(32) DEFAULT 'docker' NOT NULL",
        "ALTER TABLE rentals ADD COLUMN cluster_id TEXT",
        "ALTER TABLE rentals ADD COLUMN rank INTEGER",
        "ALTER TABLE rentals ADD COLUMN expires_at TEXT",
        "ALTER TABLE obligations ADD COLUMN parent TEXT",
        "ALTER TABLE obligations ADD COLUMN usd_per_hour TEXT",
        "CREATE TABLE facts (name VARCHAR(64) NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
    ):
        connection.execute(text(statement))


def _add_what_was_asked(connection: Connection) -> None:
    """Version 3: whether a fleet is to run, and the counts that `scale` asked for. What has rentals is to run."""
    for statement in (
        "ALTER TABLE fleets ADD COLUMN running BOOLEAN DEFAULT false NOT NULL",
        "ALTER TABLE fleets ADD COLUMN asked TEXT DEFAULT '{}' NOT NULL",
        "ALTER TABLE fleets ADD COLUMN asked_at TEXT",
        "UPDATE fleets SET running = true WHERE name IN (SELECT fleet FROM rentals WHERE ended_at IS NULL)",
    ):
        connection.execute(text(statement))


Migration = Callable[[Connection], None]
MIGRATIONS: Mapping[int, Migration] = {1: _add_clusters_and_extras, 2: _add_what_was_asked}
"""Version to the step that leads to the next one. A released step is never edited."""


def version_of(connection: Connection) -> int | None:
    """The ledger's schema version; None for an empty database."""
    if not inspect(connection).has_table(SCHEMA_VERSION.name):
        return None
    version: int | None = connection.execute(select(SCHEMA_VERSION.c.version)).scalar()
    if version is None:
        raise LedgerUnreadable("the ledger does not say which version it is", hint="restore it from a copy")
    return version


def check_not_newer(version: int | None, current: int = CURRENT_VERSION) -> None:
    """Refuse a ledger that a later gpufleet has written: this one would misread it.

    Raises:
        LedgerUnreadable: it is newer.
    """
    if version is not None and version > current:
        raise LedgerUnreadable(
            f"the ledger has schema version {version}; this gpufleet knows versions up to {current}",
            hint="upgrade gpufleet",
        )


def migrate(
    connection: Connection, migrations: Mapping[int, Migration] = MIGRATIONS, current: int = CURRENT_VERSION
) -> None:
    """Create the tables, or bring older ones forward, in the caller's transaction."""
    version = version_of(connection)
    check_not_newer(version, current)
    if version is None:
        METADATA.create_all(connection)
        connection.execute(insert(SCHEMA_VERSION).values(version=current))
        return
    for step in range(version, current):
        migrations[step](connection)
    connection.execute(update(SCHEMA_VERSION).values(version=current))
