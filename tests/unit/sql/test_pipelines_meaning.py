"""Queries in Spark's SQL: what they become, what is refused, and how definitions are compared."""

import pytest

from service.domain.errors import Invalid
from service.sql.pipelines.comparing import reads_of, shape_of
from service.sql.pipelines.files import Query
from service.sql.pipelines.meaning import meaning_of

PREFIXES = frozenset({("sales",)})


@pytest.mark.parametrize(
    ("spark", "postgres"),
    [
        ('SELECT `My Col`, "it\'s" AS t FROM `T`', """SELECT "My Col", 'it''s' AS t FROM "T\""""),
        ("SELECT a <=> b AS x FROM t", "SELECT a IS NOT DISTINCT FROM b AS x FROM t"),
        ("SELECT a -- the a\n, /* the b */ b FROM t", "SELECT a, b FROM t"),
        ("SELECT a == 1 AS x FROM t", "SELECT a = 1 AS x FROM t"),
        ("SELECT concat(a, b) AS x FROM t", "SELECT a || b AS x FROM t"),
        (
            "SELECT if(a, 1, 2) AS x, nvl(b, 3) AS y FROM t",
            "SELECT CASE WHEN a THEN 1 ELSE 2 END AS x, COALESCE(b, 3) AS y FROM t",
        ),
        ("SELECT year(d) AS y FROM t", "SELECT CAST(EXTRACT(YEAR FROM CAST(d AS DATE)) AS INT) AS y FROM t"),
        ("SELECT date_trunc('DAY', d) AS y FROM t", "SELECT CAST(DATE_TRUNC('DAY', d) AS TIMESTAMPTZ) AS y FROM t"),
        ("SELECT extract(MONTH FROM d) AS y FROM t", "SELECT CAST(EXTRACT(MONTH FROM d) AS INT) AS y FROM t"),
        ("SELECT CAST(a AS DOUBLE) / b AS x FROM t", "SELECT CAST(a AS DOUBLE PRECISION) / b AS x FROM t"),
        ("SELECT avg(CAST(a AS DOUBLE)) AS x FROM t", "SELECT AVG(CAST(a AS DOUBLE PRECISION)) AS x FROM t"),
        ("SELECT 2L AS a, 1.5BD AS b", "SELECT CAST(2 AS BIGINT) AS a, CAST('1.5' AS DECIMAL(2, 1)) AS b"),
        ("SELECT CAST(a AS TIMESTAMP) AS x FROM t", "SELECT CAST(a AS TIMESTAMPTZ) AS x FROM t"),
        (
            "SELECT rank() OVER (PARTITION BY a ORDER BY b DESC, c) AS r FROM t",
            "SELECT RANK() OVER (PARTITION BY a ORDER BY b DESC NULLS LAST, c NULLS FIRST) AS r FROM t",
        ),
        (
            "SELECT a FROM t LEFT ANTI JOIN u ON t.a = u.b",
            "SELECT a FROM t WHERE NOT EXISTS(SELECT 1 FROM u WHERE t.a = u.b)",
        ),
        ("FROM t SELECT a", "SELECT a FROM t"),
        ("SELECT * FROM VALUES (1, 'x') AS v(a, b)", "SELECT * FROM (VALUES (1, 'x')) AS v(a, b)"),
        ("SELECT a FROM sales.t AS u", "SELECT a FROM t AS u"),
        ("SELECT s.a FROM STREAM(sales.t) s", "SELECT s.a FROM t AS s"),
        (
            "SELECT count(DISTINCT a) FILTER (WHERE b) AS n FROM t",
            "SELECT COUNT(DISTINCT a) FILTER(WHERE b) AS n FROM t",
        ),
        (
            "SELECT round(a, 2) AS x, substr(b, 2, 3) AS y FROM t",
            "SELECT ROUND(a, 2) AS x, SUBSTRING(b FROM 2 FOR 3) AS y FROM t",
        ),
    ],
)
def test_what_a_query_becomes(spark: str, postgres: str) -> None:
    assert meaning_of(Query(spark, 0), PREFIXES).sql == postgres


@pytest.mark.parametrize(
    ("query", "marked", "why"),
    [
        ("SELECT a, ^a / b AS x FROM t", 0, "the result of / depends on types"),
        ("SELECT ^avg(a) AS x FROM t", 0, "the digits of an average"),
        ("SELECT ^round(a) AS x FROM t", 0, "round of a float"),
        ("SELECT CAST(^a AS INT) AS x FROM t", 0, "a cast to an integer cuts digits"),
        ("SELECT CAST(^a AS STRING) AS x FROM t", 0, "a cast to STRING"),
        ("SELECT CAST(^a AS DECIMAL) AS x FROM t", 0, "DECIMAL needs a precision"),
        ("SELECT CAST(^a AS BINARY) AS x FROM t", 0, "a cast to BINARY is not supported"),
        ("SELECT ^1e3 AS x", 0, "1e3 is a DOUBLE"),
        ("SELECT a FROM t WHERE (^a, b) = (1, 2)", 0, "equals another one with NULLs in Spark only"),
        ("SELECT a FROM t WHERE (^a, b) IN (SELECT a, b FROM u)", 0, "equals another one with NULLs in Spark only"),
        ("SELECT * FROM VALUES (^1, 2)", 0, "VALUES needs names"),
        ("SELECT * FROM VALUES (^1, 2) AS t", 0, "VALUES needs names"),
        ("SELECT ^count(*) FROM t", 0, "a computed column needs a name"),
        ("SELECT x.n FROM (SELECT ^count(*) FROM t) AS x", 0, "a computed column needs a name"),
        ("SELECT substring(^a, -2) AS x FROM t", 0, "substring begins at a literal position"),
        ("SELECT count(DISTINCT ^a, b) AS x FROM t", 0, "takes one column"),
        ("SELECT a FROM t NATURAL JOIN ^u", 0, "NATURAL JOIN is not supported"),
        ("SELECT a FROM t LEFT SEMI JOIN ^u ON t.a = u.a LEFT JOIN v ON v.a = t.a", 0, "is the last one"),
        ("SELECT ^collect_list(a) AS x FROM t", 0, "function arrayagg has no translation"),
        ("SELECT ^no_such(a) AS x FROM t", 0, "function no_such has no translation"),
        ("SELECT a FROM t LATERAL VIEW ^explode(b) v AS c", 0, "has no translation"),
        ("SELECT a FROM ^other.t", 0, "a name has no schema"),
        ("SELECT a, count(*) AS n FROM t GROUP BY ALL", None, "GROUP BY takes expressions"),
        ("SELECT * EXCEPT (a) FROM t", None, "EXCEPT is not supported"),
        ("SELECT a FROM t UNION ALL BY NAME SELECT a FROM u", None, "BY NAME is not supported"),
        ("SELECT /*+ BROADCAST(t) */ a FROM t", None, "HINT is not supported"),
        ("SELECT 1 + ^FROM t", None, 'syntax error at or near "FROM"'),
        ("^TABLE t", 0, "a query begins with"),
        ("SELECT a FROM STREAM (SELECT ^a FROM t)", None, "STREAM takes the name"),
        ("WITH t AS (SELECT 1 AS a) SELECT a FROM ^sales.t", None, "is also the name of a WITH query"),
    ],
)
def test_what_is_refused_and_where(query: str, marked: int | None, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        meaning_of(Query(query.replace("^", ""), 100), PREFIXES)
    assert why in refused.value.message
    if marked is not None:
        assert refused.value.position == 101 + query.index("^")


@pytest.mark.parametrize(
    ("query", "reads", "streams"),
    [
        ("WITH w AS (SELECT a FROM t) SELECT w.a FROM w JOIN sales.u USING (a)", {"t", "u"}, set[str]()),
        ("SELECT a FROM T WHERE a IN (SELECT b FROM `T`)", {"t", "T"}, set[str]()),
        ("SELECT a FROM STREAM t", {"t"}, {"t"}),
    ],
)
def test_what_a_query_reads(query: str, reads: set[str], streams: set[str]) -> None:
    found = meaning_of(Query(query, 0), PREFIXES)
    assert (found.reads, found.streams) == (reads, streams)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("CREATE VIEW a AS SELECT x FROM t", 'create  view "a" as select X /* c */ from "t"', True),
        ("CREATE VIEW a AS SELECT x FROM t", "CREATE VIEW a AS SELECT x FROM t WHERE x = 1", False),
        ("CREATE VIEW a AS SELECT x FROM t", "CREATE VIEW a (y) AS SELECT x FROM t", False),
        ("CREATE VIEW a AS SELECT 'x' AS b FROM t", "CREATE VIEW a AS SELECT 'X' AS b FROM t", False),
        ("CREATE VIEW a AS SELECT x FROM t", "CREATE MATERIALIZED VIEW a AS SELECT x FROM t", False),
        (
            "CREATE MATERIALIZED VIEW a WITH (backfill_rate_limit = 5) AS SELECT x FROM t",
            "CREATE MATERIALIZED VIEW a AS SELECT x FROM t",
            False,
        ),
    ],
)
def test_definitions_are_compared_as_parsed(one: str, other: str, alike: bool) -> None:
    first, second = shape_of(one), shape_of(other)
    assert first is not None
    assert second is not None
    assert first.is_like(second, None) is alike


LAKE = "CREATE MATERIALIZED VIEW a USING delta LOCATION '{}' {} AS SELECT x FROM t"
SINK = "CREATE SINK a AS SELECT x FROM t WITH (connector = 'deltalake', type = '{}', location = '/l/a')"


@pytest.mark.parametrize(
    ("there", "alike"),
    [
        (LAKE.format("/l/a", ""), True),
        (LAKE.format("/l/a__7", ""), True),
        ("CREATE MATERIALIZED VIEW a USING deltalake WITH (location = '/l/a') AS SELECT x FROM t", True),
        (LAKE.format("/m/a", ""), False),
        (LAKE.format("/l/a", "PARTITIONED BY (x)"), False),
        (LAKE.format("/l/a", "WITH (commit_interval = '1 s')"), False),
        ("CREATE MATERIALIZED VIEW a AS SELECT x FROM t", False),
    ],
)
def test_a_table_may_have_a_number(there: str, alike: bool) -> None:
    held, wanted = shape_of(there), shape_of(LAKE.format("/l/a", ""))
    assert held is not None
    assert wanted is not None
    assert held.is_like(wanted, "/l/a") is alike


def test_sinks_differ_by_their_type() -> None:
    held, wanted = shape_of(SINK.format("upsert")), shape_of(SINK.format("append-only"))
    assert held is not None
    assert wanted is not None
    assert held.is_like(held, "/l/a")
    assert not held.is_like(wanted, "/l/a")


def test_what_a_definition_reads() -> None:
    names = {"t", "u"}
    assert reads_of("CREATE MATERIALIZED VIEW a AS SELECT x FROM t", names) == {"t"}
    assert reads_of("CREATE SINK a FROM u WITH (connector = 'blackhole')", names) == {"u"}
    assert reads_of("CREATE VIEW a AS SELECT x FROM ORDERS", {"orders"}) == {"orders"}
    assert reads_of("CREATE TABLE t (x int)", names) == set()
    assert reads_of("CREATE nonsense t", names) == set()
    assert shape_of("CREATE TABLE t (x int)") is None
