"""A view holds what its text answers as a SELECT in Postgres, whichever engine computes it (I12)."""

import pytest
from pyspark.sql import SparkSession

from tests.support.meaning import answers

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select id, 10 / coalesce(x, 0) as q from t where x > 0", [("1", "2")]),
        ("select id, sqrt(coalesce(x, -1)) as q from t where x > 0 and x < 5", []),
    ],
)
def test_d4_no_text_fails_on_the_control_row(
    database_url: str, spark: SparkSession, query: str, expected: list[tuple[str, ...]]
) -> None:
    table = "create table t (id bigint primary key, x int)"
    found = answers(database_url, spark, table, "(1, 5), (2, 0), (3, null)", query)
    assert found.postgres == found.spark == expected


def test_d5_columns_called_as_those_that_travel_once_were(database_url: str, spark: SparkSession) -> None:
    table = "create table t (id bigint primary key, _op int, _p int, _p_0 text, _report text)"
    query = "select id, _op + 1 as _op, _p, _p_0, _report from t where _op = 7"
    found = answers(database_url, spark, table, "(1, 7, 2, 'a', 'b'), (2, 0, 0, null, null)", query)
    assert found.postgres == found.spark == [("1", "8", "2", "a", "b")]


def test_d6_columns_that_differ_in_case_only(database_url: str, spark: SparkSession) -> None:
    table = 'create table t (id bigint primary key, "a" int, "A" int, "_VNODE" int)'
    query = 'select *, "a" - "A" as d, "A" as "D" from t where "a" > "A"'
    found = answers(database_url, spark, table, "(1, 7, 2, 3), (2, 1, 2, 3)", query)
    assert found.postgres == found.spark == [("1", "7", "2", "3", "5", "2")]
