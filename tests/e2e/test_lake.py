"""Tables of a lake that are read in place, with real processes: Delta tables that another program changes."""

from decimal import Decimal
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.mirrored_lake import FED, in_lake
from tests.support.service import ARRANGEMENT, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

VIEWS: Final = {
    "plain": "SELECT id, amount * 2 AS twice FROM {sales} WHERE amount > 0",
    "joined": "SELECT s.id, s.amount, c.name FROM {sales} s JOIN cities c ON c.city = s.city",
    "grouped": "SELECT city, count(*) AS n, sum(amount) AS total FROM {sales} GROUP BY city",
    "firsts": (
        "SELECT city, id, amount FROM (SELECT city, id, amount, row_number() OVER (PARTITION BY city ORDER BY amount"
        " DESC, id) AS place FROM {sales}) ranked WHERE place <= 2"
    ),
}


def rows(first: int, count: int, city: str = "Oslo") -> pa.Table:
    ids = range(first, first + count)
    amounts = [Decimal(one % 17 - 3).scaleb(-1) for one in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "city": pa.array([city if one % 3 else None for one in ids]),
            "amount": pa.array(amounts, pa.decimal128(10, 2)),
        }
    )


def mirrored(service: Service, location: Path) -> None:
    """Give the table `mirror` the rows that the Delta table has now."""
    service.run("DELETE FROM mirror")
    values = [
        f"({one['id']}, {'NULL' if one['city'] is None else repr(one['city'])}, {one['amount']})"
        for one in DeltaTable(location).to_pyarrow_table().to_pylist()
    ]
    service.run(f"INSERT INTO mirror VALUES {', '.join(values)}")


def equal(service: Service, location: Path) -> None:
    """Wait until each view has what its query gives over the rows of the Delta table."""
    mirrored(service, location)
    for name, query in VIEWS.items():
        wanted = query.format(sales="mirror")
        differing = f"SELECT * FROM (({wanted}) EXCEPT ALL (SELECT * FROM {name})) d LIMIT 1"
        until(
            lambda wanted=wanted, differing=differing, name=name: (
                service.sql(differing) == []
                and service.value(f"SELECT count(*) FROM {name}") == service.value(f"SELECT count(*) FROM ({wanted}) q")
            ),
            what=lambda name=name: (service.get(f"/v1/jobs/{name}"), service.log_tail()),
        )


@pytest.mark.soak
def test_i3_i12_views_over_a_delta_table_follow_it_over_kills(service: Service, tmp_path: Path) -> None:
    location = tmp_path / "sales"
    write_deltalake(location, rows(1, 3000), configuration=FED)
    table = f"WITH (connector = 'deltalake', location = '{location}')"
    service.run("CREATE TABLE mirror (id bigint PRIMARY KEY, city text, amount numeric(10, 2))")
    service.run("CREATE TABLE cities (city text PRIMARY KEY, name text)")
    service.run("INSERT INTO cities VALUES ('Oslo', 'OSL'), ('Bergen', 'BGO')")
    service.run(f"CREATE TABLE sales (*, PRIMARY KEY (id)) {table}")
    for name, query in VIEWS.items():
        service.run(f"CREATE MATERIALIZED VIEW {name} AS {query.format(sales='sales')}")
    equal(service, location)
    write_deltalake(location, rows(3001, 50, "Bergen"), mode="append")
    DeltaTable(location).update(updates={"amount": "amount + 1"}, predicate="id < 40")
    service.kill_worker()
    DeltaTable(location).delete("id > 2900 and id < 3010")
    service.run("UPDATE cities SET name = 'Oslo' WHERE city = 'Oslo'")
    equal(service, location)
    DeltaTable(location).optimize.compact()
    merge = DeltaTable(location).merge(rows(20, 30, "Bergen"), "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    equal(service, location)
    for name in VIEWS:
        assert service.verified(name)["equal"]
    # Its log is counted now and then.
    counted = service.stored("SELECT key_count FROM tidefill.relation WHERE name = 'sales' AND NOT dropped")
    assert 2800 <= counted[0][0] <= 3200
    assert service.value("SELECT count(*) FROM sales") == service.value("SELECT count(*) FROM mirror")
    assert "lie in a lake" in str(service.refused("INSERT INTO sales VALUES (1, 'x', 1)"))
    arranged = service.refused("CREATE MATERIALIZED VIEW other AS SELECT id FROM sales", **ARRANGEMENT)
    assert "needs a graph of its own, because it reads sales, which lies in a lake" in str(arranged)
    service.run("DROP TABLE sales CASCADE")
    write_deltalake(tmp_path / "twice", pa.concat_tables([rows(1, 10), rows(5, 1)]))
    service.run(f"CREATE TABLE twice (*, PRIMARY KEY (id)) {table.replace('sales', 'twice')}")
    refused = service.refused("CREATE MATERIALIZED VIEW doubled AS SELECT id FROM twice")
    assert "two rows of twice have one key: (_vnode, id, _from)=(" in str(refused)
    service.run("DROP TABLE twice")
    assert service.stored("SELECT count(*) FROM pg_class WHERE relname ~ '^t_[0-9]+$'") == [(2,)]


SINKS: Final = {
    "joined": ("SELECT s.id, s.amount, c.name FROM {sales} s JOIN cities c ON c.city = s.city", "id"),
    "firsts": (VIEWS["firsts"], "city, id"),
}


@pytest.mark.soak
def test_i14_joins_and_windows_go_from_delta_to_delta_over_kills(service: Service, tmp_path: Path) -> None:
    """Postgres stores none of their rows."""
    location = tmp_path / "sales"
    write_deltalake(location, rows(1, 2000), configuration=FED)
    service.run("CREATE TABLE cities (city text PRIMARY KEY, name text)")
    service.run("INSERT INTO cities VALUES ('Oslo', 'OSL'), ('Bergen', 'BGO')")
    service.run(
        "CREATE TABLE sales (id bigint, city text, amount numeric(10, 2), PRIMARY KEY (id))"
        f" WITH (connector = 'deltalake', location = '{location}')"
    )
    tables = len(service.sql("SHOW INTERNAL TABLES"))
    for name, (query, key) in SINKS.items():
        target = f"connector = 'deltalake', location = '{tmp_path}/{name}', commit_interval = '100 ms'"
        limit = "backfill_rate_limit = 1500"
        service.run(
            f"CREATE SINK {name} AS {query.format(sales='sales')} WITH ({target}, primary_key = '{key}', {limit})",
            background_ddl="true",
        )
    service.kill_worker()
    for name in SINKS:
        service.until_created(name)
    DeltaTable(location).update(updates={"amount": "amount + 1"}, predicate="id < 40")
    DeltaTable(location).delete("id > 1900")
    service.kill_worker()
    write_deltalake(location, rows(3001, 50, "Bergen"), mode="append")
    service.run("UPDATE cities SET name = 'Oslo' WHERE city = 'Oslo'")
    assert len(service.sql("SHOW INTERNAL TABLES")) - tables <= len(SINKS)
    service.run("CREATE TABLE mirror (id bigint PRIMARY KEY, city text, amount numeric(10, 2))")
    mirrored(service, location)
    for name, (query, _) in SINKS.items():
        wanted = sorted((tuple(row) for row in service.sql(query.format(sales="mirror"))), key=repr)
        until(lambda name=name, wanted=wanted: in_lake(tmp_path / name) == wanted, what=service.log_tail)
