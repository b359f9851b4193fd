"""A reader's open transaction delays nobody else: neither CREATE, nor DROP, nor barriers (I13)."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

JOINED = "CREATE MATERIALIZED VIEW b2 AS SELECT n1.id, n2.id AS yid FROM n1 JOIN n2 ON n1.k = n2.k"
RETURNS = 90
"""A call that waits for the transaction never returns, or gives up after 120 s."""


def read_login(service: Service) -> psycopg.Connection[tuple[Any, ...]]:
    login = service.get("/v1/read-login", password="true")
    parts = {name: login[name] for name in ("host", "port", "user", "password")}
    connection = psycopg.connect(**parts, dbname=login["database"])
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    return connection


@pytest.fixture
def shop(service: Service) -> Service:
    for name in ("n1", "n2"):
        service.run(f"CREATE TABLE {name} (id bigint PRIMARY KEY, k bigint)")
        service.run(f"INSERT INTO {name} SELECT g, g % 10 FROM generate_series(1, 100) g")
    return service


@pytest.fixture
def reader(shop: Service) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """An open transaction of the read login that has read n1."""
    with read_login(shop) as connection:
        assert connection.execute("select count(*) from n1").fetchall() == [(100,)]
        yield connection
        connection.close()


def enlarge(service: Service) -> None:
    """Make the tables so large that their indexes are built beside writers, and wait for older transactions."""
    for name in ("n1", "n2"):
        service.run(f"INSERT INTO {name} SELECT g, NULL FROM generate_series(1000, 900000) g")


def returned(call: "Future[dict[str, Any]]") -> dict[str, Any]:
    """Return the answer of a call that came while a transaction is open."""
    return call.result(timeout=RETURNS)


def tables(service: Service, *relations: str) -> list[int]:
    """Return which of the stored tables with these relation ids there are."""
    found = service.stored("select relname::text from pg_class where relnamespace = 'state'::regnamespace")
    return [int(one) for one in relations if (f"t_{one}",) in found]


def relation(service: Service, name: str) -> str:
    return str(service.get(f"/v1/relations/{name}")["id"])


@pytest.mark.soak
def test_f3_background_creates_return_and_name_the_session_that_holds_their_index(
    shop: Service, reader: psycopg.Connection[tuple[Any, ...]]
) -> None:
    enlarge(shop)
    returned(shop.later(JOINED, background_ddl="true"))
    whose = f"session {reader.info.backend_pid} of login {reader.info.user}"

    def waiting() -> str | None:
        text = (shop.detail(shop.job("b2"))["job"]["waiting"] or {}).get("text", "")
        return text if whose in text else None

    said = until(waiting, what=lambda: shop.detail(shop.job("b2"))["job"])
    assert said.startswith("an index of n"), said
    assert said.endswith(", idle after a SELECT"), said
    returned(shop.later("INSERT INTO n1 VALUES (101, 1)"))
    assert reader.execute("select count(*) from n1").fetchall() == [(100,)], "the transaction is still open"
    reader.rollback()
    shop.until_created("b2")
    assert shop.value("SELECT count(*) FROM b2") == 1010


def test_f3_drops_return_while_a_reader_holds_what_they_drop(
    shop: Service, reader: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """I9: in the end nothing is left."""
    shop.run("CREATE MATERIALIZED VIEW v AS SELECT id, k + 1 AS k FROM n1")
    reader.rollback()
    reader.execute("select count(*) from n1")
    reader.execute("select count(*) from v")
    table, view = relation(shop, "n1"), relation(shop, "v")
    returned(shop.later("DROP MATERIALIZED VIEW v"))
    returned(shop.later("DROP TABLE n1"))
    assert tables(shop, table, view) == [int(table), int(view)], "the reader's transaction keeps the rows"
    with read_login(shop) as other:
        for name in ("n1", "v"):
            with pytest.raises((errors.UndefinedTable, errors.InsufficientPrivilege)), other.transaction():
                other.execute(f"select count(*) from {name}")
    returned(shop.later("INSERT INTO n2 VALUES (101, 1)"))
    returned(shop.later("DROP TABLE n2"))
    reader.rollback()
    until(lambda: not tables(shop, table, view), what="their tables are gone")


@pytest.mark.soak
def test_f3_a_name_that_a_reader_still_holds_can_be_used_again(
    shop: Service, reader: psycopg.Connection[tuple[Any, ...]]
) -> None:
    old = relation(shop, "n1")
    returned(shop.later("DROP TABLE n1"))
    returned(shop.later("CREATE TABLE n1 (id bigint PRIMARY KEY, name text)"))
    returned(shop.later("INSERT INTO n1 VALUES (1, 'new')"))
    assert shop.sql("SELECT id, name FROM n1") == [["1", "new"]] or shop.sql("SELECT id, name FROM n1") == [[1, "new"]]
    with read_login(shop) as other:
        assert other.execute("select id, name from n1").fetchall() == [(1, "new")]
    assert not reader.closed
    reader.close()
    until(lambda: not tables(shop, old), what="the old table is gone")


@pytest.mark.soak
def test_f3_a_drop_ends_the_build_of_an_index_that_nobody_needs_any_more(
    shop: Service, reader: psycopg.Connection[tuple[Any, ...]]
) -> None:
    enlarge(shop)
    returned(shop.later(JOINED, background_ddl="true"))
    building = "select 1 from pg_stat_progress_create_index where phase like 'waiting%'"
    until(lambda: shop.stored(building), what="an index is being built")
    table = relation(shop, "n2")
    returned(shop.later("DROP MATERIALIZED VIEW b2"))
    returned(shop.later("DROP TABLE n2"))
    assert not reader.closed
    until(lambda: not tables(shop, table), what="the table is gone, though the reader's transaction is open")
    assert reader.execute("select count(*) from n1").fetchall() == [(100,)]


@pytest.mark.soak
def test_f5_a_view_with_two_indexes_of_a_fresh_table_is_created_without_a_deadlock(shop: Service) -> None:
    shop.run("CREATE TABLE facts (id bigint PRIMARY KEY, a bigint, b bigint)")
    shop.run("INSERT INTO facts SELECT g, g % 100, g % 90 FROM generate_series(1, 20000) g")
    before = shop.log.stat().st_size
    shop.run(
        "CREATE MATERIALIZED VIEW star AS SELECT f.id, x.k, y.k AS l"
        " FROM facts f JOIN n1 x ON f.a = x.id JOIN n2 y ON f.b = y.id"
    )
    said = shop.log.read_bytes()[before:].decode(errors="replace")
    assert "deadlock" not in said
    assert "not_built" not in said
