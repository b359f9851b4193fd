"""Find out how many of the first rows of a part its query depends on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlglot import exp

from service.sql.queries.nodes import bare, named, printed
from service.sql.queries.relations import Ranked

ROWS_MAX: Final = 1_000_000
"""More rows than this are read as a whole part."""
_AT_MOST: Final[Mapping[type[exp.Expr], Callable[[int], int]]] = {
    exp.LTE: lambda number: number,
    exp.EQ: lambda number: number,
    exp.LT: lambda number: number - 1,
}
"""The greatest place that a comparison with a number lets through."""
_FLIPPED: Final[Mapping[type[exp.Expr], type[exp.Expr]]] = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}


def first_rows(ranked: Ranked, having: Sequence[exp.Expr]) -> str:
    """Print the ORDER BY and the limit that give all rows of a part on which its query depends, or nothing.

    `having` are conditions over the query's columns.
    """
    rows = 1 if ranked.column is None else min(_bounds(ranked.column, having), default=ROWS_MAX + 1)
    if rows > ROWS_MAX:
        return ""
    end = f"FETCH FIRST {rows} ROWS WITH TIES" if ranked.ties else f"LIMIT {rows}"
    return f"ORDER BY {', '.join(map(printed, ranked.order))} {end}"


def _bounds(column: str, having: Sequence[exp.Expr]) -> list[int]:
    found: list[int] = []
    for condition in map(bare, having):
        for kind, place, number in _sides(condition):
            inner = bare(place)
            if isinstance(inner, exp.Column) and named(inner)[1] == column and kind in _AT_MOST:
                literal = bare(number)
                if isinstance(literal, exp.Literal) and not literal.args.get("is_string") and literal.name.isdigit():
                    found.append(max(_AT_MOST[kind](int(literal.name)), 0))
    return found


def _sides(condition: exp.Expr) -> list[tuple[type[exp.Expr], exp.Expr, exp.Expr]]:
    if not isinstance(condition, exp.Binary):
        return []
    sides: list[tuple[type[exp.Expr], exp.Expr, exp.Expr]] = [(type(condition), condition.this, condition.expression)]
    if type(condition) in _FLIPPED:
        sides.append((_FLIPPED[type(condition)], condition.expression, condition.this))
    return sides
