"""One order, said three times: what a page reads next (Postgres) is exactly what a mark leaves out (Spark), as Python
compares them. A difference in any value would lose a row or write it twice (I1).
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.key_values import COMPOSITES, VALUES, Keys, composite, single
from tests.support.model import order_python
from workers.backfill.order import (
    COMPLETED,
    IN_PROGRESS,
    NOT_STARTED,
    POSITION_STATE,
    KeyPart,
    after_postgres,
    marked_spark,
    position_column,
)

POSITIONS_MAX = 40
"""Enough for every value of a type, and for a spread over the products."""


def positions(keys: Keys) -> list[int]:
    step = len(keys.rows) // POSITIONS_MAX | 1  # odd: it meets every value of the last column
    return list(range(0, len(keys.rows), step))


def orders(keys: Keys) -> list[tuple[bool, ...]]:
    """All ascending, all descending, and both alternations."""
    width = len(keys.types)
    chosen = {(False,) * width, (True,) * width}
    chosen |= {tuple(bool((i + first) % 2) for i in range(width)) for first in (0, 1)}
    return sorted(chosen)


def expected_after(keys: Keys, key: Sequence[KeyPart]) -> set[tuple[int, int]]:
    """Return the pairs (row, position) in which the row comes after the position."""
    values = keys.comparable
    pairs = product(range(len(values)), positions(keys))
    return {(row, at) for row, at in pairs if order_python(key, values[row], values[at]) > 0}


def differences(keys: Keys, got: set[tuple[int, int]], expected: set[tuple[int, int]]) -> list[str]:
    return [f"row {keys.rows[row]!r} at position {keys.rows[at]!r}" for row, at in sorted(got ^ expected)]


def check_postgres(connection: "psycopg.Connection[Any]", keys: Keys, *, nullable: bool) -> None:
    keys.load_postgres(connection)
    for descending in orders(keys):
        key = keys.parts(descending, nullable=nullable)
        queries = [f"select id, {at} from keys where {after_postgres(key, keys.texts[at])}" for at in positions(keys)]
        got = set(connection.execute(" union all ".join(queries).encode()).fetchall())
        assert differences(keys, got, expected_after(keys, key)) == [], descending


@pytest.mark.postgres
@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("kind", VALUES)
def test_a_page_reads_what_python_calls_after(postgres_url: str, kind: str, nullable: bool) -> None:
    with psycopg.connect(postgres_url, options="-c timezone=America/New_York") as connection:
        check_postgres(connection, single(kind, nullable=nullable), nullable=nullable)


@pytest.mark.postgres
@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("kinds", COMPOSITES, ids=str)
def test_a_page_of_a_composite_key_reads_what_python_calls_after(
    postgres_url: str, kinds: tuple[str, ...], nullable: bool
) -> None:
    with psycopg.connect(postgres_url, options="-c timezone=America/New_York") as connection:
        check_postgres(connection, composite(kinds, nullable=nullable), nullable=nullable)


def check_spark(spark: SparkSession, keys: Keys) -> None:
    """One job per shape: rows x positions, a column of marks per order."""
    columns = {position_column(i): [text[i] for text in keys.texts] for i in range(len(keys.types))}
    arrays = {name: pa.array(texts, pa.string()) for name, texts in columns.items()}
    at = spark.createDataFrame(pa.table({"at": range(len(keys.rows)), **arrays}).take(positions(keys)))
    parts = [keys.parts(descending, nullable=True) for descending in orders(keys)]
    marks = [f"{marked_spark(key)} as m{i}" for i, key in enumerate(parts)]
    pairs = keys.load_spark(spark).crossJoin(at).selectExpr("*", f"{IN_PROGRESS} as {POSITION_STATE}")
    got = pairs.selectExpr("id", "at", *marks).collect()
    for i, key in enumerate(parts):
        assert all(row[f"m{i}"] is not None for row in got), "a mark is never NULL"
        after = {(row["id"], row["at"]) for row in got if not row[f"m{i}"]}
        assert differences(keys, after, expected_after(keys, key)) == [], [part.descending for part in key]


@pytest.mark.spark
@pytest.mark.parametrize("kind", VALUES)
def test_a_mark_leaves_out_what_python_calls_after(spark: SparkSession, kind: str) -> None:
    check_spark(spark, single(kind, nullable=True))


@pytest.mark.spark
@pytest.mark.parametrize("kinds", COMPOSITES, ids=str)
def test_a_mark_of_a_composite_key_leaves_out_what_python_calls_after(
    spark: SparkSession, kinds: tuple[str, ...]
) -> None:
    check_spark(spark, composite(kinds, nullable=True))


@pytest.mark.spark
def test_a_vnode_without_a_key_marks_all_or_nothing(spark: SparkSession) -> None:
    """Completed marks every change and not started none, whatever the key; the position's columns are NULL then."""
    keys = composite(("bigint", "text"), nullable=True)
    key = keys.parts((False, True), nullable=True)
    frame = keys.load_spark(spark).selectExpr(
        "*",
        f"cast(null as string) as {position_column(0)}",
        f"cast(null as string) as {position_column(1)}",
        f"explode(array({NOT_STARTED}, {COMPLETED})) as {POSITION_STATE}",
    )
    got = frame.selectExpr(f"{POSITION_STATE} = {COMPLETED} as expected", f"{marked_spark(key)} as marked").collect()
    assert len(got) == 2 * len(keys.rows)
    assert all(row["marked"] is row["expected"] for row in got)


@pytest.mark.spark
def test_names_are_quoted(spark: SparkSession) -> None:
    part = KeyPart('a`b"c', single("bigint", nullable=False).types[0])
    frame = spark.sql(f"select 1l as `a``b\"c`, '2' as {position_column(0)}, {IN_PROGRESS} as {POSITION_STATE}")
    assert [row[0] for row in frame.selectExpr(marked_spark([part])).collect()] == [True]
    assert after_postgres([part], ("2",)) == """("a`b""c") > ('2'::bigint)"""
