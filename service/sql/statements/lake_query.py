"""Divide a SELECT over a lake: Spark computes its rows, and Postgres puts them in order.

Spark computes what a view of the query would hold. A view has no order. So ORDER BY, LIMIT and OFFSET at the end are
read here. With both an order and a limit the query keeps them too, because a view has its first rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.domain.errors import Invalid
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import Token, TokenKind, syntax_error, tokenize
from service.sql.text.tree import Tree, parse_tree

COUNT_MAX: Final = 1_000_000_000
_ENDS: Final = ("order", "limit", "offset", "fetch", "for")


@dataclass(frozen=True, slots=True)
class OrderedBy:
    """An item of ORDER BY: the column by its name or its 1-based number, and what stands behind it, as SQL."""

    column: str | int
    direction: str
    position: int

    def place(self, names: Sequence[str]) -> int:
        """Return the 1-based place among the result's columns. Raises Invalid."""
        if isinstance(self.column, int):
            if 1 <= self.column <= len(names):
                return self.column
            raise Invalid(f"ORDER BY position {self.column} is not in select list", position=self.position)
        if self.column not in names:
            raise Invalid(
                f'ORDER BY "{self.column}": over a relation in a lake it takes a column of the result',
                position=self.position,
            )
        return names.index(self.column) + 1


@dataclass(frozen=True, slots=True)
class LakeQuery:
    """`query` and `sql` are what Spark computes. `limit` of its rows are shown, those behind the first `offset`."""

    query: Tree = field(repr=False)
    sql: str
    order: tuple[OrderedBy, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def any_rows(self) -> bool:
        """Whether any of the rows may be left out, because no order says which come first."""
        return not self.order


def lake_query(text: str) -> LakeQuery:
    """Divide the text of a SELECT. Raises Invalid with a position in it."""
    tokens = tokenize(text)
    end = next(_ends(tokens), len(tokens) - 1)
    cursor = Cursor(text, tokens[end:])
    order = tuple(_order(cursor)) if cursor.accept("order", "by") else ()
    limit, offset = _limits(cursor)
    cursor.expect_end()
    whole = bool(order) and (limit is not None or offset > 0)
    covered = tokens if whole else (*tokens[:end], _end_before(tokens[end]))
    if len(covered) < 2:
        raise syntax_error(tokens[end])
    sql = text[covered[0].start : covered[-1].start]
    # The first rows are those behind the offset already.
    return LakeQuery(parse_tree(text, covered), sql, order, None if whole else limit, 0 if whole else offset)


def _ends(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the places of the words outside parentheses with which the end of a query begins."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += token.is_symbol("(", "[") - token.is_symbol(")", "]")
        if depth == 0 and token.is_word(*_ENDS):
            yield place


def _end_before(token: Token) -> Token:
    return Token(TokenKind.END, "", "", token.start, token.start)


def _order(cursor: Cursor) -> Iterator[OrderedBy]:
    while True:
        first = cursor.token
        named = first.kind in {TokenKind.NAME, TokenKind.QUOTED}
        column = cursor.name() if named else cursor.integer(maximum=COUNT_MAX)
        direction = next((f" {word}" for word in ("asc", "desc") if cursor.accept(word)), "")
        direction += next((f" nulls {word}" for word in ("first", "last") if cursor.accept("nulls", word)), "")
        follows = cursor.token
        if not (follows.is_symbol(",") or follows.kind is TokenKind.END or follows.is_word(*_ENDS)):
            raise Invalid(
                "ORDER BY takes names or numbers of the result's columns, over a relation in a lake",
                position=first.position,
            )
        yield OrderedBy(column, direction, first.position)
        if not cursor.accept_symbol(","):
            return


def _limits(cursor: Cursor) -> tuple[int | None, int]:
    """Read LIMIT and OFFSET in either order."""
    limit, offset = None, 0
    while cursor.token.is_word("limit", "offset"):
        if cursor.accept("limit", "all"):
            continue
        if cursor.accept("limit"):
            limit = _count(cursor, "LIMIT")
        else:
            cursor.expect("offset")
            offset = _count(cursor, "OFFSET")
            _ = cursor.accept("row") or cursor.accept("rows")
    return limit, offset


def _count(cursor: Cursor, name: str) -> int:
    place = cursor.token.position
    found = cursor.integer(maximum=COUNT_MAX)
    if found < 0:
        raise Invalid(f"{name} must not be negative", position=place)
    return found
