"""LIKE of a view means in Spark what it means in Postgres, and no row makes it search for long."""

from collections.abc import Sequence

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.protocol.quoting import quoted_text
from tests.support.expressions import bound, query_of, table

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

CHARACTERS = "aAbQE%_\\\n🐎.$)"
TEXTS = st.text(CHARACTERS, max_size=9)
PATTERNS = st.lists(st.sampled_from([*CHARACTERS.replace("\\", ""), "%", "_", *(f"\\{one}" for one in CHARACTERS)]))
Row = tuple[int, str | None, str | None]


TABLE = table("create table t (id integer primary key, x text, y text)")


def in_spark(session: SparkSession, rows: Sequence[Row], expressions: Sequence[str]) -> list[list[bool | None]]:
    columns = ", ".join(f"{text} as c{place}" for place, text in enumerate(expressions))
    shown = bound(query_of(f"select {columns} from t"), TABLE).texts
    frame = session.createDataFrame(list(rows), "id int, x string, y string")
    return [list(row[1:]) for row in sorted(frame.selectExpr("id", *shown).collect())]


def in_postgres(url: str, rows: Sequence[Row], expressions: Sequence[str]) -> list[list[bool | None]]:
    listed = ", ".join(f"({key}, {_text(x)}, {_text(y)})" for key, x, y in rows)
    query = f"select {', '.join(expressions)} from (values {listed}) as t(id, x, y) order by id"
    with psycopg.connect(url) as connection:
        return [list(row) for row in connection.execute(query.encode()).fetchall()]


def _text(value: str | None) -> str:
    return "null::text" if value is None else quoted_text(value)


def matches(text: str, pattern: str) -> bool:
    """LIKE, told for each length of the text and of the pattern."""
    characters = iter(pattern)
    special = {"%": "any", "_": "one"}
    tokens = [next(characters) if one == "\\" else special.get(one, one) for one in characters]
    fits = [True, *[False] * len(text)]
    for token in tokens:
        if token == "any":
            fits = [any(fits[: place + 1]) for place in range(len(fits))]
        else:
            fits = [False, *(fits[at] and token in ("one", text[at]) for at in range(len(text)))]
    return fits[-1]


@pytest.mark.timeout(60, func_only=True)
def test_n4a_no_row_makes_a_pattern_search_for_long(spark: SparkSession) -> None:
    pattern = f"{'%a' * 13}%b"
    written = [f"x like '{pattern}'", "x like y", f"x not like '{pattern}'", f"x like '{'%_' * 13}%b' escape '!'"]
    assert in_spark(spark, [(1, "a" * 60, pattern)], written) == [[False, False, True, False]]


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXTS, min_size=12, max_size=24), patterns=st.lists(PATTERNS.map("".join), min_size=10, max_size=16)
)
def test_n4a_a_pattern_means_what_it_means_in_postgres(
    texts: list[str], patterns: list[str], database_url: str, spark: SparkSession
) -> None:
    pairs = [(text, patterns[place % len(patterns)]) for place, text in enumerate([*texts, *patterns])]
    rows: list[Row] = [(place, text, pattern) for place, (text, pattern) in enumerate(pairs)]
    rows += [(len(rows), None, "%a%"), (len(rows) + 1, "a", None), (len(rows) + 2, None, None)]
    written = [f"x like {quoted_text(pattern)}" for pattern in patterns]
    written += ["x like y", *(one.replace("like", "not like") for one in written)]
    found = in_spark(spark, rows, written)
    assert found == in_postgres(database_url, rows, written)
    for (text, pattern), row in zip(pairs, found, strict=False):
        assert row[: len(patterns) + 1] == [matches(text, one) for one in (*patterns, pattern)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a%b\\", "LIKE pattern must not end with escape character"),
        ("a\\\\\\", "LIKE pattern must not end with escape character"),
        ("%_" * 501, "a LIKE pattern of more than 1000 wildcards and escapes is not supported in a view"),
    ],
)
def test_n4a_a_pattern_of_a_column_is_checked(pattern: str, message: str, spark: SparkSession) -> None:
    assert in_spark(spark, [(1, None, pattern)], ["x like y"]) == [[None]]
    with pytest.raises(PySparkException) as error:
        in_spark(spark, [(1, "a", pattern)], ["x like y"])
    assert message in str(error.value)


def test_n4a_as_many_wildcards_as_are_allowed_fit_on_the_stack(spark: SparkSession) -> None:
    text = "ab" * 500
    written = [f"x like '{'%b' * 500 + '%' * 500}'", f"x like '{'a_' * 500}'", f"x like '{'_%' * 500}'", "x like y"]
    assert in_spark(spark, [(1, text, "_%" * 500)], written) == [[True] * 4]
