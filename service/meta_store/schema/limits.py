"""Describe the tables of adaptive limits and of slow views. `schema.core` describes the main tables."""

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
    false,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from service.meta_store.schema.core import INSTANT, METADATA, SCHEMA

_ZERO: Final = text("0")
_FALSE: Final = false()
_FRAGMENT: Final = f"{SCHEMA}.fragment.id"

adaptive_limit = Table(
    "adaptive_limit",
    METADATA,
    Column("fragment", BigInteger, ForeignKey(_FRAGMENT, ondelete="CASCADE"), primary_key=True),
    Column("present", Double, nullable=False),
    Column("threshold", Double),
    Column("falling", Boolean, nullable=False, server_default=_FALSE),
    Column("quiet", Integer, nullable=False, server_default=_ZERO),
    Column("since", BigInteger, nullable=False, server_default=_ZERO),
    Column("seen", BigInteger, nullable=False, server_default=_ZERO),
    Column("rows", JSONB, nullable=False, server_default=text("'{}'")),
    Column("looked_at", INSTANT),
    Column("read_at", INSTANT),
    Column("move", Text),
    Column("signal", Text),
    Column("reason", Text),
    Column("readings", JSONB, nullable=False, server_default=text("'[]'")),
)

limit_change = Table(
    "limit_change",
    METADATA,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("fragment", BigInteger, ForeignKey(_FRAGMENT, ondelete="CASCADE"), nullable=False),
    Column("at", INSTANT, nullable=False),
    Column("epoch", BigInteger),
    Column("before", BigInteger, nullable=False),
    Column("after", BigInteger, nullable=False),
    Column("signal", Text),
    Column("reason", Text, nullable=False),
)
Index("limit_change_fragment", limit_change.c.fragment, limit_change.c.id)

unstoppable_statement = Table(
    "unstoppable_statement",
    METADATA,
    Column("caller", Text, primary_key=True),
    Column("statement", BigInteger, nullable=False),
    Column("at", INSTANT, nullable=False),
    Column("number", Integer, nullable=False),
)

slow_view = Table(
    "slow_view",
    METADATA,
    Column("caller", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("at", INSTANT, nullable=False),
)
