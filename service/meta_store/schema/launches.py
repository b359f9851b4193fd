"""Describe the tables of workers, what they are asked, and their launches. `schema.core` describes the main tables."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Interval,
    SmallInteger,
    Table,
    Text,
    false,
    not_,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from service.meta_store.schema.core import INSTANT, METADATA, SCHEMA

worker = Table(
    "worker",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("graph", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("parallelism", Integer, nullable=False),
    Column("registered_at", INSTANT, nullable=False),
    Column("seen_at", INSTANT, nullable=False),
    Column("given_up", Boolean, nullable=False, server_default=false()),
    Column("leaving", Boolean, nullable=False, server_default=false()),
)
Index("worker_of_graph", worker.c.graph, postgresql_where=not_(worker.c.given_up))

request = Table(
    "request",
    METADATA,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("graph", BigInteger, ForeignKey(f"{SCHEMA}.graph.id"), nullable=False),
    Column("body", JSONB, nullable=False),
    Column("asked_at", INSTANT, nullable=False),
    Column("worker", Text, ForeignKey(f"{SCHEMA}.worker.id")),
    Column("claimed_at", INSTANT),
    Column("response", JSONB(none_as_null=True)),
    Column("tries", SmallInteger, nullable=False, server_default=text("0")),
    Column("hold", Interval),
    Column("withdrawn", Boolean, nullable=False, server_default=false()),
)
UNANSWERED: Final = request.c.response.is_(None)
Index("request_unanswered", request.c.graph, request.c.id, postgresql_where=UNANSWERED)

launch = Table(
    "launch",
    METADATA,
    Column("worker", Text, primary_key=True),
    # No reference: a pod may be there for longer than its graph.
    Column("graph", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("asked_at", INSTANT, nullable=False),
    Column("posted_at", INSTANT),
    Column("held_cause", Text),
    Column("held_text", Text),
    Column("held_since", INSTANT),
    Column("ended_at", INSTANT),
    Column("reason", Text),
    Column("failures", Integer),
    Column("due", INSTANT),
)
Index("launch_attempt_of_a_graph_is_one", launch.c.graph, launch.c.attempt, unique=True)
