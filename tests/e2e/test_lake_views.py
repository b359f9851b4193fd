"""Materialized views whose rows lie in Delta tables, with real processes."""

from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.e2e.test_lake import mirrored, rows
from tests.support.mirrored_lake import FED, in_lake
from tests.support.service import ARRANGEMENT, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

VIEWS: Final = {
    "joined": "SELECT s.id, s.amount, c.name FROM {sales} s JOIN cities c ON c.city = s.city",
    "grouped": (
        "SELECT s.city, (s.amount * 2)::numeric(20, 2) AS twice, count(*) AS n, sum(s.amount)::numeric(20, 2) AS total"
        " FROM {sales} s JOIN orders o ON o.id = s.id GROUP BY s.city, o.kind, s.amount * 2"
    ),
    "placed": (
        "SELECT name, id, amount FROM (SELECT name, id, amount, row_number() OVER (PARTITION BY name ORDER BY amount"
        " DESC, id) AS place FROM {joined}) ranked WHERE place <= 3"
    ),
}


SELECTED: Final = (
    "SELECT count(*) FROM {sales}",
    "SELECT * FROM {sales} ORDER BY id LIMIT 5 OFFSET 2",
    "SELECT id, amount FROM {sales} WHERE id = 7",
    "SELECT city, count(*), sum(amount), max(id), count(*) FROM {sales} GROUP BY city ORDER BY 2 DESC, city",
    "SELECT c.name, count(*) AS n FROM {sales} s JOIN cities c USING (city) GROUP BY 1 ORDER BY n DESC NULLS LAST, 1",
    "SELECT id, city || '!', id % 2 = 0, amount * 2 FROM {sales} WHERE city LIKE 'O%' ORDER BY id LIMIT 3",
    "SELECT DISTINCT city FROM {sales} ORDER BY city DESC",
    "SELECT id FROM {sales} WHERE id > 1400 UNION ALL SELECT id FROM orders WHERE id > 1190 ORDER BY id",
    "WITH big AS (SELECT * FROM {sales} WHERE amount > 5) SELECT count(*) AS big FROM big",
    "SELECT id, row_number() OVER (PARTITION BY city ORDER BY id) FROM {sales} ORDER BY 1 LIMIT 4",
)
"""The query of a user who looks at a table in a lake; over the mirror Postgres answers it."""


def selected(service: Service) -> None:
    """A SELECT over a table or a view in the lake answers what it answers over the mirror."""
    for query in SELECTED:
        answers = [service.run(query.format(sales=name)) for name in ("sales", "mirror")]
        shown = [[one[part] for part in ("columns", "rows", "tag")] for one in answers]
        assert shown[0] == shown[1], query
    assert len(service.sql("SELECT id FROM sales LIMIT 3")) == 3
    assert service.sql("SELECT count(*) FROM named_sales") == service.sql("SELECT count(*) FROM mirror")
    joined = VIEWS["joined"].format(sales="mirror")
    assert service.sql("SELECT count(*), sum(amount) FROM joined") == service.sql(
        f"SELECT count(*), sum(amount) FROM ({joined}) q"
    )
    for refused, why in (
        ("SELECT avg(amount) FROM sales", "only Postgres computes a part of this query"),
        ("SELECT id FROM sales ORDER BY amount + 1", "takes names or numbers of the result"),
        ("SELECT id FROM sales ORDER BY amount", "takes a column of the result"),
        ("SELECT nothing FROM sales", "does not exist"),
    ):
        assert why in str(service.refused(refused)), refused


def test_values_of_every_type_are_selected_from_a_lake(service: Service, tmp_path: Path) -> None:
    types = "boolean smallint integer bigint real double numeric(12,3) text bytea date timestamp timestamptz integer[]"
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate([*types.split(), "text[]", "numeric(5,1)[]"]))
    service.run(f"CREATE TABLE typed (id int PRIMARY KEY, {columns})")
    service.run(
        "INSERT INTO typed VALUES (1, true, -1, 2, 9007199254740993, 0.1, 1e300, -7.250, $$it's \"é\" \\$$, '\\x00ff',"
        " '0044-03-15', '1969-12-31 23:59:59.000001', '2024-02-29 12:00:00+05', '{1,NULL,3}', '{a,\"b c\",NULL,\"\"}',"
        " '{1.5,-2.0}'), (2, false, 0, 0, 0, 'NaN', '-Infinity', 0, '', '', '9999-12-31', '0001-01-01', '0001-01-01',"
        " '{}', '{}', '{}')"
    )
    service.run("INSERT INTO typed (id) VALUES (3)")
    place = f"USING delta LOCATION '{tmp_path / 'typed'}' WITH (commit_interval = '200 ms')"
    service.run(f"CREATE MATERIALIZED VIEW placed {place} AS SELECT * FROM typed")
    query = "SELECT * FROM {} ORDER BY id"
    wanted, found = (service.run(query.format(name)) for name in ("typed", "placed"))
    assert found["rows"] == wanted["rows"]
    assert found["columns"] == wanted["columns"]


def in_the_lake(service: Service, lake: Path) -> None:
    """Wait until each Delta table has what the view's query gives over the mirror."""
    joined = f"({VIEWS['joined'].format(sales='mirror')})"
    for name, query in VIEWS.items():
        columns = [one[0] for one in service.sql(f"DESCRIBE {name}") if one[2] == "false"]
        wanted = service.sql(query.format(sales="mirror", joined=joined))
        expected = sorted((tuple(row) for row in wanted), key=repr)

        def found(name: str = name, columns: list[str] = columns) -> list[tuple[object, ...]]:
            return in_lake(lake / name, columns)

        until(
            lambda found=found, expected=expected: found() == expected,
            what=lambda name=name, found=found, expected=expected: (
                name,
                found()[:5],
                expected[:5],
                service.get(f"/v1/jobs/{name}"),
                service.log_tail(),
            ),
        )


def made(service: Service, tmp_path: Path) -> tuple[Path, Path]:
    """Create a join, groups, and a window over another view in the lake, over a Delta table and tables of Postgres.
    Return where the table lies, and where the views do.
    """
    sales, lake = tmp_path / "sales", tmp_path / "lake"
    write_deltalake(sales, rows(1, 1500), configuration=FED)
    for name in ("mirror", "orders"):
        columns = "id bigint PRIMARY KEY, city text, amount numeric(10, 2)"
        service.run(f"CREATE TABLE {name} ({columns if name == 'mirror' else 'id bigint PRIMARY KEY, kind text'})")
    service.run("INSERT INTO orders SELECT g, 'k' || g % 3 FROM generate_series(1, 1200) g")
    service.run("CREATE TABLE cities (city text PRIMARY KEY, name text)")
    service.run("INSERT INTO cities VALUES ('Oslo', 'OSL'), ('Bergen', 'BGO')")
    service.run(f"CREATE TABLE sales (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{sales}')")
    for name, query in VIEWS.items():
        place = f"USING delta LOCATION '{lake / name}' WITH (commit_interval = '200 ms')"
        service.run(f"CREATE MATERIALIZED VIEW {name} {place} AS {query.format(sales='sales', joined='joined')}")
        # It is created when its table has all rows.
        assert DeltaTable(lake / name).to_pyarrow_table().num_rows > 0
    mirrored(service, sales)
    in_the_lake(service, lake)
    return sales, lake


def test_i12_i14_views_in_a_lake_follow_and_are_followed(service: Service, tmp_path: Path) -> None:
    sales, lake = made(service, tmp_path)
    service.run("CREATE VIEW named_sales AS SELECT id AS number FROM sales")
    selected(service)
    service.run("DROP VIEW named_sales")
    DeltaTable(sales).update(updates={"amount": "amount + 1"}, predicate="id < 40")
    service.run("UPDATE cities SET name = 'Oslo' WHERE city = 'Oslo'")
    service.run("DELETE FROM orders WHERE id % 7 = 0")
    DeltaTable(sales).delete("id > 1400")
    mirrored(service, sales)
    in_the_lake(service, lake)
    assert service.verified("joined")["equal"]
    service.run("DROP MATERIALIZED VIEW placed")
    assert in_lake(lake / "placed")
    assert not list((lake / "placed" / "_tidefill").glob("*"))
    assert "tidefill writes, and mirror has none" in str(service.refused("DROP TABLE mirror PURGE"))
    inner = lake / "joined" / "inner"
    nested = f"CREATE MATERIALIZED VIEW inner_orders USING delta LOCATION '{inner}' AS SELECT id, kind FROM orders"
    assert "none lies in the folder of another" in str(service.refused(nested))
    write_deltalake(inner, rows(1, 5), configuration=FED)
    service.run(f"CREATE TABLE inner_sales (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{inner}')")
    assert "another table lies at" in str(service.refused("DROP MATERIALIZED VIEW joined CASCADE PURGE"))
    service.run("DROP TABLE inner_sales")
    assert service.run("DROP MATERIALIZED VIEW joined CASCADE PURGE")["notices"] == []
    assert not [*(lake / "joined").iterdir()]


@pytest.mark.soak
def test_i3_i12_i14_views_in_a_lake_follow_and_are_followed_over_kills(service: Service, tmp_path: Path) -> None:
    sales, lake = made(service, tmp_path)
    service.run("ALTER MATERIALIZED VIEW joined SET PARALLELISM = 3")
    actors = "select count(*) from tidefill.actor a join tidefill.fragment f on f.id = a.fragment where f.job = {}"
    until(lambda: service.stored(actors.format(service.job("joined"))) == [(3,)], what="the view has three actors")
    DeltaTable(sales).update(updates={"amount": "amount + 1"}, predicate="id < 40")
    service.kill_worker()
    service.run("UPDATE cities SET name = 'Oslo' WHERE city = 'Oslo'")
    service.run("DELETE FROM orders WHERE id % 7 = 0")
    DeltaTable(sales).delete("id > 1400")
    mirrored(service, sales)
    in_the_lake(service, lake)
    service.kill()
    service.wait_killed()
    service.restart()
    write_deltalake(sales, rows(2001, 50, "Bergen"), mode="append")
    service.run("UPDATE orders SET kind = 'other' WHERE id < 100")
    for name in VIEWS:
        assert service.verified(name)["equal"], name
    mirrored(service, sales)
    in_the_lake(service, lake)
    for name in VIEWS:
        assert service.verified(name)["equal"], name
    DeltaTable(lake / "joined").optimize.compact()
    service.run("UPDATE cities SET name = 'BER' WHERE city = 'Bergen'")
    in_the_lake(service, lake)


def test_a_view_in_a_lake_is_refused_before_anything_is_made(service: Service, tmp_path: Path) -> None:
    service.run("CREATE TABLE t (id bigint PRIMARY KEY, n numeric, v text)")
    lake = f"USING delta LOCATION '{tmp_path / 'v'}'"
    assert "numeric without precision" in str(
        service.refused(f"CREATE MATERIALIZED VIEW v {lake} AS SELECT id, n FROM t")
    )
    arranged = service.refused(f"CREATE MATERIALIZED VIEW v {lake} AS SELECT id, v FROM t", **ARRANGEMENT)
    assert "needs a graph of its own" in str(arranged)
    assert "FROM is missing" in str(service.refused(f"CREATE MATERIALIZED VIEW v {lake} AS SELECT 1 AS one"))
    explained = "\n".join(
        row[0] for row in service.sql(f"EXPLAIN CREATE MATERIALIZED VIEW v {lake} AS SELECT id FROM t")
    )
    assert "engine: spark" in explained
    assert "graph of its own" in explained
    assert not (tmp_path / "v").exists()
