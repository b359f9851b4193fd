"""Describe the table of the state store's indexes. Named indexes are rows of `relation`."""

from typing import Final

from sqlalchemy import BigInteger, Column, ForeignKey, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from service.meta_store.schema.core import INSTANT, METADATA, SCHEMA

_NONE: Final = text("'{}'::bigint[]")

stored_index = Table(
    "stored_index",
    METADATA,
    Column("relation", BigInteger, ForeignKey(f"{SCHEMA}.relation.id"), primary_key=True, autoincrement=False),
    Column("shape", JSONB, primary_key=True),
    Column("state", Text, nullable=False),
    Column("bytes", BigInteger),
    Column("error", Text),
    Column("named", ARRAY(BigInteger), nullable=False, server_default=_NONE),
    Column("views", ARRAY(BigInteger), nullable=False, server_default=_NONE),
    Column("asked_at", INSTANT, nullable=False),
    Column("built_at", INSTANT),
)
