"""Values of every type that may be a key, as rows arrive from Postgres: numeric, time and uuid as their texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from service.protocol.columns import ColumnType
from workers.backfill.order import KeyPart
from workers.state_store.wire import from_wire, key_text, read_type

NAN, INF = float("nan"), float("inf")
_DAYS = [date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 15), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]
_INSTANTS = [
    datetime(1, 1, 1),  # noqa: DTZ001 - a timestamp has no zone
    datetime(1582, 10, 9, 12),  # noqa: DTZ001
    datetime(1883, 11, 18, 12, 3, 58),  # noqa: DTZ001
    datetime(1969, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    datetime(1970, 1, 1),  # noqa: DTZ001
    datetime(2024, 3, 31, 2, 30, 0, 1),  # noqa: DTZ001
    datetime(2024, 3, 31, 2, 30, 0, 100_000),  # noqa: DTZ001
    datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
]
_REAL_MAX = 3.4028234663852886e38
_UUIDS = ["00000000-0000-0000-0000-000000000000", "9fffffff-0000-4000-8000-00000000000a"]

VALUES: dict[str, list[Any]] = {
    "boolean": [False, True],
    "smallint": [-(2**15), -1, 0, 1, 9, 10, 2**15 - 1],
    "integer": [-(2**31), -1, 0, 9, 10, 2**31 - 1],
    "bigint": [-(2**63), -(2**53) - 1, -1, 0, 9, 10, 2**53, 2**53 + 1, 2**63 - 1],
    "real": [-INF, -_REAL_MAX, -1.5, -1.401298464324817e-45, -0.0, 0.0, 0.10000000149011612, 2.0**24, _REAL_MAX, INF,
             NAN],
    "double precision": [
        -INF, -1.7976931348623157e308, -(2.0**40), -1.5, -0.5 / 2**20, -5e-324, -0.0, 0.0, 5e-324, 0.1, 0.1 + 2**-56,
        2.0**40 - 0.0001, 2.0**40, 1e300, INF, NAN,
    ],
    "numeric(38,10)": ["-9999999999999999999999999999.9999999999", "-0.0000000001", "0.0000000000", "9.0000000000",
                       "10.0000000000", "9999999999999999999999999999.9999999999"],
    "numeric(5,0)": ["-99999", "0", "9", "10", "99999"],
    "numeric(3,3)": ["-0.999", "0.000", "0.010", "0.100"],
    "text": ["", " ", "a", "a ", "aa", "A", "B", "b", "Z", "é", "e\u0301", "ß", "ﬀ", "\uffff", "\U0001f409", "1:N", "N",
             "it's", "back\\slash", 'qu"ote', "{0}", "%s", "\t\n", "\x7f"],
    "bytea": [b"", b"\x00", b"\x00\x00", b"a", b"\x7f", b"\x80", b"\xff", b"\xff\x00"],
    "date": _DAYS,
    "time": ["00:00:00", "00:00:00.000001", "09:59:59", "10:00:00", "10:00:00.1", "10:00:00.01", "23:59:59.999999",
             "24:00:00"],
    "timestamp": _INSTANTS,
    "timestamptz": [value.replace(tzinfo=UTC) for value in _INSTANTS],
    "uuid": [*_UUIDS, "a0000000-0000-4000-8000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
}  # fmt: skip

COMPOSITES = (
    ("bigint", "text"),
    ("text", "double precision", "boolean"),
    ("numeric(5,0)", "bytea"),
    ("timestamptz", "uuid", "smallint"),
    ("date", "time", "real"),
    ("boolean", "timestamp", "integer", "numeric(3,3)"),
)


@dataclass(frozen=True)
class Keys:
    """Keys of one shape. `rows` are as they arrive; `texts` are what a position holds of them."""

    types: tuple[ColumnType, ...]
    rows: list[tuple[Any, ...]]

    @property
    def texts(self) -> list[tuple[str | None, ...]]:
        return [tuple(key_text(v, t) for v, t in zip(row, self.types, strict=True)) for row in self.rows]

    @property
    def comparable(self) -> list[tuple[object, ...]]:
        """The rows as Python orders them: numbers that travel as text become numbers."""
        numeric = [str(kind).startswith("numeric") for kind in self.types]
        return [
            tuple(Decimal(v) if n and v is not None else v for v, n in zip(row, numeric, strict=True))
            for row in self.rows
        ]

    def parts(self, descending: Sequence[bool], *, nullable: bool) -> tuple[KeyPart, ...]:
        pairs = enumerate(zip(self.types, descending, strict=True))
        return tuple(KeyPart(f"k{i}", kind, desc, nullable) for i, (kind, desc) in pairs)

    def load_postgres(self, connection: "psycopg.Connection[Any]") -> None:
        """Put them into table `keys(id, k0..)` by their own texts, not by ours."""
        columns = [f"k{i} {t}" + (' collate "C"' if str(t) == "text" else "") for i, t in enumerate(self.types)]
        connection.execute("drop table if exists keys")
        connection.execute(f"create temp table keys (id int, {', '.join(columns)})".encode())
        marks = ", ".join(["%s", *(f"%s::{kind}" for kind in self.types)])
        with connection.cursor() as cursor:
            cursor.executemany(
                f"insert into keys values ({marks})".encode(), [(i, *row) for i, row in enumerate(self.rows)]
            )

    def load_spark(self, spark: SparkSession) -> DataFrame:
        """Return a frame `(id, k0..)` with the types of a view's upstream."""
        wire = ", ".join(f"k{i} {'string' if not t.native else t.spark}" for i, t in enumerate(self.types))
        columns = [[row[i] for row in self.rows] for i in range(len(self.types))]
        arrays = [pa.array(values, read_type(kind)) for values, kind in zip(columns, self.types, strict=True)]
        names = ["id", *(f"k{i}" for i in range(len(self.types)))]
        rows = pa.table([pa.array(range(len(self.rows)), pa.int32()), *arrays], names=names)
        schema = StructType.fromDDL(f"id int, {wire}")
        assert isinstance(schema, StructType)
        frame = spark.createDataFrame(rows, schema)
        typed = [f"{from_wire(f'k{i}', kind)} as k{i}" for i, kind in enumerate(self.types)]
        return frame.selectExpr("id", *typed)


def single(kind: str, *, nullable: bool) -> Keys:
    """Return all values of one type as keys of one column."""
    values = [*VALUES[kind], None] if nullable else VALUES[kind]
    return Keys((ColumnType.parse(kind),), [(value,) for value in values])


def composite(kinds: Sequence[str], *, nullable: bool) -> Keys:
    """Return keys of several columns: the product of a few values of each, from both ends of its order."""
    few = [[*dict.fromkeys([values[0], *values[-2:]])] for values in (VALUES[kind] for kind in kinds)]
    columns = [[*values, None] if nullable else values for values in few]
    return Keys(tuple(map(ColumnType.parse, kinds)), list(product(*columns)))
