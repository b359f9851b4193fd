"""A reader sees all of an epoch or none of it, across a table and a view, while epochs commit (I2)."""

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.support.service import Service
from tests.support.waiting import Repeating

pytestmark = pytest.mark.e2e

EPOCHS = 12
"""How many different ones a reader of each kind looks at."""
DIFFERENCE = "(table accounts except all table copied) union all (table copied except all table accounts)"


def test_a_table_and_its_view_are_read_at_one_epoch(service: Service) -> None:
    """Every statement gives all rows one value, and moves some keys: a row of another epoch would show."""
    service.run("CREATE TABLE accounts (id int PRIMARY KEY, v int)")
    service.run("INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 200) g")
    service.run("CREATE MATERIALIZED VIEW copied AS SELECT id, v FROM accounts")

    def write(turn: int) -> None:
        service.run(f"UPDATE accounts SET v = {turn}, id = CASE WHEN id % 3 = 0 THEN id + 900 ELSE id END")
        service.run(f"UPDATE accounts SET v = -{turn}, id = CASE WHEN id > 900 THEN id - 900 ELSE id END")

    with Repeating(write), service.store() as one, service.store() as many:
        many.isolation_level = IsolationLevel.REPEATABLE_READ
        assert_whole_epochs(one, many)


def assert_whole_epochs(one: psycopg.Connection, many: psycopg.Connection) -> None:
    """Read in one statement, and in one transaction of several at repeatable read, as psql would."""
    seen: set[int] = set()
    while len(seen) < EPOCHS:
        assert one.execute(f"select count(*) from ({DIFFERENCE}) d").fetchall() == [(0,)]
        with many.transaction():
            table = many.execute("select id, v from accounts order by id").fetchall()
            view = many.execute("select id, v from copied order by id").fetchall()
        assert table == view
        (value,) = {v for _, v in table}
        assert len(table) == 200
        seen.add(value)
