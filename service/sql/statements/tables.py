"""CREATE TABLE: parsed to columns and a key, and made a relation.

A clause that tidefill would not enforce is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from service.domain.connectors import TABLES, check_connector
from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.ids import RelationId
from service.protocol.relation import ROW_ID, VNODE_COUNT_DEFAULT, Relation, RelationKind
from service.sql.statements.follow import CreateTableFrom, follows, parse_follow
from service.sql.statements.lake import CreateLakeTable, is_in_place, parse_lake
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import Cursor, checked_column
from service.sql.text.options import connector_of, read_options, unexpected_options, vnode_count
from service.sql.text.tokens import TokenKind, syntax_error

VARCHAR_MAX: Final = 10_485_760
"""The greatest length of a `varchar` in Postgres."""
_VARCHAR: Final = re.compile(r"(?:varchar|character varying) ?\((\d{1,8})\)")

UNBOUND: Final = RelationId(0)
"""A placeholder until the catalog assigns an id to the stored relation."""

_REFUSED: Final = {
    "check": "CHECK is not supported: tidefill keeps no constraint but the primary key and NOT NULL",
    "references": "REFERENCES is not supported: tidefill keeps no constraint but the primary key and NOT NULL",
    "foreign": "FOREIGN KEY is not supported: tidefill keeps no constraint but the primary key and NOT NULL",
    "unique": "UNIQUE is not supported: tidefill keeps no constraint but the primary key and NOT NULL",
    "exclude": "EXCLUDE is not supported: tidefill keeps no constraint but the primary key and NOT NULL",
    "generated": "GENERATED is not supported: compute the value in the INSERT or in a materialized view",
    "collate": "COLLATE is not supported: text is ordered by its bytes",
    "constraint": "named constraints are not supported: leave the name out",
    "like": "LIKE is not supported: name the columns",
    "watermark": "WATERMARK is not supported",
}

_SERIAL: Final = {
    **dict.fromkeys(("smallserial", "serial2"), "smallint"),
    **dict.fromkeys(("serial", "serial4"), "integer"),
    **dict.fromkeys(("bigserial", "serial8"), "bigint"),
}
"""Numbers that Postgres counts itself, and the types of their columns."""


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """CREATE TABLE. `key` is empty for a table without a primary key; `table_relation` then adds
    the hidden one.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[KeyColumn, ...] = ()
    if_not_exists: bool = False
    vnode_count: int | None = None
    """None if the statement gives no vnode count."""
    options: Mapping[str, str] | None = None
    """The connector that fills the table, and what it needs. None for a table of DML."""


@dataclass(frozen=True, slots=True)
class AddColumn(Statement):
    """ALTER TABLE .. ADD COLUMN."""

    name: str
    column: Column
    if_not_exists: bool = False


@dataclass(slots=True)
class _Table:
    columns: list[Column] = field(default_factory=list[Column])
    key: list[tuple[KeyColumn, int]] = field(default_factory=list[tuple[KeyColumn, int]])
    keyed: bool = False


def _create(cursor: Cursor) -> CreateTable | CreateTableFrom | CreateLakeTable:
    # The rest of the statement is that of its connector.
    check_connector(connector_of(cursor.rest), TABLES)
    if_not_exists = cursor.accept("if", "not", "exists")
    name, table = cursor.relation(), _Table()
    if cursor.token.is_word("as"):
        raise Invalid("CREATE TABLE AS is not supported: create the table, then INSERT", position=cursor.token.position)
    cursor.expect_symbol("(")
    if cursor.accept_symbol("*"):
        key = _key_behind_all(cursor)
        parse = parse_lake if is_in_place(cursor.rest) else parse_follow
        return parse(cursor, name, None, key, if_not_exists=if_not_exists)
    _element(cursor, table)
    while cursor.accept_symbol(","):
        _element(cursor, table)
    cursor.expect_symbol(")")
    if follows(cursor):
        _check_followed(table)
        return parse_follow(cursor, name, *_keyed(table), if_not_exists=if_not_exists)
    if is_in_place(cursor.rest):
        return parse_lake(cursor, name, *_keyed(table), if_not_exists=if_not_exists)
    return _of_rows(cursor, name, table, if_not_exists=if_not_exists)


def _of_rows(cursor: Cursor, name: str, table: _Table, *, if_not_exists: bool) -> CreateTable:
    """Parse the rest of a table that stores rows. Raises Invalid."""
    given = read_options(cursor, known=None) if cursor.accept("with") else {}
    size = given.pop("vnode_count", None)
    if given and "connector" not in given:
        raise unexpected_options(given.values())
    for word in ("append", "partition", "inherits", "using", "tablespace", "as"):
        if cursor.token.is_word(word):
            raise Invalid(f"{word.upper()} is not supported in CREATE TABLE", position=cursor.token.position)
    cursor.expect_end()
    columns, key = _keyed(table)
    options = {option.name: option.string() for option in given.values()} if given else None
    return CreateTable(name, columns, key, if_not_exists, None if size is None else vnode_count(size), options)


def _key_behind_all(cursor: Cursor) -> tuple[KeyColumn, ...]:
    """Read what may follow `*` in the parentheses: a PRIMARY KEY of columns that are not known here."""
    table = _Table()
    if cursor.accept_symbol(","):
        if not cursor.token.is_word("primary"):
            raise syntax_error(cursor.token)
        _element(cursor, table)
    cursor.expect_symbol(")")
    return tuple(part for part, _ in table.key)


def parse_add_column(cursor: Cursor, name: str) -> AddColumn:
    """Parse the rest of ALTER TABLE .. ADD. Raises Invalid."""
    cursor.accept("column")
    if_not_exists = cursor.accept("if", "not", "exists")
    place, table = cursor.token.position, _Table()
    _refuse(cursor)
    _column(cursor, table)
    if cursor.token.is_symbol(","):
        raise Invalid("ALTER TABLE adds one column", position=cursor.token.position)
    cursor.expect_end()
    (column,) = table.columns
    if table.keyed or not column.nullable:
        message = "a column that is added is in no key and takes NULL: leave PRIMARY KEY and NOT NULL out"
        raise Invalid(message, position=place)
    return AddColumn(name, column, if_not_exists)


def _check_followed(table: _Table) -> None:
    for column in table.columns:
        if column.default is not None or column.length is not None:
            what = "DEFAULT" if column.default is not None else f"varchar({column.length})"
            message = (
                f'{what} is not supported for "{column.name}" of a table that follows another one: its values come'
            )
            raise Invalid(f"{message} from there, so declare the column without it")


def table_relation(statement: CreateTable) -> Relation:
    """Return the relation that a statement describes. A table without a primary key gets its hidden `_row_id`."""
    columns, key = statement.columns, statement.key
    if not key:
        hidden = Column(name=ROW_ID, type=ColumnType(TypeName.BIGINT), nullable=False, hidden=True)
        columns, key = (*columns, hidden), (KeyColumn(name=ROW_ID),)
    return Relation(
        id=UNBOUND,
        name=statement.name,
        kind=RelationKind.TABLE,
        columns=columns,
        key=key,
        vnode_count=statement.vnode_count or VNODE_COUNT_DEFAULT,
    )


def _element(cursor: Cursor, table: _Table) -> None:
    place = cursor.token.position
    if cursor.accept("primary", "key"):
        _declare_key(table, place)
        cursor.expect_symbol("(")
        table.key.append(_key_column(cursor))
        while cursor.accept_symbol(","):
            table.key.append(_key_column(cursor))
        cursor.expect_symbol(")")
    else:
        _refuse(cursor)
        _column(cursor, table)


def _column(cursor: Cursor, table: _Table) -> None:
    place = cursor.token.position
    name = checked_column(cursor.name(), place)
    if any(column.name == name for column in table.columns):
        raise Invalid(f'column "{name}" specified more than once', position=place)
    kind, length, nullable, default = *_type(cursor), True, None
    while not (cursor.token.is_symbol(",", ")") or cursor.token.kind is TokenKind.END):
        constraint = cursor.token.position
        if cursor.accept("not", "null"):
            nullable = False
        elif cursor.accept("primary", "key"):
            _declare_key(table, constraint)
            table.key.append((KeyColumn(name=name), place))
        elif cursor.accept("default"):
            default = _constant(cursor)
        elif not cursor.accept("null"):
            _refuse(cursor)
            raise syntax_error(cursor.token)
    table.columns.append(Column(name=name, type=kind, nullable=nullable, length=length, default=default))


def _constant(cursor: Cursor) -> str | None:
    """Read the constant of a DEFAULT, and return it in Postgres's SQL. NULL is no default. Raises Invalid."""
    first = cursor.token
    if cursor.accept("null"):
        return None
    if cursor.token.is_symbol("-", "+") or cursor.token.is_word("date", "time", "timestamp", "timestamptz", "interval"):
        cursor.advance()
    value = cursor.advance()
    if not (value.kind in (TokenKind.NUMBER, TokenKind.STRING) or value.is_word("true", "false")):
        message = "DEFAULT takes a constant: give any other value in the INSERT"
        raise Invalid(message, position=first.position)
    if cursor.token.is_symbol(":"):
        cursor.expect_symbol(":")
        cursor.expect_symbol(":")
        _type(cursor)
    return cursor.text[first.start : cursor.before.end]


def _type(cursor: Cursor) -> tuple[ColumnType, int | None]:
    """Read a type: words, an optional parenthesis, any number of `[]`. The length is that of `varchar(n)`.

    Raises Invalid.
    """
    start = cursor.token
    if start.kind is not TokenKind.NAME or start.value in {"not", "null", "primary", *_REFUSED}:
        raise syntax_error(start)
    if start.value in _SERIAL:
        message = f"{start.value} is not supported: declare {_SERIAL[start.value]}, and give the value in the INSERT"
        raise Invalid(f"{message}. A table without a primary key needs no number", position=start.position)
    cursor.advance()
    words = start.value + _words(cursor)
    if cursor.token.is_symbol("("):
        while not cursor.before.is_symbol(")"):
            if cursor.token.kind is TokenKind.END:
                raise syntax_error(cursor.token)
            words += cursor.advance().text
        words += _words(cursor)
    while cursor.token.is_symbol("[", "]"):
        words += cursor.advance().text
    try:
        return _named_type(words)
    except ValueError as error:
        raise Invalid(str(error), position=start.position) from None


def _named_type(words: str) -> tuple[ColumnType, int | None]:
    limited = _VARCHAR.fullmatch(words)
    if limited is not None and 1 <= int(limited[1]) <= VARCHAR_MAX:
        return ColumnType(TypeName.TEXT), int(limited[1])
    return ColumnType.parse(words), None


def _words(cursor: Cursor) -> str:
    words = ""
    while cursor.token.is_word("precision", "varying", "with", "without", "time", "zone"):
        words += f" {cursor.advance().value}"
    return words


def _key_column(cursor: Cursor) -> tuple[KeyColumn, int]:
    place = cursor.token.position
    name = cursor.name()
    descending = cursor.accept("desc")
    if not descending:
        cursor.accept("asc")
    if cursor.token.is_word("nulls"):
        raise Invalid("NULLS FIRST/LAST is not supported: a key has no NULL", position=cursor.token.position)
    return KeyColumn(name=name, descending=descending), place


def _declare_key(table: _Table, place: int) -> None:
    if table.keyed:
        raise Invalid("multiple primary keys are not allowed", position=place)
    table.keyed = True


def _keyed(table: _Table) -> tuple[tuple[Column, ...], tuple[KeyColumn, ...]]:
    types = {column.name: column.type for column in table.columns}
    seen: set[str] = set()
    for part, place in table.key:
        if part.name not in types:
            raise Invalid(f'column "{part.name}" named in key does not exist', position=place)
        if part.name in seen:
            raise Invalid(f'column "{part.name}" appears twice in primary key constraint', position=place)
        seen.add(part.name)
        if reason := types[part.name].why_not_a_key:
            raise Invalid(f'column "{part.name}" cannot be part of a primary key: {reason}', position=place)
    columns = tuple(
        column.model_copy(update={"nullable": False}) if column.name in seen else column for column in table.columns
    )
    return columns, tuple(part for part, _ in table.key)


def _refuse(cursor: Cursor) -> None:
    if cursor.token.kind is TokenKind.NAME and (reason := _REFUSED.get(cursor.token.value)):
        raise Invalid(reason, position=cursor.token.position)


PARSERS: Final[Parsers] = {("create", "table"): _create}
