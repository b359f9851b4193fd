"""Compute the vnode of a key: the first 16 bits of md5 over the key's canonical text, modulo the vnode count.

Postgres (for DML), Spark (for views) and Python (for tests and tools) all compute it. This module therefore defines it
once, in three forms, and a test compares all three. The canonical text of a key concatenates, per column, `N` for
NULL or `<length in characters>:<text>`. The texts by type are:

- whole numbers and booleans: as they are; numeric: with its declared scale, without one: as short as possible
- text: as it is; bytea: in lower-case hex
- date: days since 1970; timestamps: microseconds since 1970
- uuid and time: as Postgres prints them
- floats: floor(x * 2^20), because engines print different shortest decimals; a vnode need not be injective
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import Vnode

VNODE_MAX: Final = (1 << 15) - 1
FLOAT_SCALE: Final = 1 << 20
FLOAT_LIMIT: Final = float(1 << 40)
"""Larger floats share one canonical text. The limit leaves room for the scaled value in a bigint."""

Runs = tuple[tuple[int, int], ...]
"""Vnodes as ascending runs of consecutive numbers, both ends inclusive."""


def vnode_of(texts: Sequence[str | None], vnode_count: int) -> Vnode:
    """Return the vnode of a key, from the canonical texts of its columns (see the module's docstring)."""
    joined = "".join("N" if text is None else f"{len(text)}:{text}" for text in texts)
    digest = hashlib.md5(joined.encode(), usedforsecurity=False).digest()
    return Vnode(int.from_bytes(digest[:2], "big") % vnode_count)


def canonical_float(value: float) -> str:
    """Return the canonical text of a float key column."""
    if math.isnan(value):
        return "nan"
    return str(math.floor(value * FLOAT_SCALE)) if abs(value) < FLOAT_LIMIT else "far"


def vnode_postgres(columns: Sequence[tuple[str, ColumnType]], vnode_count: int) -> str:
    """Return a Postgres expression of type smallint; `columns` are (SQL expression, type) in key order."""
    joined = " || ".join(
        _framed_postgres(_text(kind, _POSTGRES_TEXT, _UNBOUNDED_POSTGRES).format(sql, **_shape(kind)))
        for sql, kind in columns
    )
    return f"(('x' || substr(md5({joined}), 1, 4))::bit(16)::int % {vnode_count})::smallint"


def vnode_spark(columns: Sequence[tuple[str, ColumnType]], vnode_count: int) -> str:
    """Return a Spark SQL expression of type smallint; `columns` are (SQL expression, type) in key order."""
    joined = ", ".join(
        _framed_spark(_text(kind, _SPARK_TEXT, _UNBOUNDED_SPARK).format(sql, **_shape(kind))) for sql, kind in columns
    )
    return f"cast(cast(conv(substr(md5(concat({joined})), 1, 4), 16, 10) as int) % {vnode_count} as smallint)"


def runs_of(vnodes: Iterable[int]) -> Runs:
    """Return `vnodes` as ascending runs of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for vnode in sorted(set(vnodes)):
        if runs and runs[-1][1] == vnode - 1:
            runs[-1] = (runs[-1][0], vnode)
        else:
            runs.append((vnode, vnode))
    return tuple(runs)


def vnodes_of(runs: Runs) -> tuple[Vnode, ...]:
    """Return every vnode of `runs`, ascending."""
    return tuple(Vnode(vnode) for first, last in runs for vnode in range(first, last + 1))


def _text(kind: ColumnType, texts: Mapping[TypeName, str], unbounded: str) -> str:
    return unbounded if kind.unbounded else texts[kind.name]


def _shape(kind: ColumnType) -> dict[str, object]:
    return {"precision": kind.precision, "scale": kind.scale, "factor": FLOAT_SCALE, "limit": int(FLOAT_LIMIT)}


def _framed_postgres(text: str) -> str:
    return f"coalesce(length({text})::text || ':' || ({text}), 'N')"


def _framed_spark(text: str) -> str:
    return f"coalesce(concat(cast(char_length({text}) as string), ':', {text}), 'N')"


_FLOAT_POSTGRES: Final = (
    "(case when {0} is null then null when {0} = 'NaN' then 'nan' when abs({0}::float8) < {limit}"
    " then floor({0}::float8 * {factor})::bigint::text else 'far' end)"
)
_FLOAT_SPARK: Final = (
    "(case when {0} is null then null when isnan({0}) then 'nan' when abs(cast({0} as double)) < {limit}"
    " then cast(cast(floor(cast({0} as double) * {factor}) as bigint) as string) else 'far' end)"
)

_UNBOUNDED_POSTGRES: Final = "trim_scale({0})::text"
_UNBOUNDED_SPARK: Final = (
    "(case when instr({0}, '.') > 0 then trim(trailing '.' from trim(trailing '0' from {0})) else {0} end)"
)
"""In Spark it is Postgres's text, which has the digits of its scale."""

_POSTGRES_TEXT: Final = {
    TypeName.BOOLEAN: "({0})::text",
    TypeName.SMALLINT: "({0})::text",
    TypeName.INTEGER: "({0})::text",
    TypeName.BIGINT: "({0})::text",
    TypeName.REAL: _FLOAT_POSTGRES,
    TypeName.DOUBLE: _FLOAT_POSTGRES,
    TypeName.NUMERIC: "({0})::numeric({precision},{scale})::text",
    TypeName.TEXT: "({0})",
    TypeName.BYTEA: "encode({0}, 'hex')",
    TypeName.DATE: "(({0}) - date '1970-01-01')::text",
    TypeName.TIME: "({0})::text",
    TypeName.TIMESTAMP: "(extract(epoch from ({0})) * 1000000)::bigint::text",
    TypeName.TIMESTAMPTZ: "(extract(epoch from ({0})) * 1000000)::bigint::text",
    TypeName.UUID: "({0})::text",
}
_SPARK_TEXT: Final = {
    TypeName.BOOLEAN: "cast({0} as string)",
    TypeName.SMALLINT: "cast({0} as string)",
    TypeName.INTEGER: "cast({0} as string)",
    TypeName.BIGINT: "cast({0} as string)",
    TypeName.REAL: _FLOAT_SPARK,
    TypeName.DOUBLE: _FLOAT_SPARK,
    TypeName.NUMERIC: "cast(cast({0} as decimal({precision},{scale})) as string)",
    TypeName.TEXT: "{0}",
    TypeName.BYTEA: "lower(hex({0}))",
    TypeName.DATE: "cast(unix_date({0}) as string)",
    TypeName.TIME: "{0}",
    TypeName.TIMESTAMP: "cast(unix_micros(cast({0} as timestamp)) as string)",
    TypeName.TIMESTAMPTZ: "cast(unix_micros({0}) as string)",
    TypeName.UUID: "{0}",
}
