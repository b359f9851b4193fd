"""How Alembic runs: one deployer at a time, one transaction a migration, never waiting long for a lock that users hold.

The URL comes from the attribute `url` (see `service.meta_store.migrate`) or from `TIDEFILL_DATABASE_URL`.
"""

import os
from pathlib import Path
from typing import Final

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from service.meta_store.engine import psycopg_url
from service.meta_store.schema.all_tables import METADATA
from service.meta_store.schema.core import SCHEMA

DEPLOYER_LOCK: Final = 7_142_609_315_448_001
"""Any number that nobody else in the database locks; two deployers queue on it."""
LOCK_TIMEOUT: Final = "5s"
"""DDL that waits blocks everybody behind it: better to fail and be run again."""
STATEMENT_TIMEOUT: Final = "300s"
RW_CATALOG: Final = Path(__file__).with_name("rw_catalog.sql")


def _url() -> str:
    url = context.config.attributes.get("url") or os.environ.get("TIDEFILL_DATABASE_URL")
    if not url:
        raise SystemExit("TIDEFILL_DATABASE_URL is not set")
    return psycopg_url(url)


def _configure(connection: Connection | None = None) -> None:
    context.configure(
        connection=connection,
        dialect_name="postgresql",
        target_metadata=METADATA,
        version_table_schema=SCHEMA,
        transaction_per_migration=True,
        on_version_apply=_make_views,
    )


def _make_views(ctx: MigrationContext, step: MigrationInfo, *_: object, **__: object) -> None:
    """Make the views in the newest migration's transaction, because they may read columns that earlier ones lack."""
    if step.is_upgrade and step.up_revision_id == context.script.get_current_head():
        ctx.execute(RW_CATALOG.read_text())


def _prepare(connection: Connection) -> None:
    # The queue for the lock may be long, so it is joined before the timeouts are set. They hold for the session, which
    # is ours alone: SET LOCAL would end with the first of several transactions.
    connection.execute(text("select pg_advisory_lock(:key)"), {"key": DEPLOYER_LOCK})
    connection.execute(text(f"set lock_timeout = '{LOCK_TIMEOUT}'"))
    connection.execute(text(f"set statement_timeout = '{STATEMENT_TIMEOUT}'"))
    # The version table lives in the schema that the first migration would create. IF NOT EXISTS alone would ask for the
    # right to create schemas even where it exists.
    if connection.execute(text("select to_regnamespace(:name)"), {"name": SCHEMA}).scalar() is None:
        connection.execute(text(f"create schema {SCHEMA}"))
    connection.commit()


def _run_online() -> None:
    engine = create_engine(_url(), poolclass=NullPool, hide_parameters=True)
    with engine.connect() as connection:
        _prepare(connection)
        _configure(connection)
        with context.begin_transaction():
            context.run_migrations()


def _run_offline() -> None:
    """Print the SQL instead of running it (`alembic upgrade --sql`)."""
    _configure()
    context.execute(f"create schema if not exists {SCHEMA}")
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    _run_offline()
else:
    _run_online()
