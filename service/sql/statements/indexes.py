"""CREATE INDEX, DROP INDEX and SHOW INDEXES."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Never

from service.domain.errors import Invalid
from service.protocol.columns import KeyColumn
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import TokenKind


@dataclass(frozen=True, slots=True)
class CreateIndex(Statement):
    """CREATE INDEX. `included` and `distributed` are empty without the clause.

    `places` has the 1-based position of each named column, and of the relation.
    """

    name: str
    relation: str
    key: tuple[KeyColumn, ...]
    included: tuple[str, ...]
    distributed: tuple[str, ...]
    if_not_exists: bool
    places: Mapping[str, int]
    at: int
    """The position of the relation."""
    text: str


@dataclass(frozen=True, slots=True)
class DropIndex(Statement):
    """DROP INDEX."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ShowIndexes(Statement):
    """SHOW INDEXES FROM a relation."""

    relation: str


def _create(cursor: Cursor) -> CreateIndex:
    if_not_exists = cursor.accept("if", "not", "exists")
    name = cursor.relation()
    cursor.expect("on")
    at = cursor.token.position
    relation = cursor.relation()
    if cursor.token.is_word("using"):
        raise Invalid("USING is not supported: an index is ordered by its columns", position=cursor.token.position)
    places: dict[str, int] = {}
    key = _key(cursor, places)
    included = _names(cursor, places) if cursor.accept("include") else ()
    distributed, place = (), cursor.token.position
    if cursor.accept("distributed", "by"):
        distributed = _names(cursor, places)
    cursor.expect_end()
    if tuple(part.name for part in key[: len(distributed)]) != distributed:
        raise Invalid("Distributed by columns should be a prefix of index columns", position=place)
    return CreateIndex(
        name=name,
        relation=relation,
        key=key,
        included=tuple(one for one in included if one not in {part.name for part in key}),
        distributed=distributed,
        if_not_exists=if_not_exists,
        places=places,
        at=at,
        text=cursor.text.strip(),
    )


def _key(cursor: Cursor, places: dict[str, int]) -> tuple[KeyColumn, ...]:
    """Read the columns of an index. A column that comes again is left out, as in RisingWave."""
    cursor.expect_symbol("(")
    key: dict[str, KeyColumn] = {}
    while True:
        name = _column(cursor, places)
        descending = cursor.accept("desc")
        if not descending:
            cursor.accept("asc")
        _check_nulls(cursor, descending=descending)
        key.setdefault(name, KeyColumn(name=name, descending=descending))
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    return tuple(key.values())


def _check_nulls(cursor: Cursor, *, descending: bool) -> None:
    place = cursor.token.position
    first, last = cursor.accept("nulls", "first"), cursor.accept("nulls", "last")
    if (first and not descending) or (last and descending):
        raise Invalid(
            "NULL is the largest value: it is last in an ascending and first in a descending order", position=place
        )


def _column(cursor: Cursor, places: dict[str, int]) -> str:
    token = cursor.token
    if token.kind not in {TokenKind.NAME, TokenKind.QUOTED} and not token.is_symbol(")", ",") and token.text:
        _refuse_expression(token.position)
    name = cursor.name()
    if not cursor.token.is_symbol(",", ")") and cursor.token.kind is TokenKind.SYMBOL:
        _refuse_expression(token.position)
    places.setdefault(name, token.position)
    return name


def _refuse_expression(place: int) -> Never:
    message = "an index has columns, not expressions: index a column of a materialized view that computes it"
    raise Invalid(message, position=place)


def _names(cursor: Cursor, places: dict[str, int]) -> tuple[str, ...]:
    cursor.expect_symbol("(")
    names = [_column(cursor, places)]
    while cursor.accept_symbol(","):
        names.append(_column(cursor, places))
    cursor.expect_symbol(")")
    return tuple(dict.fromkeys(names))


def _refuse_unique(cursor: Cursor) -> Never:
    message = "CREATE UNIQUE INDEX is not supported: tidefill keeps no constraint but the primary key and NOT NULL"
    raise Invalid(message, position=cursor.before.position)


def _drop(cursor: Cursor) -> DropIndex:
    if_exists = cursor.accept("if", "exists")
    name = cursor.relation()
    if cursor.token.is_symbol(","):
        raise Invalid("DROP takes one index", position=cursor.token.position)
    if not cursor.accept("cascade"):
        cursor.accept("restrict")
    cursor.expect_end()
    return DropIndex(name, if_exists)


def _show(cursor: Cursor) -> ShowIndexes:
    relation = cursor.relation()
    cursor.expect_end()
    return ShowIndexes(relation)


PARSERS: Final[Parsers] = {
    ("create", "index"): _create,
    ("create", "unique", "index"): _refuse_unique,
    ("drop", "index"): _drop,
    ("show", "indexes", "from"): _show,
}
