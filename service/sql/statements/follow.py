"""CREATE TABLE .. FROM: the clauses after the columns of a table that follows an external table."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from service.domain.adaptive import Asked
from service.domain.errors import Invalid
from service.domain.parallelism import ACTORS_MAX
from service.protocol.cdc import Unkeepable
from service.protocol.columns import Column, KeyColumn
from service.protocol.delta import IN_A_LAKE
from service.sql.statements.statement import Statement
from service.sql.statements.target import Target
from service.sql.statements.using import accept_using, in_lake
from service.sql.text.cursor import Cursor, checked_column, checked_name
from service.sql.text.options import Option, discreet, rate_limit, read_options, unexpected_options, vnode_count
from service.sql.text.tokens import Token, TokenKind, syntax_error, tokenize

PARALLELISM_MAX: Final = 256
BATCH_ROWS_MAX: Final = 1_000_000
ROWS_PER_SPLIT_MAX: Final = (1 << 53) - 1
TIMESTAMP: Final = "_timestamp"
"""The default name of the column that INCLUDE timestamp adds."""

_NUMBERS: Final = {
    "snapshot.batch_size": ("batch_rows", 1, BATCH_ROWS_MAX),
    "backfill.parallelism": ("parallelism", 0, PARALLELISM_MAX),
    "backfill.num_rows_per_split": ("rows_per_split", 1, ROWS_PER_SPLIT_MAX),
    "backfill.split_pk_column_index": ("split_key_index", 0, ACTORS_MAX),
}
"""Numeric options: the statement's field, and the smallest and the largest value."""
_SWITCHES: Final = {"snapshot": "snapshot", "backfill.as_even_splits": "even_splits"}
_UNKEEPABLE: Final = "unkeepable.handling.mode"
_OPTIONS: Final = frozenset({*_NUMBERS, *_SWITCHES, _UNKEEPABLE, "backfill_rate_limit", "vnode_count"})


@dataclass(frozen=True, slots=True)
class CreateTableFrom(Statement):
    """CREATE TABLE .. FROM: a table that follows an external table of a source.

    `columns` is None for `(*)`. `key` is empty if the table takes over the external primary key. `timestamp` is the
    column for the commit time of a row. `external_schema` is None for the source's own schema. `source_position` and
    `table_position` are the positions of the source's and the external table's name.
    """

    name: str
    columns: tuple[Column, ...] | None
    key: tuple[KeyColumn, ...]
    source: str
    source_position: int
    external_schema: str | None
    external_table: str
    table_position: int
    external: str
    """The name of the external table as given: a path, if the source is a place of files."""
    if_not_exists: bool = False
    vnode_count: int | None = None
    timestamp: str | None = None
    snapshot: bool = True
    batch_rows: int = 1000
    parallelism: int = 0
    rows_per_split: int = 100_000
    even_splits: bool = True
    split_key_index: int = 0
    limited: bool = False
    backfill_rate_limit: Asked = None
    unkeepable: Unkeepable = "fail"
    target: Target | None = None
    """The Delta table that has its rows, for a table `USING delta`."""
    given: frozenset[str] = frozenset()
    """The names of the options."""


@dataclass(slots=True)
class _Behind:
    options: dict[str, Option] | None = None
    timestamp: str | None = None
    source: tuple[str, int] | None = None
    table: Token | None = None
    using: dict[str, Option] | None = None
    seen: set[str] = field(default_factory=set[str])


def follows(cursor: Cursor) -> bool:
    """Whether the clauses after a table's columns name a source. Reads no token."""
    return any(token.is_word("from", "include") for token in cursor.rest)


def parse_follow(
    cursor: Cursor,
    name: str,
    columns: tuple[Column, ...] | None,
    key: tuple[KeyColumn, ...],
    *,
    if_not_exists: bool,
) -> CreateTableFrom:
    """Parse the clauses after the columns, USING, INCLUDE, WITH and FROM, each at most once. Raises Invalid."""
    lies_in_lake = any(token.is_word("using") for token in cursor.rest)
    with discreet(cursor) if lies_in_lake else nullcontext():
        return _parse(cursor, name, columns, key, if_not_exists=if_not_exists)


def _parse(
    cursor: Cursor,
    name: str,
    columns: tuple[Column, ...] | None,
    key: tuple[KeyColumn, ...],
    *,
    if_not_exists: bool,
) -> CreateTableFrom:
    behind = _Behind()
    while cursor.token.kind is not TokenKind.END:
        _clause(cursor, behind)
    if behind.source is None or behind.table is None:
        raise Invalid("a table without columns of its own needs FROM: CREATE TABLE t (*) FROM source TABLE 'name'")
    if columns is not None and not key:
        raise Invalid("a table that follows another one needs its PRIMARY KEY", position=behind.table.position)
    if behind.timestamp is not None and any(column.name == behind.timestamp for column in columns or ()):
        raise Invalid(f'column "{behind.timestamp}" specified more than once', position=behind.table.position)
    schema, table = _external(behind.table)
    source, place = behind.source
    statement = CreateTableFrom(
        name,
        columns,
        key,
        source,
        place,
        schema,
        table,
        behind.table.position,
        behind.table.value,
        if_not_exists=if_not_exists,
        timestamp=behind.timestamp,
    )
    return _placed(statement, behind.using, behind.options or {})


def _placed(statement: CreateTableFrom, using: dict[str, Option] | None, options: dict[str, Option]) -> CreateTableFrom:
    """Return the statement with where its rows lie, and its options. Raises Invalid."""
    target = None if using is None else in_lake(using, options)
    if given := [options[one] for one in IN_A_LAKE & options.keys()]:
        raise unexpected_options(given)
    return replace(_with_options(statement, options), target=target)


def _clause(cursor: Cursor, behind: _Behind) -> None:
    token = cursor.token
    if token.kind is not TokenKind.NAME or token.value in behind.seen:
        raise syntax_error(token)
    behind.seen.add(token.value)
    if token.is_word("using"):
        behind.using = accept_using(cursor, "table")
    elif cursor.accept("with"):
        behind.options = read_options(cursor, known=_OPTIONS | IN_A_LAKE)
    elif cursor.accept("include"):
        behind.timestamp = _included(cursor)
    elif cursor.accept("from"):
        place = cursor.token.position
        behind.source = (cursor.relation(), place)
        cursor.expect("table")
        behind.table = cursor.advance()
        if not behind.table.is_text:
            raise syntax_error(behind.table)
    else:
        raise syntax_error(token)


def _included(cursor: Cursor) -> str:
    token = cursor.token
    if not cursor.accept("timestamp"):
        if token.kind is not TokenKind.NAME:
            raise syntax_error(token)
        raise Invalid(f"INCLUDE {token.text} is not supported: there is timestamp", position=token.position)
    if not cursor.accept("as"):
        return TIMESTAMP
    place = cursor.token.position
    return checked_column(cursor.name(), place)


def external_name(text: str) -> tuple[str | None, str]:
    """Return the schema (None if absent) and the name in `schema.name`, each plain or in double quotes.
    Raises Invalid.
    """
    parts = (
        [part.value for part in tokenize(text)[:-1] if not part.is_symbol(".")] if '"' in text else text.split(".", 1)
    )
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise Invalid("an external table is named 'table' or 'schema.table'")
    names = [checked_name(part, None) for part in parts]
    return (names[0] if len(names) == 2 else None), names[-1]


def _external(token: Token) -> tuple[str | None, str]:
    try:
        return external_name(token.value)
    except Invalid as error:
        if "/" in token.value:
            return None, token.value  # a path, whose parts may be as long as they like
        raise Invalid(error.message, position=token.position) from None


def _with_options(statement: CreateTableFrom, options: dict[str, Option]) -> CreateTableFrom:
    changes: dict[str, Any] = {"given": frozenset(options)}
    for name, option in options.items():
        if name in _NUMBERS:
            changes[_NUMBERS[name][0]] = _between(option, *_NUMBERS[name][1:])
        elif name in _SWITCHES:
            changes[_SWITCHES[name]] = option.boolean()
    if "backfill_rate_limit" in options:
        changes |= {"limited": True, "backfill_rate_limit": rate_limit(options["backfill_rate_limit"])}
    if "vnode_count" in options:
        changes["vnode_count"] = vnode_count(options["vnode_count"])
    if _UNKEEPABLE in options:
        changes["unkeepable"] = _mode(options[_UNKEEPABLE])
    return replace(statement, **changes)


def _mode(option: Option) -> str:
    mode = option.string().lower()
    if mode not in get_args(Unkeepable):
        known = " or ".join(get_args(Unkeepable))
        raise Invalid(f'option "{option.name}" takes {known}', position=option.position)
    return mode


def _between(option: Option, low: int, high: int) -> int:
    number = option.integer()
    if not low <= number <= high:
        raise Invalid(f'option "{option.name}" takes a number from {low} to {high}', position=option.position)
    return number
