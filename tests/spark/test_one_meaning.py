"""A view holds what its text answers as a SELECT in Postgres, whichever engine computes it (I12)."""

from decimal import Decimal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.meaning import answers
from tests.support.sampling import sampled

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select id, 10 / coalesce(x, 0) as q from t where x > 0", [("1", "2")]),
        ("select id, sqrt(coalesce(x, -1)) as q from t where x > 0 and x < 5", []),
    ],
)
def test_d4_what_a_filter_drops_is_not_computed(
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


NUMERICS = (
    "create table t (id bigint primary key, m numeric(38,10), w numeric(38,0), p numeric(12,2), f numeric(38,38))"
)
WIDE = """(1, 0.0000000001, 0, 0.50, 0.00000000000000000000000000000000000001), (2, 5, 5, 5, 0.5),
    (3, 2.5, 3, -3, -0.5), (4, -0.5, -1, -0.50, 0), (5, -2.5, -2, -2.5, null), (6, null, 7, 7, 0.1),
    (7, 9999999999999999999999999999, 99999999999999999999999999999999999999, 9999999999.99, 0.9)"""


SIGNS = ("=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from")
SIDES = (("m", "w"), ("w", "m"), ("m", "p"), ("f", "w"), ("f", "m"), ("f", "id"), ("w", "-0.5"))
COMPARED = [f"{one} {sign} {other}" for one, other in SIDES for sign in SIGNS]


@pytest.mark.parametrize("condition", sampled(COMPARED))
def test_d2_numerics_are_compared_without_rounding(database_url: str, spark: SparkSession, condition: str) -> None:
    found = answers(database_url, spark, NUMERICS, WIDE, f"select id from t where {condition}")
    assert found.postgres == found.spark


@pytest.mark.parametrize(
    "condition",
    ["m in (w, p)", "m not in (w, 2.5)", "w between m and p", "w not between m and p", "nullif(m, w) is null",
     "case m when w then true else false end", "f in (0.5, w)"],
)  # fmt: skip
def test_d2_nor_in_lists_and_ranges(database_url: str, spark: SparkSession, condition: str) -> None:
    found = answers(database_url, spark, NUMERICS, WIDE, f"select id from t where {condition}")
    assert found.postgres == found.spark


def test_d3_sums_and_products_keep_every_digit(database_url: str, spark: SparkSession) -> None:
    sums = ("m + 1", "m - p", "p + m", "w + m", "-m", "m * p", "p * p * p", "m % p", "abs(m)", "mod(m, w)",
        "coalesce(p, id)", "greatest(p, id)")  # fmt: skip
    listed = ", ".join(f"({one})::numeric(38,10) as c{place}" for place, one in enumerate(sums))
    query = f"select id, {listed} from t where id < 6 and w <> 0"
    found = answers(database_url, spark, NUMERICS, WIDE, query)
    expected = [[Decimal(value) for value in row if value is not None] for row in found.postgres]
    assert [[Decimal(value) for value in row if value is not None] for row in found.spark] == expected


@pytest.mark.parametrize(
    "sum_", ["(w + 1)::numeric(38,0)", "(m * w)::numeric(38,10)", "(w * 10)::numeric(38,0)", "(m + w)::numeric(38,10)"]
)
def test_d3_what_has_no_room_is_an_error(database_url: str, spark: SparkSession, sum_: str) -> None:
    with pytest.raises(PySparkException, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        answers(database_url, spark, NUMERICS, WIDE, f"select id, {sum_} as s from t")


def test_a_sum_is_computed_in_the_order_in_which_it_is_written(database_url: str, spark: SparkSession) -> None:
    table = "create table t (id bigint primary key, a smallint, b smallint)"
    query = "select id, a + ((a + b) + 0::smallint) as c from t"
    found = answers(database_url, spark, table, "(1, 32767, -32768), (2, 1, 2)", query)
    assert found.postgres == found.spark == [("1", "32766"), ("2", "4")]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("kind", ["real", "double precision"])
def test_d7_a_float_that_is_no_number_is_no_numeric(
    database_url: str, spark: SparkSession, value: str, kind: str
) -> None:
    table = f"create table t (id bigint primary key, d {kind})"
    with pytest.raises(PySparkException, match="numeric"):
        answers(database_url, spark, table, f"(1, '{value}'), (2, 1.5)", "select id, d::numeric(10,2) as n from t")


def test_d11_small_ones(database_url: str, spark: SparkSession) -> None:
    table = "create table t (id bigint primary key, x text, a int[], n int)"
    query = "select id, right(x, n) as r, a[n] as a from t"
    values = """(1, 'abc', '{1}', -2147483647), (2, 'abc', '{1}', -2147483647), (3, 'a', '{4}', 1),
        (4, null, null, null), (5, '', '{}', 0)"""
    found = answers(database_url, spark, table, values, query)
    assert found.postgres == found.spark


@pytest.mark.parametrize(
    "expression",
    [
        *("ceil(d)", "floor(d)", "trunc(d)", "trunc(-d)", "ceiling(d / 10)", "-2147483648", "sign(d)"),
        *(
            "n >= 12345678901234567890.123",
            "n < 99999999999.5",
            "id in (12345678901234567890.5, 3)",
            "n <> 2147483648.5",
        ),
        *("(r / q)::double precision", "(q / r)::double precision", "-9223372036854775808", "-(2147483648::bigint)"),
        *("right(x, n)", "left(x, n)", "x || right(x, n + 1)"),
    ],
)
def test_signs_of_zeros_quotients_of_reals_and_the_least_integer(
    database_url: str, spark: SparkSession, expression: str
) -> None:
    table = "create table t (id bigint primary key, d double precision, r real, q real, x text, n int)"
    values = """(1, -0.5, 7, 3, 'abc', -2147483648), (2, '-0', 1e10, -3, 'ž', -2147483647), (3, 0, -7, 0.1, '', 0),
        (4, 0.5, 'NaN', 2, null, 1), (5, '-Infinity', 1, 'Infinity', 'abc', null), (6, -9e15, null, 1, 'abc', 2),
        (7, 'NaN', 5, 3, 'abc', -1), (8, 1.5, 1, 3, 'abc', 2147483646), (9, null, 2, 3, 'abc', -2147483648)"""
    query = f"select id, {expression} as e from t"
    found = answers(database_url, spark, table, values, query)
    assert found.postgres == found.spark


@pytest.mark.parametrize("wide", ["w", "i", "12345678901234567890123456789012345678"])
def test_d2_nulls_among_numbers_that_are_compared_in_two_parts(
    database_url: str, spark: SparkSession, wide: str
) -> None:
    table = "create table t (id bigint primary key, n numeric(38,18), w numeric(38,0), i bigint)"
    values = """(1, 0.9999, null, null), (2, null, 5, 5), (3, null, null, null), (4, 5, 5, 5), (5, 5.5, 5, 5),
        (6, 5, null, null)"""
    compared = (
        *(f"n {sign} {wide}" for sign in ("=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from")),
        *(f"not (n = {wide})", f"n in ({wide}, 7)", f"n not in (7, {wide})", f"n between {wide} and {wide}"),
    )
    listed = ", ".join(f"({text}) as c{place}" for place, text in enumerate(compared))
    found = answers(database_url, spark, table, values, f"select id, {listed} from t")
    assert found.postgres == found.spark


def test_null_is_in_no_empty_array(database_url: str, spark: SparkSession) -> None:
    table = "create table t (id bigint primary key, n int, a int[])"
    values = """(1, null, '{}'), (2, 1, '{}'), (3, null, null), (4, null, '{1}'), (5, 1, '{1,null}'),
        (6, 2, '{1,null}'), (7, 2, '{1}'), (8, 1, null)"""
    query = "select id, n = any(a) as a, not (n = any(a)) as b, 1 = any(a) as c from t"
    found = answers(database_url, spark, table, values, query)
    assert found.postgres == found.spark


def test_a_negative_length_is_no_matter_of_a_text_that_is_not_there(database_url: str, spark: SparkSession) -> None:
    table = "create table t (id bigint primary key, x text, n int)"
    query = "select id, substring(x for -2) as a, substring('abc', n, -1) as b from t"
    found = answers(database_url, spark, table, "(1, null, null), (2, null, null)", query)
    assert found.postgres == found.spark == [("1", None, None), ("2", None, None)]


@pytest.mark.parametrize("text", ["lpad(x, n)", "rpad(x, n)", "lpad(x, n, x)", "rpad('a', n, x)", "repeat(x, n)"])
def test_a_length_beyond_the_bound_is_no_matter_where_the_answer_is_null(
    database_url: str, spark: SparkSession, text: str
) -> None:
    table = "create table t (id bigint primary key, x text, n int)"
    found = answers(database_url, spark, table, "(1, null, 2147483647), (2, 'ab', 5)", f"select id, {text} as c from t")
    assert found.postgres == found.spark


@pytest.mark.parametrize(
    "text", ["lpad(x, 40000000)", "repeat(x, 40000000)", "replace(x, 'a', repeat(substring(x, 1, 1), 33554000))"]
)
def test_a_text_beyond_the_bound_fails_its_view(database_url: str, spark: SparkSession, text: str) -> None:
    table = "create table t (id bigint primary key, x text)"
    with pytest.raises(PySparkException, match="32 MiB"):
        answers(database_url, spark, table, "(1, 'aaaa')", f"select id, length({text}) as c from t")
