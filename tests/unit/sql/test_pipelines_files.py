"""The statements of a project's files: what each defines, and what is refused with its line."""

import pytest

from service.domain.pipeline_spec import unpacked
from service.sql.pipelines.datasets import File, datasets_of
from service.sql.pipelines.files import Defines, read

PREFIXES = frozenset({("sales",), ("main", "sales")})
SPEC = unpacked({"name": "shop", "storage": "/lake", "catalog": "main", "database": "sales"})
BARE = unpacked({"name": "shop"})


@pytest.mark.parametrize(
    ("statement", "defines", "name"),
    [
        ("CREATE MATERIALIZED VIEW a AS SELECT 1 AS x", Defines.MATERIALIZED_VIEW, "a"),
        ("create or refresh materialized view if not exists A as select 1 as x", Defines.MATERIALIZED_VIEW, "a"),
        ("CREATE MATERIALIZED VIEW `A b` AS SELECT 1 AS x", Defines.MATERIALIZED_VIEW, "A b"),
        ("CREATE MATERIALIZED VIEW sales.a AS SELECT 1 AS x", Defines.MATERIALIZED_VIEW, "a"),
        ("CREATE MATERIALIZED VIEW main.sales.a AS SELECT 1 AS x", Defines.MATERIALIZED_VIEW, "a"),
        ("/* ; */ CREATE STREAMING TABLE a -- ;\n", Defines.STREAMING_TABLE, "a"),
        ("CREATE OR REFRESH STREAMING TABLE a AS SELECT * FROM STREAM x", Defines.STREAMING_TABLE, "a"),
        ("CREATE TEMPORARY VIEW a AS SELECT 1 AS x", Defines.VIEW, "a"),
        ("CREATE OR REPLACE TEMP VIEW a (x COMMENT 'the x', y) COMMENT 'c' AS SELECT 1, 2", Defines.VIEW, "a"),
        ("CREATE VIEW a AS SELECT 1 AS x", Defines.VIEW, "a"),
        ("CREATE FLOW a COMMENT 'c' AS INSERT INTO TABLE b BY NAME SELECT * FROM STREAM x", Defines.FLOW, "a"),
    ],
)
def test_what_a_statement_defines(statement: str, defines: Defines, name: str) -> None:
    found = read(statement, PREFIXES)
    assert not found.faults
    assert [(one.defines, one.name) for one in found.definitions] == [(defines, name)]


def test_clauses_come_in_any_order() -> None:
    text = "CREATE MATERIALIZED VIEW a {} AS SELECT 1 AS x"
    clauses = [
        "USING delta",
        "PARTITIONED BY (c, `D`)",
        "CLUSTER BY (e)",
        "COMMENT 'it''s'",
        "TBLPROPERTIES ('p' = 'q')",
    ]
    for given in (clauses, clauses[::-1]):
        (found,) = read(text.format(" ".join(given)), PREFIXES).definitions
        assert (found.is_delta, found.partitions) == (True, ("c", "D"))
        assert sorted(found.notes) == ["CLUSTER BY has no effect here", "TBLPROPERTIES has no effect here"]
        assert found.query is not None
        assert found.query.text == "SELECT 1 AS x"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SET x = 1", "CREATE statements only, not SET"),
        ("USE sales", "CREATE statements only, not USE"),
        ("INSERT INTO a SELECT 1", "CREATE statements only, not INSERT"),
        ("CREATE TABLE a (x int)", "CREATE TABLE is not supported"),
        ("CREATE OR REPLACE MATERIALIZED VIEW a AS SELECT 1", "takes OR REFRESH only"),
        ("CREATE TEMPORARY MATERIALIZED VIEW a AS SELECT 1", "takes OR REFRESH only"),
        ("CREATE OR REFRESH VIEW a AS SELECT 1", "does not take OR REFRESH"),
        ("CREATE MATERIALIZED VIEW a", "has a query"),
        ("CREATE MATERIALIZED VIEW a AS", "the statement ends|a query is expected|has a query"),
        ("CREATE MATERIALIZED VIEW a SELECT 1", 'AS is expected, not "SELECT"'),
        ("CREATE MATERIALIZED VIEW a (x int) AS SELECT 1", "columns with types"),
        ("CREATE MATERIALIZED VIEW a LOCATION '/x' AS SELECT 1", "neither LOCATION nor OPTIONS"),
        ("CREATE MATERIALIZED VIEW a OPTIONS (x 'y') AS SELECT 1", "neither LOCATION nor OPTIONS"),
        ("CREATE MATERIALIZED VIEW a USING parquet AS SELECT 1", "Delta tables, not parquet"),
        ("CREATE MATERIALIZED VIEW a PARTITIONED BY (days(x)) AS SELECT 1", "takes names of columns"),
        ("CREATE MATERIALIZED VIEW a PARTITIONED BY (x", "ends too early"),
        (
            "CREATE MATERIALIZED VIEW a TBLPROPERTIES ('pipelines.reset.allowed' = 'false') AS SELECT 1",
            "pipelines.reset",
        ),
        ("CREATE MATERIALIZED VIEW a COMMENT c AS SELECT 1", "a text in quotes"),
        ("CREATE MATERIALIZED VIEW other.a AS SELECT 1", "a name has no schema"),
        ("CREATE MATERIALIZED VIEW 'a' AS SELECT 1", "a name is expected"),
        ("CREATE FLOW a AS INSERT INTO b SELECT 1", "BY NAME is expected"),
        ("CREATE FLOW a AS AUTO CDC INTO b FROM STREAM c KEYS (d) SEQUENCE BY e", "AUTO CDC is not supported"),
        ("CREATE", "is not supported in a project"),
        ("CREATE VIEW a SELECT 1", "AS is expected"),
        ("CREATE MATERIALIZED VIEW a AS SELECT 'x", "this is no SQL"),
    ],
)
def test_what_is_refused(statement: str, why: str) -> None:
    found = read(f"CREATE VIEW v AS SELECT 1 AS x;\n{statement}", PREFIXES)
    assert len(found.faults) == 1
    assert any(part in found.faults[0].message for part in why.split("|")), found.faults[0].message


FILE = """-- Orders of a day
CREATE MATERIALIZED VIEW by_city PARTITIONED BY (city) AS
SELECT city, count(*) AS orders
FROM main.sales.orders GROUP BY city;

CREATE TEMPORARY VIEW big AS SELECT id FROM orders WHERE amount > 10;

CREATE STREAMING TABLE events;
CREATE FLOW every_event AS INSERT INTO events BY NAME
SELECT id FROM STREAM(orders);
"""


def test_the_datasets_of_a_file() -> None:
    by_city, big, events = datasets_of([File("all.sql", FILE)], SPEC)
    assert (by_city.kind, by_city.place, by_city.reads) == ("materialized view", "all.sql:2", {"orders"})
    assert by_city.created_at(1) == (
        """CREATE MATERIALIZED VIEW "by_city" USING delta LOCATION '/lake/by_city' PARTITIONED BY ("city")"""
        " AS SELECT city, COUNT(*) AS orders FROM orders GROUP BY city"
    )
    assert (big.kind, big.place, big.base) == ("view", "all.sql:6", None)
    assert big.created_at(1) == 'CREATE VIEW "big" AS SELECT id FROM orders WHERE amount > 10'
    assert (events.kind, events.place, events.reads) == ("sink", "all.sql:8", {"orders"})
    assert events.created_at(2) == (
        """CREATE SINK "events" AS SELECT id FROM orders WITH (connector = 'deltalake', type = 'append-only',"""
        " location = '/lake/events__2')"
    )


def test_options_are_those_of_every_table() -> None:
    options = {"commit_interval": "1 s", "s3.endpoint": "https://x", "s3.access.key": "k", "s3.secret.key": "the_key"}
    configuration = {f"tidefill.{name}": value for name, value in options.items()}
    spec = unpacked({"name": "shop", "storage": "s3://lake/it", "configuration": configuration})
    text = (
        "CREATE MATERIALIZED VIEW a AS SELECT x FROM y;"
        "CREATE STREAMING TABLE b PARTITIONED BY (x) AS SELECT x FROM STREAM y"
    )
    view, sink = datasets_of([File("a.sql", text)], spec)
    given = (
        "commit_interval = '1 s', s3.access.key = 'k', s3.endpoint = 'https://x', s3.secret.key = secret \"the_key\""
    )
    assert view.created_at(1) == (
        f"""CREATE MATERIALIZED VIEW "a" USING delta LOCATION 's3://lake/it/a' WITH ({given}) AS SELECT x FROM y"""
    )
    assert sink.created_at(1).endswith(f"location = 's3://lake/it/b', partition_by = 'x', {given})")


def test_without_storage_views_are_in_postgres() -> None:
    (view,) = datasets_of([File("a.sql", "CREATE MATERIALIZED VIEW a AS SELECT id FROM orders")], BARE)
    assert view.created_at(1) == 'CREATE MATERIALIZED VIEW "a" AS SELECT id FROM orders'
    assert view.base is None


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("CREATE STREAMING TABLE a", "f.sql:1", "no flow inserts"),
        ("CREATE MATERIALIZED VIEW a__2 AS SELECT x FROM y", "f.sql:1", "ends with __ and a number"),
        ("CREATE STREAMING TABLE a AS\nSELECT x FROM y", "f.sql:2", "appends the rows of one relation"),
        ("CREATE STREAMING TABLE a AS SELECT count(*) AS n FROM STREAM y", "f.sql:1", "appends the rows"),
        ("CREATE STREAMING TABLE a AS SELECT y.x FROM STREAM y JOIN STREAM z USING (x)", "f.sql:1", "appends the rows"),
        (
            "CREATE STREAMING TABLE a AS SELECT x FROM STREAM y WHERE x IN (SELECT z FROM STREAM y)",
            "f.sql:1",
            "appends",
        ),
        ("CREATE STREAMING TABLE a AS SELECT DISTINCT x FROM STREAM y", "f.sql:1", "appends the rows"),
        ("CREATE STREAMING TABLE a AS SELECT x FROM STREAM y UNION ALL SELECT x FROM STREAM y", "f.sql:1", "appends"),
        ("CREATE MATERIALIZED VIEW a AS\n\nSELECT x FROM STREAM y", "f.sql:3", "only a streaming table reads a STREAM"),
        ("CREATE TEMPORARY VIEW a AS SELECT x FROM STREAM y", "f.sql:1", "only a streaming table reads a STREAM"),
        (
            "\nCREATE FLOW f AS INSERT INTO a BY NAME SELECT x FROM STREAM y",
            "f.sql:2",
            "no file defines a streaming table",
        ),
        (
            "CREATE STREAMING TABLE a AS SELECT x FROM STREAM y; CREATE FLOW f AS INSERT INTO a BY NAME SELECT 1 AS x",
            "f.sql:1",
            "has one query",
        ),
        ("CREATE MATERIALIZED VIEW a AS SELECT x\n, avg(y) AS z FROM t", "f.sql:2", "the digits of an average"),
        ("CREATE MATERIALIZED VIEW a AS SELECT 1 AS x", "f.sql:1", "a view in a lake reads a relation"),
        ("CREATE MATERIALIZED VIEW a AS SELECT x FROM t, t", None, ""),
        ("\n\nselect 1; set x = 1", "f.sql:3", "CREATE statements only, not SELECT; a project has CREATE"),
    ],
)
def test_where_a_definition_is_refused(text: str, place: str | None, why: str) -> None:
    found = [one for one in datasets_of([File("f.sql", text)], SPEC) if one.fault is not None]
    assert [one.place for one in found] == ([] if place is None else [place])
    assert all(why in str(one.fault) for one in found), found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("CREATE STREAMING TABLE a AS SELECT x FROM STREAM y", "the specification has no storage"),
        ("CREATE MATERIALIZED VIEW a USING delta AS SELECT 1 AS x", "need a storage"),
        ("CREATE MATERIALIZED VIEW a PARTITIONED BY (x) AS SELECT 1 AS x", "need a storage"),
    ],
)
def test_what_needs_a_storage(text: str, why: str) -> None:
    (found,) = datasets_of([File("f.sql", text)], BARE)
    assert why in str(found.fault)
