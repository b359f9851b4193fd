"""Describe the meta store's tables, for statements and for Alembic's comparison. The DDL is in `migrations`.

CHECK constraints are in the DDL only. Predicates of partial indexes are constants with literals, for statements too.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    and_,
    false,
    literal_column,
    not_,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

SCHEMA: Final = "tidefill"
METADATA: Final = MetaData(schema=SCHEMA)
INSTANT: Final = DateTime(timezone=True)
_ZERO: Final = text("0")
_FALSE: Final = false()


def _literals(*words: str) -> list[object]:
    return [literal_column(f"'{word}'") for word in words]


def _reference(target: str, *, cascade: bool = False) -> ForeignKey:
    return ForeignKey(f"{SCHEMA}.{target}.id", ondelete="CASCADE" if cascade else None)


def _identity() -> Column[int]:
    return Column("id", BigInteger, Identity(always=False), primary_key=True)


system_parameter = Table(
    "system_parameter",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

secret = Table(
    "secret",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

leader_lease = Table(
    "leader_lease",
    METADATA,
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", INSTANT, nullable=False),
    UniqueConstraint("term", name="leader_lease_term_is_unique"),
)

schema_floor = Table(
    "schema_floor",
    METADATA,
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("floor", Text, nullable=False),
)

graph = Table(
    "graph",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("status", Text, nullable=False),
    Column("generation", BigInteger, nullable=False, server_default=_ZERO),
    Column("committed", BigInteger, nullable=False, server_default=_ZERO),
    Column("published", BigInteger, nullable=False, server_default=_ZERO),
    Column("newest", BigInteger, nullable=False, server_default=_ZERO),
    Column("worker", Text),
    Column("last_injected_at", INSTANT),
    Column("attempts", Integer, nullable=False, server_default=_ZERO),
    Column("recovering_since", INSTANT),
    Column("recoveries", BigInteger, nullable=False, server_default=_ZERO),
    Column("last_error", Text),
    Column("paused", Boolean, nullable=False, server_default=_FALSE),
    Column("recover_asked", Text),
    Column("paused_since", INSTANT),
    Column("paused_by", Text),
)

barrier = Table(
    "barrier",
    METADATA,
    Column("graph", BigInteger, _reference("graph"), primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("prev", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("worker", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("mutation", JSONB(none_as_null=True)),
    Column("payload", JSONB(none_as_null=True)),
    Column("answer", JSONB(none_as_null=True)),
    Column("failure", Text),
    Column("timings", JSONB, nullable=False, server_default=text("'{}'")),
    Column("injected_at", INSTANT, nullable=False),
    Column("collected_at", INSTANT),
    Column("committed_at", INSTANT),
    Column("published_at", INSTANT),
)
IN_FLIGHT: Final = barrier.c.state.in_(_literals("INJECTED", "COLLECTED", "FAILED"))
UNCOMMITTED: Final = barrier.c.state.in_(_literals("INJECTED", "COLLECTED", "FAILED", "ATTACHED"))
UNPUBLISHED: Final = and_(barrier.c.state == literal_column("'COMMITTED'"), barrier.c.published_at.is_(None))
Index("barrier_one_in_flight", barrier.c.graph, unique=True, postgresql_where=IN_FLIGHT)
Index("barrier_uncommitted", barrier.c.graph, barrier.c.epoch, postgresql_where=UNCOMMITTED)
Index("barrier_unpublished", barrier.c.graph, barrier.c.epoch, postgresql_where=UNPUBLISHED)

command = Table(
    "command",
    METADATA,
    _identity(),
    Column("graph", BigInteger, _reference("graph"), nullable=False),
    Column("mutation", JSONB(none_as_null=True)),
    Column("stops", Boolean, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("asked_at", INSTANT, nullable=False),
    Column("epoch", BigInteger),
    Column("done", Boolean, nullable=False, server_default=_FALSE),
    Column("error", Text),
    Column("part_of", BigInteger),
    Column("hurried", Boolean, nullable=False, server_default=text("true")),
)
UNFINISHED: Final = not_(command.c.done)
Index("command_part", command.c.part_of, postgresql_where=command.c.part_of.is_not(None))
Index("command_unfinished", command.c.graph, command.c.id, postgresql_where=UNFINISHED)

relation = Table(
    "relation",
    METADATA,
    _identity(),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("vnode_count", Integer, nullable=False),
    Column("key_count", BigInteger, nullable=False, server_default=_ZERO),
    *(Column(name, Boolean, nullable=False, server_default=_FALSE) for name in ("shown", "dropped")),
    Column("held_back", Text),
    Column("owner", BigInteger, _reference("relation")),
    Column("selects_all", Boolean),
)
Index("relation_owner", relation.c.owner, postgresql_where=relation.c.owner.is_not(None))
TAKEN: Final = not_(relation.c.dropped)
UNSHOWN: Final = and_(not_(relation.c.shown), TAKEN)
Index("relation_name_is_taken_once", relation.c.name, unique=True, postgresql_where=TAKEN)
Index("relation_unshown", relation.c.id, postgresql_where=UNSHOWN)

relation_column = Table(
    "relation_column",
    METADATA,
    Column("relation", BigInteger, _reference("relation", cascade=True), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("nullable", Boolean, nullable=False),
    Column("hidden", Boolean, nullable=False),
    Column("key_position", Integer),
    Column("descending", Boolean, nullable=False, server_default=_FALSE),
    Column("length", Integer),
    Column("default_value", Text),
    UniqueConstraint("relation", "name", name="relation_column_name_is_unique"),
    UniqueConstraint("relation", "key_position", name="relation_column_key_position_is_unique"),
)

view_reference = Table(
    "view_reference",
    METADATA,
    Column("reader", BigInteger, _reference("relation"), primary_key=True),
    Column("relation", BigInteger, _reference("relation"), primary_key=True),
)
Index("view_reference_relation", view_reference.c.relation)

cleanup = Table(
    "cleanup",
    METADATA,
    Column("relation", BigInteger, _reference("relation"), primary_key=True),
    Column("name", Text, nullable=False),
    Column("held", Text),
)

job = Table(
    "job",
    METADATA,
    _identity(),
    Column("relation", BigInteger, _reference("relation"), nullable=False),
    Column("graph", BigInteger, _reference("graph"), nullable=False, server_default=text("1")),
    Column("statement", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("initialized_at", INSTANT, nullable=False),
    Column("started_at", INSTANT),
    Column("finished_at", INSTANT),
    Column("error", Text),
    Column("failures", Integer, nullable=False, server_default=_ZERO),
    Column("recoveries", Integer, nullable=False, server_default=_ZERO),
    Column("progress_text", Text),
    Column("progress", JSONB(none_as_null=True)),
    Column("backfill_order", JSONB, nullable=False, server_default=text("'[]'")),
    Column("parallelism", Text),
    Column("backfill_parallelism", Text),
    Column("rescale_due", Boolean, nullable=False, server_default=_FALSE),
    Column("snapshot_epoch", BigInteger),
    Column("state_since", INSTANT),
    Column("serverless", Boolean, nullable=False, server_default=_FALSE),
    Column("preparing", Text),
    Column("resource_group", Text),
    Column("traceparent", Text),
    Column("created_by", Text, nullable=False, server_default=text("''")),
    Column("own_graph", Text),
    Column("plan_bytes", BigInteger, nullable=False, server_default=_ZERO),
    UniqueConstraint("relation", name="job_creates_one_relation"),
)
TRACED: Final = job.c.traceparent.is_not(None)
Index("job_traced", job.c.id, postgresql_where=TRACED)
BLAMED: Final = job.c.failures > literal_column("0")
Index("job_state", job.c.state, job.c.id)
Index("job_starts", job.c.created_by, job.c.started_at)
Index("job_blamed", job.c.id, postgresql_where=BLAMED)
RESCALE_DUE: Final = and_(job.c.rescale_due, job.c.state.in_(_literals("Creating", "Created")))
"""Running jobs whose scans may have another number of actors than their parallelism demands."""
Index("job_rescale_due", job.c.id, postgresql_where=RESCALE_DUE)

GRAPH_ID: Final = Sequence("graph_id", start=2, metadata=METADATA)
snapshot_backfill = Table(
    "snapshot_backfill",
    METADATA,
    Column("job", BigInteger, _reference("job", cascade=True), primary_key=True, autoincrement=False),
    Column("graph", BigInteger, _reference("graph"), nullable=False, unique=True),
    Column("consumed", BigInteger),
    Column("indexed", Boolean, nullable=False),
    Column("merged", Boolean, nullable=False, server_default=_FALSE),
    Column("start_failures", Integer, nullable=False, server_default=_ZERO),
    Column("start_error", Text),
    Column("start_due", INSTANT),
    Column("index_failures", Integer, nullable=False, server_default=_ZERO),
    Column("index_error", Text),
    Column("index_due", INSTANT),
)

fragment = Table(
    "fragment",
    METADATA,
    _identity(),
    Column("job", BigInteger, _reference("job", cascade=True), nullable=False),
    Column("kind", Text, nullable=False),
    Column("upstream", BigInteger, _reference("relation")),
    Column("query", JSONB(none_as_null=True)),
    Column("scan_type", Text),
    Column("rate_limit", BigInteger),
    Column("waiting", Boolean, nullable=False, server_default=_FALSE),
    Column("auto", Boolean, nullable=False, server_default=_FALSE),
    Column("limit_epoch", BigInteger),
    Column("source", BigInteger, ForeignKey(f"{SCHEMA}.source.relation")),
    Column("cdc", JSONB(none_as_null=True)),
    Column("added", Boolean, nullable=False, server_default=_FALSE),
    Column("broken", Text),
    Column("broken_since", INSTANT),
    Column("source_waiting", Text),
    Column("source_waiting_since", INSTANT),
    Column("held_limit", BigInteger),
    Column("limit_by", Text),
    Column("output", BigInteger, _reference("relation")),
    Column("connector", JSONB(none_as_null=True)),
)
PROJECTS: Final = fragment.c.query["is_projection"].as_boolean()
"""Whether the stage that a fragment computes is a projection. NULL if it computes none."""
STAGED: Final = PROJECTS.is_(False)
Index("fragment_auto", fragment.c.id, postgresql_where=fragment.c.auto)
Index("fragment_job", fragment.c.job, fragment.c.id)
Index("fragment_upstream", fragment.c.upstream, postgresql_where=fragment.c.upstream.is_not(None))
Index("fragment_waiting", fragment.c.job, postgresql_where=fragment.c.waiting)

actor = Table(
    "actor",
    METADATA,
    _identity(),
    Column("fragment", BigInteger, _reference("fragment", cascade=True), nullable=False),
    Column("runs", JSONB, nullable=False),
    Column("rows", BigInteger, nullable=False, server_default=_ZERO),
    Column("finished", Boolean, nullable=False, server_default=_FALSE),
)
Index("actor_fragment", actor.c.fragment, actor.c.id)

backfill_position = Table(
    "backfill_position",
    METADATA,
    Column("fragment", BigInteger, _reference("fragment", cascade=True), primary_key=True),
    Column("vnode", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("key", JSONB(none_as_null=True)),
    Column("rows", BigInteger, nullable=False),
)

ENGINE_WORK: Final = ("spark_jobs", "spark_rows", "store_jobs", "store_rows")
"""The jobs and rows of each engine, in all epochs."""
scan_progress = Table(
    "scan_progress",
    METADATA,
    Column("fragment", BigInteger, _reference("fragment", cascade=True), primary_key=True),
    Column("rows", BigInteger, nullable=False, server_default=_ZERO),
    Column("rate", Double, nullable=False, server_default=_ZERO),
    Column("finished", Boolean, nullable=False, server_default=_FALSE),
    Column("at", INSTANT),
    Column("total", BigInteger),
    *(Column(name, BigInteger, nullable=False, server_default=_ZERO) for name in ENGINE_WORK),
)
OPEN: Final = not_(scan_progress.c.finished)
Index("scan_progress_open", scan_progress.c.fragment, postgresql_where=OPEN)

STATEMENT_ID: Final = Sequence("statement_id", metadata=METADATA)
statement = Table(
    "statement",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("body", JSONB, nullable=False),
    Column("accepted_at", INSTANT, nullable=False),
    Column("staged_rows", BigInteger),
    Column("applied_rows", BigInteger, nullable=False, server_default=_ZERO),
    Column("affected", BigInteger, nullable=False, server_default=_ZERO),
    Column("carried_by", BigInteger),
    Column("carried_to", BigInteger),
    Column("epoch", BigInteger),
    Column("finished_at", INSTANT),
    Column("error", Text),
    Column("sqlstate", Text),
    Column("staging", Boolean, nullable=False),
    Column("relation", BigInteger),
    Column("bytes", BigInteger, nullable=False, server_default=_ZERO),
    Column("tries", SmallInteger, nullable=False, server_default=_ZERO),
    Column("caller", Text),
)
WAITING: Final = and_(statement.c.carried_by.is_(None), statement.c.finished_at.is_(None))
Index("statement_waiting", statement.c.id, postgresql_where=WAITING)
Index("statement_carried", statement.c.carried_by, postgresql_where=statement.c.carried_by.is_not(None))
Index("statement_finished", statement.c.finished_at, postgresql_where=statement.c.finished_at.is_not(None))
Index("statement_staging", statement.c.id, postgresql_where=statement.c.staging)

event = Table(
    "event",
    METADATA,
    _identity(),
    Column("at", INSTANT, nullable=False),
    Column("kind", Text, nullable=False),
    Column("facts", JSONB, nullable=False),
)

idempotency_key = Table(
    "idempotency_key",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("claimed_at", INSTANT, nullable=False),
    Column("response", JSONB(none_as_null=True)),
    Column("claim", BigInteger, nullable=False, server_default=_ZERO),
    Column("held_until", INSTANT, nullable=False, server_default=text("'-infinity'")),
    Column("statement", BigInteger),
)
Index("idempotency_key_age", idempotency_key.c.claimed_at)
KEY_UNANSWERED: Final = idempotency_key.c.response.is_(None)
KEY_CLAIM: Final = Sequence("key_claim", metadata=METADATA)
Index("idempotency_key_claim", idempotency_key.c.claim, postgresql_where=KEY_UNANSWERED)
Index("idempotency_key_statement", idempotency_key.c.statement, postgresql_where=KEY_UNANSWERED)
