"""Print the order of a key as SQL: as a page predicate for Postgres, and as a marking predicate for Spark.

A position divides the keys of a vnode: those at or before it have been backfilled, those after it have not. A page
reads the keys *after* it; Postgres compares them with literals. Marking keeps a live change whose key is *not after*
it. Spark compares the change with position columns that travel with it. The query text, and with it Spark's generated
code, is therefore the same in every epoch.

NULL is the largest value: last ascending, first descending, as in the storage index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.columns import ColumnType, TypeName
from service.protocol.quoting import quoted, quoted_text
from service.protocol.relation import TRAVEL_PREFIX, Relation

Position = tuple[str | None, ...]
"""A key as Postgres texts, in key order. None is NULL."""

POSITION_STATE: Final = f"{TRAVEL_PREFIX}position"
"""The column that carries the position's state with each change: not started, in progress or completed. The key is in
the columns named by `position_column`.
"""
NOT_STARTED: Final = 0
IN_PROGRESS: Final = 1
COMPLETED: Final = 2


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One key column with its type and order."""

    name: str
    type: ColumnType
    descending: bool = False
    nullable: bool = False


def key_of(relation: Relation) -> tuple[KeyPart, ...]:
    """Return the parts of a relation's storage key."""
    return tuple(
        KeyPart(part.name, relation.column(part.name).type, part.descending, relation.column(part.name).nullable)
        for part in relation.key
    )


def position_column(index: int) -> str:
    """Return the name of the column that holds the position's value of the key column `index`."""
    return f"{POSITION_STATE}_{index}"


def literal(text: str | None, kind: ColumnType) -> str:
    """Return a Postgres literal. It needs `standard_conforming_strings`, which is on by default since Postgres 9.1."""
    return "null" if text is None else f"{quoted_text(text)}::{kind}"


def after_postgres(key: Sequence[KeyPart], position: Position) -> str:
    """Return a Postgres condition that is true where the row's key comes after `position`."""
    assert len(key) == len(position)
    if _comparable_as_row(key, position):
        return _as_row(key, "<" if key[0].descending else ">", position)
    alternatives: list[str] = []
    for index, part in enumerate(key):
        equal = [_same_postgres(part, text) for part, text in zip(key[:index], position[:index], strict=True)]
        alternatives.append("(" + " and ".join([*equal, _after_postgres(part, position[index])]) + ")")
    return f"({_bound_postgres(key[0], position[0])}({' or '.join(alternatives)}))"


def upto_postgres(key: Sequence[KeyPart], position: Position) -> str:
    """Return a Postgres condition that is true where the row's key does not come after `position`."""
    if _comparable_as_row(key, position):
        return _as_row(key, ">=" if key[0].descending else "<=", position)
    return f"({_last_postgres(key[0], position[0])}{after_postgres(key, position)} is not true)"


def _last_postgres(part: KeyPart, text: str | None) -> str:
    """Return a redundant upper bound on the first key column, which lets an index scan stop there."""
    if text is None or (part.nullable and part.descending):
        return ""
    return f"{quoted(part.name)} {'>=' if part.descending else '<='} {literal(text, part.type)} and "


def _bound_postgres(part: KeyPart, text: str | None) -> str:
    """Return a redundant lower bound on the first key column. An index scan starts there; it cannot derive a start from
    the alternatives.
    """
    if text is None or (part.nullable and not part.descending):
        return ""
    return f"{quoted(part.name)} {'<=' if part.descending else '>='} {literal(text, part.type)} and "


def marked_spark(key: Sequence[KeyPart]) -> str:
    """Return a Spark SQL condition, never NULL: the row's vnode is completed, or its key is not after the position."""
    prefix = _not_after_spark(list(key), 0)
    return f"(`{POSITION_STATE}` = {COMPLETED} or (`{POSITION_STATE}` = {IN_PROGRESS} and {prefix}))"


def _comparable_as_row(key: Sequence[KeyPart], position: Position) -> bool:
    one_way = len({part.descending for part in key}) == 1
    return one_way and not any(part.nullable for part in key) and None not in position


def _as_row(key: Sequence[KeyPart], operator: str, position: Position) -> str:
    columns = ", ".join(quoted(part.name) for part in key)
    values = ", ".join(literal(text, part.type) for part, text in zip(key, position, strict=True))
    return f"({columns}) {operator} ({values})"


def _same_postgres(part: KeyPart, text: str | None) -> str:
    return f"{quoted(part.name)} is null" if text is None else f"{quoted(part.name)} = {literal(text, part.type)}"


def _after_postgres(part: KeyPart, text: str | None) -> str:
    column = quoted(part.name)
    if part.descending:
        return f"{column} is not null" if text is None else f"{column} < {literal(text, part.type)}"
    if text is None:
        return "false"
    larger = f"{column} > {literal(text, part.type)}"
    return f"({larger} or {column} is null)" if part.nullable else larger


def _not_after_spark(key: list[KeyPart], index: int) -> str:
    part = key[index]
    column, position = f"`{part.name.replace('`', '``')}`", _position_spark(part.type, index)
    last = index == len(key) - 1
    before = _before_spark(column, position, descending=part.descending)
    rest = "true" if last else _not_after_spark(key, index + 1)
    return f"({before} or ({column} <=> {position} and {rest}))"


def _before_spark(column: str, position: str, *, descending: bool) -> str:
    if descending:
        return f"coalesce({column} > {position}, {column} is null and {position} is not null)"
    return f"coalesce({column} < {position}, {column} is not null and {position} is null)"


def _position_spark(kind: ColumnType, index: int) -> str:
    """Return the position's value in the key column's type. It travels as text, whatever the type."""
    name = f"`{position_column(index)}`"
    if kind.name is TypeName.BYTEA:
        return f"unhex(substr({name}, 3))"
    return name if kind.spark == "string" else f"cast({name} as {kind.spark})"
