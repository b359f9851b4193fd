"""Print the SQL of versioned tables from relations, spans and epochs. Pure."""

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Final

from service.protocol.columns import Column, ColumnType, TypeName
from service.protocol.ids import Epoch
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, ROW_ID, Relation, state_table
from service.protocol.vnodes import Runs
from workers.backfill.order import KeyPart, Position, after_postgres, key_of, upto_postgres
from workers.backfill.positions import Block, Span, alike
from workers.state_store.wire import native_element

NULLABLE_MAX: Final = 3
"""The most nullable columns for which every combination of NULLs has a query of its own."""


def bound_query(relation: Relation, block: Block, spans: Block, *, at: Epoch, rows: int) -> str:
    """Print a query for a page's upper key: the `rows`-th remaining key of `spans` in key order, as of epoch `at`.

    The result has no row if fewer keys are left. Otherwise further columns tell, for each position in `block` in the
    order of `alike`, whether the key comes after it.
    """
    key = key_of(relation)
    names = ", ".join(quoted(part.name) for part in key)
    # Each part is read in index order, and only as far as the merge of all parts needs.
    left = " union all ".join(
        f"(select {names} from {state_table(relation.id)} where {_left_of(relation, span)} and {_readable(at)}"
        f" order by _vnode, {_order(relation, state_table(relation.id).split('.')[1])} limit {rows})"
        for span in spans
    )
    passed = ["true" if after is None else after_postgres(key, after) for after in alike(block)]
    told = ", ".join([*map(_position_value, key), *passed])
    return f"select {told} from ({left}) bound order by {_order(relation, 'bound')} offset {rows - 1} limit 1"


def page_query(relation: Relation, block: Block, upto: Position | None, *, at: Epoch) -> str:
    """Print a query that reads a block as of an epoch, up to a key (None: to its end), in no order."""
    return page_rows(relation, block, upto, _columns(relation), at=at)


def some_rows(relation: Relation, count: int, *, at: Epoch) -> str:
    """Print a query for the number of rows as of an epoch, at most `count`."""
    rows = f"select from {state_table(relation.id)} where _from <= {at} and _to > {at} limit {count}"
    return f"select count(*)::int from ({rows}) found"


def changed(relation: Relation, *, after: Epoch, upto: Epoch) -> str:
    """Print a query whether any version began or ended in `(after, upto]`."""
    began, ended = f"_from > {after} and _from <= {upto}", f"_to > {after} and _to <= {upto} and _to <> {ALIVE}"
    exist = (f"exists (select from {state_table(relation.id)} where {span})" for span in (began, ended))
    return f"select ({' or '.join(exist)})::int"


def old_versions(relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs) -> str:
    """Print a query for the versions that were live at `after` and ended by `upto`."""
    return _read_span(relation, _ended(after, upto), runs)


def new_versions(relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs) -> str:
    """Print a query for the versions that began after `after` and are live at `upto`."""
    return _read_span(relation, _begun(after, upto), runs)


def _ended(after: Epoch, upto: Epoch) -> str:
    return f"_to > {after} and _to <= {upto} and _to <> {ALIVE} and _from <= {after}"


def _begun(after: Epoch, upto: Epoch) -> str:
    return f"_from > {after} and _from <= {upto} and _to > {upto}"


def _read_span(relation: Relation, span: str, runs: Runs) -> str:
    return f"with {_span(relation, span)} select _vnode, {_columns(relation)} from span where {_within(runs)}"


def _span(relation: Relation, span: str) -> str:
    # The span is evaluated first, by its own index: an index on the vnode would go through all history.
    return f"span as materialized (select * from {state_table(relation.id)} where {span})"


def _within(runs: Runs) -> str:
    return " or ".join(f"_vnode between {first} and {last}" for first, last in runs)


def alive(table: str) -> str:
    """Print the condition that a version is live, for a search by key.

    A planner without statistics expects few rows to match an equality. With `_to = ALIVE` it would start there and read
    the whole table. `>=` means the same, because ALIVE is the largest value.
    """
    return f"{table}._to >= {ALIVE}"


def left_out(column: Column) -> str:
    """Print the value of a column that an INSERT leaves out: its default.

    A row id is generated once, with its row; it is stored and never derived again.
    """
    return "nextval('state.row_ids')" if column.name == ROW_ID else column.default or "null"


def same_values(columns: Sequence[str], nullable: Collection[str], row: str, given: str) -> tuple[str, ...]:
    """Print the conditions under which `row` and `given` have equal values, NULLs included. At most one of them holds.

    The first one is for values without a NULL. No index serves `is not distinct from`, but one serves `is null`, so
    there is a condition for each combination of NULLs. Where these would be many, one serves them all, slowly.
    """

    def alike(nulls: Collection[str]) -> str:
        equal = [f"{row}.{name} = {given}.{name}" for name in columns if name not in nulls]
        return " and ".join([*(f"{one}.{name} is null" for name in nulls for one in (given, row)), *equal])

    empty = [name for name in columns if name in nullable]
    if len(empty) <= NULLABLE_MAX:
        sizes = range(len(empty) + 1)
        return tuple(alike(nulls) for size in sizes for nulls in combinations(empty, size))
    some = " or ".join(f"{given}.{name} is null" for name in empty)
    others = (f"{row}.{name} {'is not distinct from' if name in empty else '='} {given}.{name}" for name in columns)
    return alike(()), f"({some}) and {' and '.join(others)}"


def close(relation: Relation, keys: str, epoch: Epoch) -> tuple[str, ...]:
    """Print the commands that end the live versions at the keys of the table `keys` (`_vnode` and the key columns).

    The guard `_from < epoch` lets the commands commute with the inserts of the same epoch. The few keys with a NULL
    have commands of their own.
    """
    columns, nullable = _key_columns(relation)
    return tuple(
        f"update {state_table(relation.id)} t set _to = {epoch} from {keys} k"
        f" where {same} and {alive('t')} and t._from < {epoch}"
        for same in same_values(columns, nullable, "t", "k")
    )


def _key_columns(relation: Relation) -> tuple[list[str], list[str]]:
    """Return the quoted columns of the storage order, and the nullable ones among them."""
    nullable = [quoted(part.name) for part in relation.key if relation.column(part.name).nullable]
    return ["_vnode", *(quoted(part.name) for part in relation.key)], nullable


def write(relation: Relation, given: str, epoch: Epoch, *, prefer: str = "_to desc") -> str:
    """Print the CTEs that write one net version per key: `found` (every key once), `closed`, `removed`, `changed`,
    `made`.

    `given` is a query of `_vnode`, the relation's columns, and `_to`: whether the key has a row afterwards. Of several
    rows with one key, the first in the order of `prefer` counts. Each of the last four CTEs has one row per version.

    Invariant: one net version per key and epoch remains, and no version has `_from = _to`. A live version of an older
    epoch ends. A version of this very epoch is deleted if the key has no row afterwards, and otherwise updated in
    place. If there is none of this epoch, a version is inserted.

    A key's version is looked up once, and identified by its `ctid` from then on. Postgres requires the four commands to
    touch different versions, which they do. They run in storage order, so index lookups and inserts stay local, and
    readers by vnode find the rows of one vnode together.
    """
    key = ", ".join(["_vnode", *(quoted(part.name) for part in relation.key)])
    found = (
        f"select p.*, t._from, t.ctid"
        f" from (select distinct on ({key}) {_named(relation)}, _to from ({given}) g order by {key}, {prefer}) p"
        f" left join lateral ({live_version(relation, 'p', 't._from, t.ctid')}) t on true"
    )
    return written(relation, found, epoch)


def written(relation: Relation, found: str, epoch: Epoch) -> str:
    """Print the CTEs of `write` for a query `found` of keys whose live version was looked up.

    It gives `_vnode`, the relation's columns, `_to`, and `_from` and `ctid` of the version, NULL if there is none.
    """
    table, names = state_table(relation.id), _named(relation)
    values = ", ".join(f"{quoted(column.name)} = p.{quoted(column.name)}" for column in relation.columns)
    # `_from` and `ctid` are those of the version that was found.
    there = "found p where t.ctid = p.ctid"
    return (
        f"found as materialized ({found}),"
        f" closed as (update {table} t set _to = {epoch} from {there} and p._from < {epoch} returning 1),"
        f" removed as (delete from {table} t using {there} and p._from = {epoch} and not p._to returning 1),"
        f" changed as (update {table} t set {values} from {there} and p._from = {epoch} and p._to returning 1),"
        f" made as (insert into {table} ({names}, _from) select {names}, {epoch} from found"
        f" where _to and _from is distinct from {epoch} returning 1)"
    )


def live_version(relation: Relation, given: str, values: str) -> str:
    """Print a lateral query for `values` of the live version `t` at the key of the row `given`, if there is one.

    `OFFSET 0` keeps it one index lookup per row, whatever the planner believes about sizes. The few keys with a NULL
    have queries of their own.
    """
    columns, nullable = _key_columns(relation)
    rows = f"select {values} from {state_table(relation.id)} t where {alive('t')}"
    found = [f"({rows} and {same} offset 0)" for same in same_values(columns, nullable, "t", given)]
    return " union all ".join(found)


def _named(relation: Relation) -> str:
    return ", ".join(["_vnode", *(quoted(column.name) for column in relation.columns)])


ENDED: Final = "(select count(*) from closed) + (select count(*) from removed)"
"""The versions that a `write` ended."""
MADE: Final = "(select count(*) from made)"
"""The versions that it made at keys without a version of this epoch."""
ENDED_AND_MADE: Final = f"{ENDED}, {MADE}"


def stored_columns(relation: Relation) -> list[str]:
    """Return the columns that a writer fills, in order: `_vnode`, the relation's own, `_from`."""
    return ["_vnode", *(column.name for column in relation.columns), "_from"]


def read_postgres(column: Column) -> str:
    """Return the select-list item that reads a column unaltered."""
    name = quoted(column.name)
    value = value_postgres(name, column.type)
    return name if value == name else f"{value} as {name}"


def value_postgres(value: str, kind: ColumnType) -> str:
    """Return the Postgres expression that casts a value to its wire type."""
    if native_element(kind):
        return value
    # JSON keeps the NULLs and the characters of an array of texts. Spark parses it and casts it to the element's type.
    return f"array_to_json({value}::text[])::text" if kind.array else f"{value}::text"


def page_rows(relation: Relation, block: Block, upto: Position | None, columns: str, *, at: Epoch) -> str:
    """Print a query for the vnode and the given columns of a page's rows."""
    return " union all ".join(
        f"select {', '.join(filter(None, ('_vnode', columns)))} from {state_table(relation.id)}"
        f" where {condition} and {_readable(at)}"
        for condition in page_conditions(relation, block, upto)
    )


def page_conditions(relation: Relation, block: Block, upto: Position | None) -> list[str]:
    """Print the conditions of which a row of a page satisfies one, by its vnode and key."""
    key = key_of(relation)
    end = "" if upto is None else f" and {upto_postgres(key, upto)}"
    return [
        f"_vnode = any('{{{','.join(str(span.vnode) for span in spans)}}}'::smallint[])"
        f"{'' if after is None else f' and {after_postgres(key, after)}'}{end}"
        for after, spans in alike(block).items()
    ]


def _left_of(relation: Relation, span: Span) -> str:
    vnode = f"_vnode = {span.vnode}"
    return vnode if span.after is None else f"{vnode} and {after_postgres(key_of(relation), span.after)}"


def _readable(at: Epoch) -> str:
    return f"_from <= {at} and _to > {at}"


def _value(part: KeyPart) -> str:
    """Print a key column in its wire type, as `read_schema` declares it."""
    return value_postgres(quoted(part.name), part.type)


def _position_value(part: KeyPart) -> str:
    """Print a key column in its wire type, or as text if its values can be beyond those of Python (year 10000)."""
    match part.type.name:
        case TypeName.DATE | TypeName.TIMESTAMP:
            return f"{quoted(part.name)}::text"
        case TypeName.TIMESTAMPTZ:
            # Spark wants the minutes of the zone, which is UTC.
            return f"replace({quoted(part.name)}::text, '+00', '+00:00')"
        case _:
            return _value(part)


def _columns(relation: Relation) -> str:
    return ", ".join(read_postgres(column) for column in relation.columns)


def _order(relation: Relation, table: str) -> str:
    # Qualified names, because an output column that was cast to text for its travel must not decide the order.
    return ", ".join(
        f"{table}.{quoted(part.name)} {'desc nulls first' if part.descending else 'asc nulls last'}"
        for part in relation.key
    )
