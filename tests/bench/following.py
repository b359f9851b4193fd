"""Tables that follow an external Postgres, beside Postgres's own logical replication of the same table into the same
server.

Both get what the external server has to give: its history, then a stream of changes that has piled up, then changes at
a steady pace, then one transaction of millions of rows.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from service.protocol.epoch import instant_of
from service.protocol.ids import Epoch
from tests.bench.clock import monotonic, pause
from tests.bench.figures import Figure, Section, Target, of_samples, per_second, percentile, ratio
from tests.bench.memory import Memory
from tests.support.production import External, external_postgres, source, tables_backfilled, until_backfilled
from tests.support.service import Repeating, Service, data_directory
from tests.support.waiting import until

NATIVE: Final = "native"
"""The database, on the service's server, into which Postgres replicates by itself."""
ROWS: Final = 1_000_000
CHANGES: Final = 500_000
CHANGES_OF_A_TRANSACTION: Final = 500
STEADY_PER_SECOND: Final = 5_000
STEADY_SECONDS: Final = 30
STEADY_BATCHES_PER_SECOND: Final = 20
LARGE_ROWS: Final = 2_000_000
LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 900.0
FOLLOWER: Final = "follower"
"""The role by which the service reads, which can be shut out for a while."""
TABLE: Final = "orders"
MARK: Final = "mark"
"""A table of one row, which the last transaction of a stream changes: whoever waits for the end of it reads this, and
takes nothing from what is measured.
"""
COLUMNS: Final = "id bigint primary key, customer bigint, status text, amount numeric(12,2), created timestamptz"
FILL: Final = (
    "insert into {table} select g, g % 5000, 'open', (g % 100000) / 100.0,"
    " timestamptz '2026-01-01' + (g % 10000000) * interval '1 s' from generate_series({first}, {last}) g"
)
MB: Final = 1 << 20


@dataclass
class Following:
    """A service, and a server that it follows."""

    service: Service
    external: External

    def follow(self, options: str = "") -> float:
        """Follow the table; return the seconds until its history is there."""
        began = monotonic()
        self.service.run(f"CREATE TABLE {TABLE} (*) {options} FROM pg TABLE 'public.{TABLE}'")
        job = self.service.job(TABLE)
        with self.service.store() as connection:
            # As often as native replication is asked.
            _until(connection, tables_backfilled(job), 1)
        return monotonic() - began

    def forget(self) -> None:
        """Follow the table no longer."""
        self.service.run(f"DROP TABLE {TABLE}")

    def held(self) -> int:
        """Return how many rows are there, to whoever reads."""
        return int(self.service.value(f"SELECT count(*) FROM {TABLE}"))


def following(service: Service, repeat: int) -> list[Section]:
    """Measure history, the live stream, freshness, and a large transaction."""
    with data_directory() as directory:
        directory.mkdir(mode=0o711)
        with external_postgres(directory) as external, _filled(service, external) as followed:
            return [
                _history(followed, repeat),
                _live(followed, repeat),
                _freshness(followed),
                _large_transaction(followed),
            ]


@contextmanager
def _filled(service: Service, external: External) -> Generator[Following]:
    password = conninfo_to_dict(external.url)["password"]
    external.run(
        f"create table {MARK} (id int primary key, turn int)",
        f"insert into {MARK} values (1, -1)",
        f"create table {TABLE} ({COLUMNS})",
        FILL.format(table=TABLE, first=1, last=ROWS),
        f"create role {FOLLOWER} login superuser password '{password}'",
    )
    with psycopg.connect(external.url, autocommit=True) as connection:
        connection.execute(f"vacuum analyze {TABLE}".encode())
    service.run(source(external, username=FOLLOWER))
    try:
        yield Following(service, external)
    finally:
        service.run("DROP SOURCE pg CASCADE")


# --- history ------------------------------------------------------------------------------------------------------


def _history(followed: Following, repeat: int) -> Section:
    native = [_native_history(followed) for _ in range(repeat)]
    one: list[float] = []
    two: list[float] = []
    for _ in range(repeat):
        for seconds, options in (
            (one, ""),
            (two, f"WITH (backfill.parallelism = 2, backfill.num_rows_per_split = {ROWS // 16})"),
        ):
            _settle(followed)
            seconds.append(followed.follow(options))
            followed.forget()
    rates = {name: per_second(ROWS, seconds) for name, seconds in (("native", native), ("v1", one), ("v2", two))}
    figures = {name: of_samples(_NAMES[name], samples, "rows/s") for name, samples in rates.items()}
    return Section(
        f"CDC history of {ROWS:,} rows, idle external server",
        (
            *figures.values(),
            _ratio("one reader : native", figures["v1"], figures["native"], 0.6),
            _ratio("two actors : one reader", figures["v2"], figures["v1"], 1.3),
        ),
    )


_NAMES: Final = {
    "native": "native logical replication, initial copy",
    "v1": "CDC, one reader",
    "v2": "CDC, splits and two actors",
}


def _native_history(followed: Following) -> float:
    with _native(followed) as connection:
        began = monotonic()
        _subscribe(connection, followed.external)
        _until(connection, "select count(*) from pg_subscription_rel where srsubstate = 'r'", 2)
        return monotonic() - began


# --- the live stream ----------------------------------------------------------------------------------------------


def _live(followed: Following, repeat: int) -> Section:
    native = [_native_live(followed, turn) for turn in range(repeat)]
    followed.follow()
    followed.service.run(f"CREATE TABLE {MARK} (*) FROM pg TABLE 'public.{MARK}'")
    until_backfilled(followed.service, MARK)
    ours = [_our_live(followed, repeat + turn) for turn in range(repeat)]
    rates = {name: per_second(CHANGES, seconds) for name, seconds in (("native", native), ("ours", ours))}
    theirs = of_samples("native logical replication, apply", rates["native"], "changes/s")
    mine = of_samples("CDC, apply", rates["ours"], "changes/s", note="from when the log is read again")
    return Section(
        f"CDC stream of {CHANGES:,} changes that piled up, {CHANGES_OF_A_TRANSACTION} to a transaction",
        (theirs, mine, _ratio("CDC : native", mine, theirs, 0.5)),
    )


def _native_live(followed: Following, turn: int) -> float:
    with _native(followed) as connection:
        _subscribe(connection, followed.external)
        _until(connection, "select count(*) from pg_subscription_rel where srsubstate = 'r'", 2)
        connection.execute("alter subscription native disable")
        _change(followed.external, turn)
        began = monotonic()
        connection.execute("alter subscription native enable")
        _until(connection, f"select turn from {MARK}", turn)
        return monotonic() - began


def _our_live(followed: Following, turn: int) -> float:
    """Shut the service out of the external server meanwhile: it comes back by itself; time runs from then on."""
    external = followed.external
    external.run(
        f"alter role {FOLLOWER} nologin",
        f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{FOLLOWER}'",
    )
    _change(external, turn)
    external.run(f"alter role {FOLLOWER} login")
    with psycopg.connect(external.url, autocommit=True) as connection:
        _until(connection, "select count(*) from pg_replication_slots where active", 1)
    with followed.service.store() as connection:
        began = monotonic()
        # As it is published, and asked for as often as of native replication.
        _until(connection, f"select turn from {MARK}", turn)
        return monotonic() - began


def _change(external: External, turn: int) -> None:
    """Make so many changes in transactions of a moderate size: half updates, a quarter inserts, a quarter deletes."""
    quarter = CHANGES_OF_A_TRANSACTION // 4
    with psycopg.connect(external.url) as connection:
        for number in range(CHANGES // CHANGES_OF_A_TRANSACTION):
            first = 1 + (number * 2 * quarter) % (ROWS - 2 * quarter)
            fresh = (turn + 2) * 10 * ROWS + number * quarter
            for statement in (
                f"update {TABLE} set amount = amount + 1 where id >= {first} and id < {first + 2 * quarter}",
                FILL.format(table=TABLE, first=fresh, last=fresh + quarter - 1),
                f"delete from {TABLE} where id >= {fresh} and id < {fresh + quarter}",
            ):
                connection.execute(statement.encode())
            connection.commit()
        connection.execute(f"update {MARK} set turn = {turn}".encode())


# --- freshness ----------------------------------------------------------------------------------------------------


def _freshness(followed: Following) -> Section:
    """Insert rows that carry the time of their transaction, and compare with when their epochs were published."""
    first = 1_000_000_000
    batch = STEADY_PER_SECOND // STEADY_BATCHES_PER_SECOND
    began = monotonic()

    def insert(turn: int) -> None:
        at = first + turn * batch
        pause(max(began + turn / STEADY_BATCHES_PER_SECOND - monotonic(), 0.0))
        followed.external.run(
            f"insert into {TABLE} select g, g % 5000, 'new', 1, clock_timestamp()"
            f" from generate_series({at}, {at + batch - 1}) g"
        )

    with Repeating(insert, pause=0) as inserting:
        pause(STEADY_SECONDS)
    sent, seconds = inserting.turns * batch, monotonic() - began
    ((total,),) = followed.external.rows(f"select count(*) from {TABLE}")
    until(lambda: followed.held() == total, what="the last row arrives", seconds=PATIENCE_SECONDS)
    late = _late(followed, first)
    return Section(
        "CDC freshness: a row's own time to the publication of its epoch",
        (
            Figure("changes", sent / seconds, "changes/s", note=f"{STEADY_PER_SECOND:,} asked for"),
            Figure("freshness, p50", percentile(late, 0.5), "s", note=f"{len(late):,} rows"),
            Figure("freshness, p99", percentile(late, 0.99), "s", Target("<", 3.0)),
            Figure("freshness, greatest", max(late), "s"),
        ),
    )


def _late(followed: Following, first: int) -> list[float]:
    relation = followed.service.get(f"/v1/relations/{TABLE}")["id"]
    published = {
        int(barrier["epoch"]): datetime.fromisoformat(barrier["published_at"]).astimezone(UTC)
        for barrier in followed.service.barriers(limit=500)
        if barrier["published_at"] is not None
    }
    rows = followed.service.stored(f"select _from, created from state.t_{relation} where id >= {first}")
    known = [(Epoch(epoch), created) for epoch, created in rows if epoch in published]
    assert len(known) == len(rows), f"barriers are missing since {instant_of(Epoch(min(epoch for epoch, _ in rows)))}"
    return [(published[epoch] - created).total_seconds() for epoch, created in known]


# --- a large transaction ------------------------------------------------------------------------------------------


def _large_transaction(followed: Following) -> Section:
    first = 2_000_000_000
    with Memory(followed.service) as idle:
        pause(2)
    followed.external.run(FILL.format(table=TABLE, first=first, last=first + LARGE_ROWS - 1))
    ((total,),) = followed.external.rows(f"select count(*) from {TABLE}")
    began = monotonic()
    with Memory(followed.service) as memory:
        until(lambda: followed.held() == total, what="the transaction arrives", seconds=PATIENCE_SECONDS)
    seconds = monotonic() - began
    return Section(
        f"CDC: one transaction of {LARGE_ROWS:,} rows",
        (
            Figure("committed to visible", seconds, "s", note=f"{LARGE_ROWS / seconds:,.0f} rows/s"),
            Figure("service and worker before", idle.peak / MB, "MB"),
            Figure("service and worker, greatest", memory.peak / MB, "MB"),
        ),
    )


# --- shared -------------------------------------------------------------------------------------------------------


@contextmanager
def _native(followed: Following) -> Generator[psycopg.Connection]:
    """Make an empty database with the table on the service's server; remove it with its subscription afterwards."""
    url = followed.service.database_url()
    own = url.rsplit("/", 1)[0] + f"/{NATIVE}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"drop database if exists {NATIVE}".encode())
        server.execute(f"create database {NATIVE}".encode())
    followed.external.run(f"create publication {NATIVE} for table {TABLE}, {MARK}")
    _settle(followed)
    try:
        with psycopg.connect(own, autocommit=True) as connection:
            connection.execute(f"create table {TABLE} ({COLUMNS})".encode())
            connection.execute(f"create table {MARK} (id int primary key, turn int)".encode())
            try:
                yield connection
            finally:
                connection.execute(f"drop subscription if exists {NATIVE}".encode())
    finally:
        followed.external.run(f"drop publication {NATIVE}")
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(f"drop database {NATIVE} with (force)".encode())


def _subscribe(connection: psycopg.Connection, external: External) -> None:
    parts = conninfo_to_dict(external.url)
    given = " ".join(f"{name}={value}" for name, value in parts.items())
    connection.execute(f"create subscription {NATIVE} connection '{given}' publication {NATIVE}".encode())


def _until(connection: psycopg.Connection, query: str, wanted: int) -> None:
    deadline = monotonic() + PATIENCE_SECONDS
    while connection.execute(query.encode()).fetchone() != (wanted,):
        assert monotonic() < deadline, query
        pause(LOOK_SECONDS)


def _settle(followed: Following) -> None:
    """Have both servers write out what earlier steps left."""
    for url in (followed.service.database_url(), followed.external.url):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("checkpoint")


def _ratio(name: str, figure: Figure, base: Figure, least: float) -> Figure:
    return Figure(name, ratio(figure.value, base.value), "x", Target(">=", least))
