"""Digests of rows as Postgres computes them, on whatever server, and the queries for them, with what goes in and comes
out. Pure.

A row's digest is 60 bits of md5 over the texts of its columns; sums of digests do not depend on order. Both sides have
to print texts in the same way: see `SAME_TEXTS`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.protocol.quoting import quoted_text

SAME_TEXTS: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
"""Settings on which a value's text depends."""


@dataclass(frozen=True, slots=True)
class KeyExpression:
    """A column of the key as it is there: its expression and type there, and its text, which is the same everywhere."""

    value: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Side:
    """One of the tables that are compared, as SQL: what to select from (as `t`), which of its rows count, its key, the
    values that are compared, and the vnode of a row.
    """

    table: str
    where: str
    key: Sequence[KeyExpression]
    values: Sequence[str]
    vnode: str

    @property
    def digest(self) -> str:
        """The digest of a row, a bigint."""
        framed = " || ".join(
            f"coalesce(length(({one})::text)::text || ':' || ({one})::text, 'N')" for one in self.values
        )
        return f"('x' || substr(md5({framed}), 1, 15))::bit(60)::bigint"


Bound = Sequence[str] | None


def end_query(side: Side, after: Bound, rows: int) -> str:
    """Find the last of the next `rows` keys, as texts, with their number. No row where none is left."""
    names = ", ".join(part.value for part in side.key)
    texts = ", ".join(f"{part.text} as x{place}" for place, part in enumerate(side.key))
    order = ", ".join(f"k{place} desc" for place in range(len(side.key)))
    keys = ", ".join(f"{part.value} as k{place}" for place, part in enumerate(side.key))
    shown = ", ".join(f"x{place}" for place in range(len(side.key)))
    return (
        f"with next as materialized (select {keys}, {texts} from {side.table} where {_where(side, after, None)}"
        f" order by {names} limit {rows})"
        f" select (select count(*) from next), {shown} from next order by {order} limit 1"
    )


def digest_query(side: Side, after: Bound, upto: Bound, vnodes: tuple[int, int] | None) -> str:
    """Count the rows of a part, and sum up their digests."""
    where = _where(side, after, upto, vnodes)
    return f"select count(*), coalesce(sum({side.digest}), 0) from {side.table} where {where}"


def rows_query(side: Side, after: Bound, upto: Bound, vnodes: tuple[int, int] | None) -> str:
    """Return the rows of a part: key texts, then the digest."""
    return f"select {_texts(side)}, {side.digest} from {side.table} where {_where(side, after, upto, vnodes)}"


def rows_of_query(side: Side) -> str:
    """Return the rows of keys, which are given as `parameters`."""
    same = " and ".join(f"{part.value} = k.k{place}::{part.type}" for place, part in enumerate(side.key))
    return f"select {_texts(side)}, {side.digest} from {side.table} join {_given(side)} on {same} where {side.where}"


def vnodes_query(side: Side) -> str:
    """Return the vnode of each key, given as for `rows_of_query`: `side.vnode` is over the names of a row `t`."""
    names = ", ".join(f"k.k{place}" for place in range(len(side.key)))
    typed = ", ".join(
        f"k.k{place}::{part.type} as {part.value.removeprefix('t.')}" for place, part in enumerate(side.key)
    )
    return f"select {names}, {side.vnode} from {_given(side)} cross join lateral (select {typed}) t"


def parameters(keys: Collection[Sequence[str]]) -> list[list[str]]:
    """Return keys as parameters, an array of texts for each column of the key."""
    return [list(column) for column in zip(*keys, strict=True)]


def by_key(found: Iterable[Sequence[Any]]) -> dict[tuple[str, ...], int]:
    """Return what was read of each key: the digest of its row, or its vnode."""
    return {tuple(map(str, row[:-1])): int(row[-1]) for row in found}


def _given(side: Side) -> str:
    arrays = ", ".join(f"${place + 1}::text[]" for place in range(len(side.key)))
    names = ", ".join(f"k{place}" for place in range(len(side.key)))
    return f"unnest({arrays}) as k({names})"


def _texts(side: Side) -> str:
    return ", ".join(part.text for part in side.key)


def _where(side: Side, after: Bound, upto: Bound, vnodes: tuple[int, int] | None = None) -> str:
    conditions = [side.where]
    for bound, operator in ((after, ">"), (upto, "<=")):
        if bound is not None:
            conditions.append(_compared(side, operator, bound))
    if vnodes is not None:
        conditions.append(f"{side.vnode} between {vnodes[0]} and {vnodes[1]}")
    return " and ".join(conditions)


def _compared(side: Side, operator: str, bound: Sequence[str]) -> str:
    names = ", ".join(part.value for part in side.key)
    values = ", ".join(f"{quoted_text(text)}::{part.type}" for text, part in zip(bound, side.key, strict=True))
    return f"({names}) {operator} ({values})"
