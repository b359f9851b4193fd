"""Describe the table of launches. `schema.core` describes the main tables."""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from service.meta_store.schema.core import INSTANT, METADATA

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
