"""Build the queries that compare the rows of two Postgres servers by digest, with their parameters and results. Pure.

A row's digest is 60 bits of md5 over the texts of its columns. A sum of digests does not depend on the order of rows.
Both servers must print texts the same way, so both sessions need `SAME_TEXTS`.
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
"""Session settings on which the text of a value depends."""


@dataclass(frozen=True, slots=True)
class KeyExpression:
    """One key column on one side: its SQL expression, its type on that side, and its text, which is equal on both
    sides.
    """

    value: str
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison, as SQL.

    `table` is what to select from (as `t`) and `where` selects its rows. `key` are the key columns, `values` the
    compared values, and `vnode` is the vnode of a row.
    """

    table: str
    where: str
    key: Sequence[KeyExpression]
    values: Sequence[str]
    vnode: str

    @property
    def digest(self) -> str:
        """SQL for the digest of a row, a bigint."""
        framed = " || ".join(
            f"coalesce(length(({one})::text)::text || ':' || ({one})::text, 'N')" for one in self.values
        )
        return f"('x' || substr(md5({framed}), 1, 15))::bit(60)::bigint"


Bound = Sequence[str] | None


def end_query(side: Side, after: Bound, rows: int) -> str:
    """Return a query for the last of the next `rows` keys: their number, then the key's texts. No row if no key is
    left.
    """
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
    """Return a query that counts the rows of a part and sums their digests."""
    where = _where(side, after, upto, vnodes)
    return f"select count(*), coalesce(sum({side.digest}), 0) from {side.table} where {where}"


def rows_query(side: Side, after: Bound, upto: Bound, vnodes: tuple[int, int] | None, most: int) -> str:
    """Return a query for at most `most` rows of a part: the key's texts, then the digest."""
    where = _where(side, after, upto, vnodes)
    return f"select {_texts(side)}, {side.digest} from {side.table} where {where} limit {most}"


def rows_of_query(side: Side) -> str:
    """Return a query for the rows of given keys. The parameters come from `parameters`."""
    same = " and ".join(f"{part.value} = k.k{place}::{part.type}" for place, part in enumerate(side.key))
    return f"select {_texts(side)}, {side.digest} from {side.table} join {_given(side)} on {same} where {side.where}"


def vnodes_query(side: Side) -> str:
    """Return a query for the vnodes of given keys, with the parameters of `rows_of_query`.

    `side.vnode` refers to columns of a row `t`.
    """
    names = ", ".join(f"k.k{place}" for place in range(len(side.key)))
    typed = ", ".join(
        f"k.k{place}::{part.type} as {part.value.removeprefix('t.')}" for place, part in enumerate(side.key)
    )
    return f"select {names}, {side.vnode} from {_given(side)} cross join lateral (select {typed}) t"


def parameters(keys: Collection[Sequence[str]]) -> list[list[str]]:
    """Return keys as query parameters: one array of texts per key column."""
    return [list(column) for column in zip(*keys, strict=True)]


def by_key(found: Iterable[Sequence[Any]]) -> dict[tuple[str, ...], int]:
    """Return the digest (or the vnode) by key, from result rows of key texts followed by that number."""
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
