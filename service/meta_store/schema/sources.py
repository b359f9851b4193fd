"""Describe the tables of sources and of their pending external clean-ups. `schema.core` describes the main tables."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    and_,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from service.meta_store.schema.core import INSTANT, METADATA, SCHEMA, fragment

_ZERO: Final = text("0")

source = Table(
    "source",
    METADATA,
    Column("relation", BigInteger, ForeignKey(f"{SCHEMA}.relation.id"), primary_key=True, autoincrement=False),
    Column("options", JSONB, nullable=False),
    Column("secret", Text, nullable=False),
    Column("publication", Text, nullable=False),
    Column("slot", Text, nullable=False),
    Column("owns_publication", Boolean, nullable=False),
    Column("offset", Text),
    Column("undecided", JSONB, nullable=False, server_default=text("'[]'")),
    Column("readable_after", BigInteger, nullable=False, server_default=_ZERO),
    Column("waiting", Text),
    Column("lag_bytes", BigInteger),
    Column("retained_bytes", BigInteger),
    Column("commit_lag_ms", Double),
    Column("changes", BigInteger, nullable=False, server_default=_ZERO),
    Column("reported_at", INSTANT),
    Column("retention", Text),
)
Index("source_secret", source.c.secret)
Index("fragment_source", fragment.c.source, postgresql_where=fragment.c.source.is_not(None))

lake_source = Table(
    "lake_source",
    METADATA,
    Column("relation", BigInteger, ForeignKey(f"{SCHEMA}.relation.id"), primary_key=True, autoincrement=False),
    Column("connector", JSONB, nullable=False),
)
AWAY: Final = and_(fragment.c.source_waiting.is_not(None), fragment.c.kind == literal_column("'SOURCE_SCAN'"))
"""Whether the storage is away from which a table is read in place."""
Index("fragment_source_waiting", fragment.c.id, postgresql_where=AWAY)

source_cleanup = Table(
    "source_cleanup",
    METADATA,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("source", BigInteger, ForeignKey(f"{SCHEMA}.source.relation", ondelete="CASCADE"), nullable=False),
    Column("what", Text, nullable=False),
    Column("external_schema", Text),
    Column("external_table", Text),
    Column("asked_at", INSTANT, nullable=False),
    Column("due", INSTANT, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=_ZERO),
    Column("error", Text),
    UniqueConstraint(
        *("source", "what", "external_schema", "external_table"),
        name="source_cleanup_once",
        postgresql_nulls_not_distinct=True,
    ),
)
Index("source_cleanup_due", source_cleanup.c.due)
