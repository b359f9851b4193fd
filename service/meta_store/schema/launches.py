"""Describe the table of launches. `schema.core` describes the main tables."""

from typing import Final

from sqlalchemy import BigInteger, Column, DateTime, Index, Integer, Table, Text

from service.meta_store.schema.core import METADATA

_INSTANT: Final = DateTime(timezone=True)

launch = Table(
    "launch",
    METADATA,
    Column("worker", Text, primary_key=True),
    # No reference: a pod may be there for longer than its graph.
    Column("graph", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("asked_at", _INSTANT, nullable=False),
    Column("posted_at", _INSTANT),
    Column("held_cause", Text),
    Column("held_text", Text),
    Column("held_since", _INSTANT),
    Column("ended_at", _INSTANT),
    Column("reason", Text),
    Column("failures", Integer),
    Column("due", _INSTANT),
)
Index("launch_of_a_graph_is_one_at_a_time", launch.c.graph, unique=True, postgresql_where=launch.c.ended_at.is_(None))
