"""A real Postgres for tests: one embedded server per test run, one fresh database per test.

`fsync` is on, as in the product, unless `TIDEFILL_TEST_FSYNC=off` says otherwise, as `make test` does (no test pulls
the power plug, so none depends on it).
"""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from service.embedded.postgres import EmbeddedPostgres
from tests.support.run_directories import relaxed, run_directory
from tests.support.waiting import until

_RELAXED: Final = {"fsync": "off", "max_wal_size": "512MB", "min_wal_size": "128MB"}


@contextmanager
def embedded_postgres() -> Generator[str]:
    """Run a server in a directory of its own; its URL names a superuser."""
    with run_directory() as directory:
        settings = {"max_prepared_transactions": "10", **(_RELAXED if relaxed() else {})}
        server = EmbeddedPostgres(directory, settings)
        url = server.start()
        try:
            yield url
        finally:
            server.stop()


@contextmanager
def fresh_database(server_url: str, *, like: str = "template1") -> Generator[str]:
    """Make a copy of the database `like`, an empty UTF8 one, and drop it at the end, whoever is still connected."""
    name = f"test_{secrets.token_hex(8)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        # By its files: page by page through the log takes thrice the processor's time, and the dropping as well.
        copied = sql.SQL("create database {} template {} strategy file_copy")
        made = copied.format(sql.Identifier(name), sql.Identifier(like))
        connection.execute(made)
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            until(lambda: _dropped(connection, name), what=f"no session uses {name}")


def is_over(session: psycopg.Connection) -> bool:
    """Whether the server has ended a session."""
    try:
        session.execute("select 1")
    except psycopg.OperationalError:
        return True
    return False


def _dropped(connection: psycopg.Connection[Any], name: str) -> bool:
    """Drop a database. A session that is busy with a large value may outlive the wait of FORCE."""
    try:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))
    except psycopg.errors.ObjectInUse:
        return False
    return True
