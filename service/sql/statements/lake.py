"""CREATE TABLE .. WITH (connector = 'deltalake'): a table of a lake that is read in place. So is CREATE SOURCE, a place
of many tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.connectors import IN_PLACE
from service.domain.errors import Invalid
from service.protocol.columns import Column, KeyColumn
from service.protocol.ids import RelationId
from service.sql.statements.statement import Statement
from service.sql.statements.target import Target, target_of
from service.sql.text.cursor import Cursor
from service.sql.text.options import connector_of, discreet, read_options, vnode_count
from service.sql.text.tokens import Token

VNODE_COUNT: Final = "vnode_count"
_NO_KEY: Final = (
    "a table that is read in place needs a PRIMARY KEY, by which its changes are told apart: (*, PRIMARY KEY (id))"
)


@dataclass(frozen=True, slots=True)
class CreateLakeTable(Statement):
    """CREATE TABLE of a table that is read in place. `columns` is None for `*`: all that the other table has.

    `position` is that of the name. `source` is the place of tables that it is one of.
    """

    name: str
    columns: tuple[Column, ...] | None
    key: tuple[KeyColumn, ...]
    target: Target
    if_not_exists: bool = False
    vnode_count: int | None = None
    position: int | None = None
    source: RelationId | None = None


@dataclass(frozen=True, slots=True)
class CreateLakeSource(Statement):
    """CREATE SOURCE of a place of tables that are read in place. `text` is the statement, which names secrets only."""

    name: str
    target: Target
    text: str
    if_not_exists: bool = False


def is_in_place(tokens: Sequence[Token]) -> bool:
    """Whether the rest of a statement names a connector whose tables are read in place."""
    named = connector_of(tokens)
    return named is not None and named[0] in IN_PLACE


def check_keyed(key: Sequence[KeyColumn]) -> None:
    """Raise Invalid for a table without a key."""
    if not key:
        raise Invalid(_NO_KEY)


def parse_lake_source(cursor: Cursor) -> CreateLakeSource:
    """Parse CREATE SOURCE behind these words. Raises Invalid."""
    if_not_exists = cursor.accept("if", "not", "exists")
    name = cursor.relation()
    cursor.expect("with")
    target = target_of(read_options(cursor, known=None))
    cursor.expect_end()
    return CreateLakeSource(name, target, cursor.text.strip(), if_not_exists)


def parse_lake(
    cursor: Cursor,
    name: str,
    columns: tuple[Column, ...] | None,
    key: tuple[KeyColumn, ...],
    *,
    if_not_exists: bool,
) -> CreateLakeTable:
    """Parse the options behind the columns. Raises Invalid."""
    position = cursor.token.position
    if not key:
        raise Invalid(_NO_KEY, position=position)
    for column in columns or ():
        if column.default is not None or column.length is not None:
            what = "DEFAULT" if column.default is not None else f"varchar({column.length})"
            raise Invalid(
                f'{what} is not supported for "{column.name}": its values are read in place', position=position
            )
    with discreet(cursor):
        cursor.expect("with")
        given = read_options(cursor, known=None)
        cursor.expect_end()
        size = given.pop(VNODE_COUNT, None)
        return CreateLakeTable(
            name,
            columns,
            key,
            target_of(given),
            if_not_exists,
            None if size is None else vnode_count(size),
            position,
        )
