"""Describe the tables of API tokens and of the audit trail. `schema.core` describes the main tables."""

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Identity, Index, LargeBinary, Table, Text, false

from service.meta_store.schema.core import INSTANT, METADATA

api_token = Table(
    "api_token",
    METADATA,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("expires_at", INSTANT),
    Column("last_used_at", INSTANT),
    Column("revoked_at", INSTANT),
)
UNREVOKED: Final = api_token.c.revoked_at.is_(None)
Index("api_token_name_is_used_once", api_token.c.name, unique=True, postgresql_where=UNREVOKED)

audit_entry = Table(
    "audit_entry",
    METADATA,
    Column("id", BigInteger, Identity(always=False), primary_key=True),
    Column("at", INSTANT, nullable=False),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("statement", Text),
    Column("target", Text),
    Column("outcome", Text, nullable=False),
    Column("discreet", Boolean, nullable=False, server_default=false()),
    Column("request_id", Text),
    Column("trace_id", Text),
)
Index("audit_entry_age", audit_entry.c.at)
Index("audit_entry_actor", audit_entry.c.actor, audit_entry.c.id)
