"""A query of a project means in tidefill's language what it means in Spark's. Both run over the same rows."""

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

from service.sql.pipelines.files import Query, read
from service.sql.pipelines.meaning import meaning_of
from tests.spark.test_expression_parity import ROWS, TABLE, load, run, same, spark_value
from tests.support.expressions import table

Rows = list[tuple[Any, ...]]
pytestmark = [pytest.mark.spark, pytest.mark.postgres]

# Expressions of Spark's SQL that are permitted, each defined on every row.
EXPRESSIONS: Final = r"""
s + 1 | i - s | n * 3 | n * m | i % 4 | -b % 7 | mod(i, 5) | -n | abs(n) | abs(d)
CAST(i AS DOUBLE) / 4 | d / CAST(3 AS DOUBLE) | CAST(n AS DECIMAL(20, 1)) | CAST(d AS FLOAT) | CAST('7' AS INT) + i
CAST(dt AS TIMESTAMP_NTZ) | CAST('2024-05-06' AS DATE) | DATE '2024-01-01' | 1.5BD + n | 2L * i | 2.0D * d
i == 4 | i != 4 | i <=> NULL | NOT ok | ok AND i > 0 | ok OR i > 0 | i IN (4, 0) | i NOT IN (4, 0) | n BETWEEN -4 AND 2.5 | x LIKE 'A%' | x LIKE '%\\%%'
x IS NULL | x IS NOT NULL | ok IS TRUE | ok IS NOT TRUE | x = "Abc" | x < 'b' | y > 'a'
if(i > 0, 'p', 'q') | CASE i WHEN 4 THEN 'x' ELSE y END | nvl(x, 'none') | coalesce(x, y) | ifnull(i, 1) | nullif(i, 4) | greatest(i, s, 3) | least(n, i)
concat(x, y) | x || y | concat(x, NULL) | length(x) | char_length(y) | trim(y) | substring(x, 2) | substr(x, 1, 2) | substring(x, 1, 0) | 'it\'s' | 'a\tb'
round(n, 1) | round(m, 3) | round(n, -2) | floor(n) | ceil(n) | floor(d) | ceiling(d)
year(dt) | month(ts) | day(dt) | extract(YEAR FROM dt) | extract(QUARTER FROM ts) | CAST(year(dt) AS INT) + 1
date_trunc('month', ts) | date_trunc('WEEK', dt) | date_trunc('quarter', tz) | dt + 1 | dt - 1
count(*) OVER (PARTITION BY ok) | row_number() OVER (ORDER BY x, id) | rank() OVER (ORDER BY n DESC) | dense_rank() OVER (PARTITION BY ok ORDER BY y)
lag(i) OVER (ORDER BY id) | lead(i, 2, 0) OVER (ORDER BY id) | first_value(x) OVER (ORDER BY x DESC, id) | sum(n) OVER (ORDER BY id)
max(i) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
"""  # noqa: E501 - one expression after the other

QUERIES: Final = (
    "SELECT ok, count(*) AS n, count(x) AS m, count(DISTINCT y) AS k, sum(i) AS s FROM t GROUP BY ok",
    "SELECT ok, min(x) AS a, max(n) AS b FROM t GROUP BY ok",
    "SELECT ok, CAST(sum(n) AS DECIMAL(20, 2)) AS s, avg(CAST(s AS DOUBLE)) AS a FROM t GROUP BY 1 HAVING count(*) > 1",
    "SELECT i > 0 AS p, sum(s) FILTER (WHERE ok) AS f FROM t GROUP BY 1",
    "SELECT a.id, b.y FROM t a JOIN t AS b ON a.s = b.s AND a.id <> b.id + 100",
    "SELECT a.id, b.x FROM t a LEFT JOIN t b ON a.id = b.id + 1",
    "SELECT id, b.x FROM t a FULL OUTER JOIN (SELECT id, x FROM t WHERE id > 2) b USING (id)",
    "SELECT id FROM t LEFT SEMI JOIN (SELECT id + 1 AS k FROM t) u ON t.id = u.k",
    "SELECT id FROM t LEFT ANTI JOIN (SELECT id + 1 AS k FROM t) u ON t.id = u.k",
    "SELECT id FROM t WHERE i IN (SELECT i FROM t WHERE ok) AND EXISTS (SELECT 1 FROM t u WHERE u.id = t.id)",
    "SELECT ok FROM t UNION SELECT i > 0 FROM t",
    "SELECT x FROM t INTERSECT SELECT x FROM t WHERE ok",
    "SELECT x FROM t EXCEPT SELECT x FROM t WHERE ok",
    "SELECT x FROM t MINUS SELECT x FROM t WHERE ok",
    "SELECT id, x FROM t ORDER BY x LIMIT 3",
    "SELECT id, x FROM t ORDER BY x DESC LIMIT 3",
    "WITH w AS (SELECT DISTINCT ok AS o FROM t) SELECT count(*) AS n FROM w",
    "SELECT * FROM VALUES (1, 'a'), (2, NULL) AS v(p, q)",
    "FROM t SELECT id, 'x' 'y' AS z",
    "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY ok ORDER BY n DESC, id) AS r FROM t) WHERE r = 1",
)


def texts() -> list[str]:
    return [part.strip() for part in EXPRESSIONS.replace("\n", " | ").split(" | ") if part.strip()]


def translated(query: str) -> str:
    return meaning_of(Query(query, 0), frozenset()).sql


def rows_of(frame: DataFrame) -> Rows:
    shown = [
        f"unix_micros(`{field.name}`) AS `{field.name}`"
        if isinstance(field.dataType, TimestampType)
        else f"`{field.name}`"
        for field in frame.schema.fields
    ]
    return [tuple(row) for row in frame.selectExpr(*shown).collect()]


@pytest.fixture
def filled(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with the rows, which takes one task for each exchange: a plan here has dozens of them."""
    columns = table(TABLE).columns
    rows = [
        f"({', '.join(spark_value(text, column.type) for text, column in zip(row, columns, strict=True))})"
        for row in ROWS
    ]
    names = ", ".join(f"`{column.name}`" for column in columns)
    # Frames such as 1 PRECEDING need Spark's own rules. The text of a user never reaches a worker's Spark.
    own = {"spark.sql.shuffle.partitions": "1", "spark.sql.optimizer.excludedRules": ""}
    before = {name: spark.conf.get(name, None) for name in own}
    for name, value in own.items():
        spark.conf.set(name, value)
    spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t({names})").createOrReplaceTempView("t")
    yield spark
    spark.catalog.dropTempView("t")
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def alike(one: Rows, other: Rows) -> bool:
    return len(one) == len(other) and all(
        same(left, right) for row, its in zip(one, other, strict=True) for left, right in zip(row, its, strict=True)
    )


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: repr([str(value) for value in row]))


def test_a_query_means_the_same_in_both_languages(database_url: str, filled: SparkSession) -> None:
    columns = ", ".join(f"{text} AS c{at}" for at, text in enumerate(texts()))
    wide = f"SELECT id, {columns} FROM t ORDER BY id"
    differing: list[str] = []
    with psycopg.connect(database_url) as connection:
        load(connection)
        for left, right in zip(run(connection, translated(wide)), rows_of(filled.sql(wide)), strict=True):
            differing += [
                f"{text}: row {left[0]}: Postgres {expected!r}, Spark {found!r}"
                for text, expected, found in zip(texts(), left[1:], right[1:], strict=True)
                if not same(expected, found)
            ]
        for query in QUERIES:
            expected, found = run(connection, translated(query)), rows_of(filled.sql(query))
            if not alike(in_order(expected), in_order(found)):
                differing.append(f"{query}: Postgres {expected!r}, Spark {found!r}")
    assert not differing, "\n".join(differing)


STATEMENTS: Final = (
    "CREATE MATERIALIZED VIEW IF NOT EXISTS a.b USING delta PARTITIONED BY (c) AS SELECT 1 AS c",
    "CREATE MATERIALIZED VIEW a CLUSTER BY (c) COMMENT 'it' TBLPROPERTIES ('p' = 'q') AS SELECT 1 AS c",
    "CREATE STREAMING TABLE a",
    "CREATE STREAMING TABLE IF NOT EXISTS a PARTITIONED BY (b) AS SELECT b FROM STREAM c",
    "CREATE STREAMING TABLE a AS SELECT b FROM STREAM(c) AS d WHERE b > 1",
    "CREATE FLOW a AS INSERT INTO b BY NAME SELECT c FROM STREAM d",
    "CREATE FLOW a COMMENT 'it' AS INSERT INTO TABLE b BY NAME SELECT c FROM STREAM d",
    "CREATE TEMPORARY VIEW a AS SELECT 1 AS c",
    "CREATE OR REPLACE TEMP VIEW a (b COMMENT 'the b', c) COMMENT 'it' AS SELECT 1, 2",
    "CREATE VIEW a AS SELECT 1 AS c",
)
REFUSED: Final = (
    "CREATE OR REPLACE MATERIALIZED VIEW a AS SELECT 1 AS c",
    "CREATE TEMPORARY MATERIALIZED VIEW a AS SELECT 1 AS c",
    "CREATE OR REFRESH TEMPORARY VIEW a AS SELECT 1 AS c",
    "CREATE MATERIALIZED VIEW a LOCATION '/x' AS SELECT 1 AS c",
    "CREATE MATERIALIZED VIEW a OPTIONS (b 'c') AS SELECT 1 AS c",
    "CREATE MATERIALIZED VIEW a SELECT 1 AS c",
    "CREATE FLOW a INSERT INTO b BY NAME SELECT 1 AS c",
)


@pytest.mark.parametrize(("statements", "taken"), [(STATEMENTS, True), (REFUSED, False)], ids=["taken", "refused"])
def test_statements_are_those_of_sparks_grammar(
    spark: SparkSession, statements: tuple[str, ...], *, taken: bool
) -> None:
    session: Any = spark
    parser = session._jsparkSession.sessionState().sqlParser()
    for statement in statements:
        assert bool(read(statement, frozenset({("a",)})).definitions) is taken, statement
        try:
            parser.parsePlan(statement)
        except PySparkException:
            assert not taken, statement
        else:
            assert taken, statement
