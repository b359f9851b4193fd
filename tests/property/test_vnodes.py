"""A key has one vnode, whoever computes it: Postgres for DML, Spark for views, Python for tools and tests."""

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from service.protocol.columns import ColumnType, TypeName
from service.protocol.vnodes import canonical_float, vnode_of, vnode_postgres, vnode_spark
from tests.support.key_values import COMPOSITES, VALUES, Keys, composite, single

VNODES = 2**15
"""Many more than in use, so that two different texts rarely meet by chance."""
SHAPES: dict[str, Callable[[], Keys]] = {
    **{kind: lambda kind=kind: single(kind, nullable=True) for kind in VALUES},
    **{" ".join(kinds): lambda kinds=kinds: composite(kinds, nullable=True) for kinds in COMPOSITES},
}


def canonical(value: Any, kind: ColumnType) -> str | None:
    """The documented text, said again by other means than the two printers use."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case float():
            return canonical_float(value)
        case bytes():
            return value.hex()
        case datetime():
            epoch = datetime(1970, 1, 1, tzinfo=UTC)
            return str((value.replace(tzinfo=UTC) - epoch) // timedelta(microseconds=1))
        case date():
            return str((value - date(1970, 1, 1)).days)
        case _:
            assert isinstance(value, int) or not kind.native or kind.name is TypeName.TEXT
            return str(value)


def expected(keys: Keys) -> list[int]:
    rows = [[canonical(v, kind) for v, kind in zip(row, keys.types, strict=True)] for row in keys.rows]
    return [vnode_of(row, VNODES) for row in rows]


def columns(keys: Keys) -> list[tuple[str, ColumnType]]:
    return [(f"k{i}", kind) for i, kind in enumerate(keys.types)]


@pytest.mark.postgres
@pytest.mark.parametrize("shape", SHAPES)
def test_postgres_agrees(postgres_url: str, shape: str) -> None:
    keys = SHAPES[shape]()
    with psycopg.connect(postgres_url, options="-c timezone=America/New_York -c bytea_output=escape") as connection:
        keys.load_postgres(connection)
        query = f"select {vnode_postgres(columns(keys), VNODES)} from keys order by id"
        rows = connection.execute(query.encode()).fetchall()
    assert dict(zip(keys.rows, [vnode for (vnode,) in rows], strict=True)) == dict(
        zip(keys.rows, expected(keys), strict=True)
    )


@pytest.mark.spark
@pytest.mark.parametrize("shape", SHAPES)
def test_spark_agrees(spark: SparkSession, shape: str) -> None:
    keys = SHAPES[shape]()
    frame = keys.load_spark(spark).selectExpr("id", vnode_spark(columns(keys), VNODES))
    got = [vnode for _, vnode in sorted(frame.collect())]
    assert dict(zip(keys.rows, got, strict=True)) == dict(zip(keys.rows, expected(keys), strict=True))


def test_equal_floats_have_one_vnode() -> None:
    """What the unique index calls one key must not lie in two vnodes."""
    assert canonical_float(-0.0) == canonical_float(0.0)
    assert canonical_float(math.nan) == canonical_float(-math.nan)


def test_framing_keeps_columns_apart() -> None:
    keys = [("a", "b"), ("ab", ""), ("", "ab"), (None, "ab"), ("N", "ab"), ("1:N", None), ("a", None), (None, "a")]
    texts = ["".join("N" if part is None else f"{len(part)}:{part}" for part in key) for key in keys]
    assert len(set(texts)) == len(keys)
    assert len({vnode_of(key, VNODES) for key in keys}) == len(keys)


_UNBOUNDED = (
    "0",
    "-1.50",
    "1.5",
    "100",
    "100.00",
    "0.10",
    "12345678901234567890123456789012345678901234567890.0",
    "NaN",
)
_AS_SHORT = ("0", "-1.5", "1.5", "100", "100", "0.1", "12345678901234567890123456789012345678901234567890", "NaN")


@pytest.mark.postgres
def test_postgres_gives_equal_numbers_of_any_scale_one_vnode(postgres_url: str) -> None:
    vnode = vnode_postgres([("k", ColumnType.parse("numeric"))], VNODES)
    with psycopg.connect(postgres_url) as connection:
        texts = ",".join(f"'{text}'" for text in _UNBOUNDED)
        query = (
            f"select {vnode} from unnest(array[{texts}]) with ordinality t(k_, place), lateral (select k_::numeric k) n"
        )
        rows = connection.execute(f"{query} order by place".encode()).fetchall()
    assert [row for (row,) in rows] == [vnode_of([text], VNODES) for text in _AS_SHORT]


@pytest.mark.spark
def test_spark_gives_equal_numbers_of_any_scale_one_vnode(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(place, text) for place, text in enumerate(_UNBOUNDED)], "id int, k string")
    got = frame.selectExpr("id", vnode_spark([("k", ColumnType.parse("numeric"))], VNODES)).collect()
    assert [vnode for _, vnode in sorted(got)] == [vnode_of([text], VNODES) for text in _AS_SHORT]
