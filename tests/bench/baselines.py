"""The same copy without tidefill, on the same server, while its worker idles: Postgres alone, and Spark JDBC."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.sql import SQL

from service.embedded.java import find_java
from tests.bench.clock import monotonic
from tests.bench.tables import COLUMNS, Table
from tests.support.service import Service

SCHEMA: Final = "bench"
PLAIN: Final = f"{SCHEMA}.plain"
BY_KEY: Final = " order by id"
COPIED: Final = f"{SCHEMA}.copied"
JDBC: Final = (sys.executable, "-m", "tests.bench.jdbc_query")
JDBC_SECONDS: Final = 900


class NotMeasuredError(Exception):
    """Something this machine cannot do; the message says what."""


@contextmanager
def plain_tables(service: Service, table: Table) -> Generator[None]:
    """Make empty tables with the key and the columns of `table`; remove them afterwards."""
    statements = [f"drop schema if exists {SCHEMA} cascade", f"create schema {SCHEMA}"]
    statements += [f"create table {name} ({table.columns})" for name in (PLAIN, COPIED)]
    with service.store() as store:
        for statement in statements:
            store.execute(statement.encode())
    try:
        yield
    finally:
        with service.store() as store:
            store.execute(f"drop schema {SCHEMA} cascade".encode())


def settle(service: Service) -> None:
    """Have Postgres write out what earlier steps left, so that the next one does not pay for them."""
    with service.store() as store:
        store.execute("checkpoint")


def insert_select(service: Service, table: Table, order: str = "") -> float:
    """Copy the alive rows by `INSERT .. SELECT` into the empty plain table; return the seconds it took.

    As they are stored, or `BY_KEY`: sorting them costs less than it saves where the index takes what is behind its end.
    """
    with service.store() as store:
        store.execute(f"truncate {PLAIN}".encode())
        store.execute("checkpoint")
        began = monotonic()
        copied = _insert(store, table, PLAIN, order)
        seconds = monotonic() - began
        assert copied == table.rows, (copied, table.rows)
        # What reads it next deserves statistics.
        store.execute(f"analyze {PLAIN}".encode())
    return seconds


def copy_at_once(service: Service, table: Table) -> None:
    """Copy the rows alive into both plain tables at once, in sessions of their own."""

    def copy(into: str) -> None:
        with service.store() as store:
            store.execute(f"truncate {into}".encode())
            _insert(store, table, into)

    with ThreadPoolExecutor(2) as sessions:
        for done in [sessions.submit(copy, into) for into in (PLAIN, COPIED)]:
            done.result()


def _insert(store: psycopg.Connection, table: Table, into: str, order: str = "") -> int:
    alive = f"select {COLUMNS} from {table.stored} where _to = 9223372036854775807{order}"
    return store.execute(f"insert into {into} {alive}".encode()).rowcount


def jdbc_copy(service: Service, table: Table) -> float:
    """Copy the plain table by a one-shot Spark JDBC job; return its seconds without the session's start.

    It reads the plain table, which is the kindest to it: there is an index on the column it is partitioned by. Raises
    NotMeasuredError where the driver cannot be fetched.
    """
    with service.store() as store:
        store.execute(f"truncate {COPIED}".encode())
        store.execute("checkpoint")
    seconds = jdbc_query(service, "select * from plain", {"plain": (PLAIN, table.rows)}, COPIED)
    with service.store() as store:
        row = store.execute(SQL("select count(*) from bench.copied")).fetchone()
    assert row == (table.rows,), (row, table.rows)
    return seconds


def jdbc_query(service: Service, query: str, tables: Mapping[str, tuple[str, int]], target: str) -> float:
    """Compute a query by one-shot Spark SQL over JDBC; return its seconds without the session's start.

    `tables` gives a plain table and its largest `id` for each name in the query. `target` is a table, or an absolute
    path for Parquet files. Raises NotMeasuredError where the driver cannot be fetched.
    """
    sources = {name: {"source": source, "rows": rows} for name, (source, rows) in tables.items()}
    said = in_a_process(JDBC, {"url": service.database_url(), "query": query, "tables": sources, "target": target})
    if "unavailable" in said:
        raise NotMeasuredError(said["unavailable"])
    return float(said["seconds"])


def in_a_process(command: Sequence[str], task: dict[str, Any]) -> dict[str, Any]:
    """Run a program of plain Spark that takes a task as JSON on stdin; return what it says on stdout."""
    java = find_java(os.environ)
    environment = {**os.environ, **({} if java is None else {"JAVA_HOME": str(java)})}
    done = subprocess.run(
        command,
        input=json.dumps(task),
        capture_output=True,
        text=True,
        env=environment,
        timeout=JDBC_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"plain Spark failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
