"""Describe the tables of workers and their launches. `schema.core` describes the main tables."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, Text, false, not_

from service.meta_store.schema.core import INSTANT, METADATA

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
