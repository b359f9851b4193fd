"""A live external Postgres, and tables of it that a service follows."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from service.embedded import cluster, postgres
from service.embedded.postgres import EmbeddedPostgres
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

SLOT = "tidefill_test"
PROGRAMS = "TIDEFILL_TEST_EXTERNAL_PROGRAMS"
"""Names the directory of another version's `postgres`: then external servers are of that one."""


@dataclass
class External:
    """One server, as its owner sees it."""

    server: EmbeddedPostgres
    url: str

    def run(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self.url) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def texts(self, query: str) -> list[tuple[str | None, ...]]:
        """Return rows as texts, in an order of their own."""
        return sorted(
            tuple(None if value is None else str(value) for value in row)
            for row in self.rows(f"select q::text from ({query}) q")
        )

    def slots(self) -> Sequence[str]:
        return [name for (name,) in self.rows("select slot_name::text from pg_replication_slots order by 1")]

    def published(self) -> Sequence[str]:
        """Return the tables that some publication names."""
        return [name for (name,) in self.rows("select distinct tablename::text from pg_publication_tables order by 1")]

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        """Start again where it was."""
        assert started(self.server) == self.url

    def clear(self) -> None:
        """Leave nothing: no table, no publication, no slot."""
        for (name,) in self.rows("select slot_name::text from pg_replication_slots"):
            self.run(f"select pg_drop_replication_slot('{name}')")
        for (name,) in self.rows("select quote_ident(pubname) from pg_publication"):
            self.run(f"drop publication {name}")
        self.run("drop schema public cascade", "create schema public")


def started(server: EmbeddedPostgres) -> str:
    """Start an external server; return its URL."""
    programs = os.environ.get(PROGRAMS)
    if programs is None:
        return server.start()

    def found(*_: object) -> Path:
        return Path(programs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "postgres_programs", found)
        # The provider of the wheel's locale came with Postgres 17.
        patch.setattr(cluster, "LOCALE", ("--encoding=UTF8", "--locale=C"))
        return server.start()


@contextmanager
def external_postgres(folder: Path) -> Generator[External]:
    """Run a server of its own in a folder."""
    server = EmbeddedPostgres(folder)
    external = External(server, started(server))
    try:
        yield external
    finally:
        server.stop()


def source(external: External, name: str = "pg", **options: str) -> str:
    """Return the statement that creates a source over the server."""
    parts = conninfo_to_dict(external.url)
    known = {
        "connector": "postgres-cdc",
        "hostname": parts["host"],
        "port": parts["port"],
        "username": parts["user"],
        "password": parts["password"],
        "database.name": parts["dbname"],
        "schema.name": "public",
        "slot.name": SLOT,
        **{key.replace("__", "."): value for key, value in options.items()},
    }
    given = ", ".join(f"{key} = '{value}'" for key, value in known.items())
    return f"CREATE SOURCE {name} WITH ({given})"


def until_backfilled(service: Service, table: str) -> None:
    """Wait until the whole history of a table is there."""
    job = service.job(table)
    until(lambda: service.value(tables_backfilled(job)) == 1, what=lambda: f"{table}: {service.detail(job)}")


def tables_backfilled(job: int) -> str:
    """Return the query for how many tables of a job have the whole of their history: one, or none yet."""
    return (
        "SELECT count(*) FROM rw_catalog.rw_cdc_progress"
        f" WHERE job_id = {job} AND split_completed_count = split_total_count"
    )


def until_equal(service: Service, external: External, table: str, columns: str = "*") -> list[tuple[str | None, ...]]:
    """Wait until a table holds what the external one does; return it. Nobody changes that one meanwhile."""
    query = f"select {columns} from {table}"
    wanted = external.texts(query)

    def held() -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in service.sql(f"SELECT q::text FROM ({query}) q", row_limit="100000"))

    def difference() -> str:
        found = set(held())
        return f"missing {sorted(set(wanted) - found)[:5]}, extra {sorted(found - set(wanted))[:5]}: {sources(service)}"

    until(lambda: held() == wanted, what=difference)
    return wanted


def sources(service: Service) -> object:
    try:
        return service.get("/v1/sources")["items"]
    except ProblemError as error:
        return error.problem
