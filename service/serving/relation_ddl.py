"""Generate the DDL of a relation: the versioned table, its indexes, its checks and its two views. Pure.

The unique index is the storage order. Pages are read in the order of `(_vnode, key)`, with explicit direction and place
of NULL. Text is `COLLATE "C"` because Spark compares bytes.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Final

from psycopg import sql

from service.protocol.columns import Column, KeyColumn, TypeName
from service.protocol.ids import GraphId, RelationId
from service.protocol.kept import bounds_of
from service.protocol.relation import ALIVE, Relation, RelationKind
from service.serving.connections import trusted

FROM_INDEX: Final = "using brin (_from) with (pages_per_range = 16, autosummarize = on)"
"""The index for rows that began after an epoch (changes, roll back). New rows are adjacent, so a BRIN index suffices.
"""

_STORAGE: Final = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05"
"""Every update leaves an ended version, which tidefill's vacuum deletes. Autovacuum therefore runs earlier than at its
default of a fifth of dead rows.
"""

_YEARS: Final = "must be finite and in the years 1 to 9999"
_WHY: Final = {
    TypeName.DATE: f"a date {_YEARS}",
    TypeName.TIMESTAMP: f"a timestamp {_YEARS}",
    TypeName.TIMESTAMPTZ: f"a timestamptz {_YEARS}",
    TypeName.NUMERIC: "NaN cannot be kept",
}


_IN_LAKE: Final = "its rows lie in a lake: the service reads them for a SELECT, or read a materialized view over it"


def table(relation: RelationId) -> sql.Identifier:
    """Return the versioned table's name."""
    return sql.Identifier("state", f"t_{relation}")


def create_table(relation: Relation) -> sql.Composed:
    """Return the statement that creates the versioned table.

    Only tables have checks of their values. The values of views are computed from these, by Spark or by the store.
    """
    checks = checks_of(relation.columns) if relation.kind is RelationKind.TABLE else ()
    lines = [
        sql.SQL("_vnode smallint not null"),
        *(column_definition(column) for column in relation.columns),
        sql.SQL("_from bigint not null"),
        sql.SQL("_to bigint not null default {}").format(sql.Literal(ALIVE)),
        *checks,
    ]
    return sql.SQL("create table {} ({}) with ({})").format(
        table(relation.id), sql.SQL(", ").join(lines), sql.SQL(_STORAGE)
    )


def partials(relation: RelationId) -> sql.Identifier:
    """Return the name of the log of partial groups."""
    return sql.Identifier("state", f"p_{relation}")


def create_partials(relation: Relation, sums: Sequence[str]) -> Iterator[sql.Composed]:
    """Yield the statements that create the log of partial groups, with its indexes, if it is missing.

    `sums` are the columns of a group's key and sums. The log is merged by vnode, and rolled back by epoch. Its rows are
    never updated, so there is nothing to vacuum.
    """
    log = partials(relation.id)
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in ("_vnode", *sums, "_from"))
    yield sql.SQL(
        "create table if not exists {} with (autovacuum_enabled = off) as select {} from {} with no data"
    ).format(log, columns, table(relation.id))
    for name, shape in (("vnode", sql.SQL("(_vnode)")), ("from", sql.SQL(FROM_INDEX))):
        index = sql.Identifier(f"p_{relation.id}_{name}")
        yield sql.SQL("create index if not exists {} on {} {}").format(index, log, shape)


def changes_log(relation: RelationId) -> sql.Identifier:
    """Return the name of the log of a followed table in a lake."""
    return sql.Identifier("state", f"l_{relation}")


def create_changes_log(relation: Relation) -> sql.Composed:
    """Return the statement that creates the log of a followed table in a lake, if it is missing.

    A row of it has no version: it is appended, and removed when the table in the lake has it. One that says that a key
    has gone has the columns of the key only. `_seq` is the order in which rows were appended.
    """
    lines = [
        sql.SQL("_vnode smallint not null"),
        *(column_definition(column.model_copy(update={"nullable": True})) for column in relation.columns),
        sql.SQL("_from bigint not null"),
        sql.SQL("_op smallint not null default 0"),
        sql.SQL("_seq bigint generated always as identity"),
        *checks_of(relation.columns),
    ]
    return sql.SQL("create table if not exists {} ({}) with ({})").format(
        changes_log(relation.id), sql.SQL(", ").join(lines), sql.SQL(_STORAGE)
    )


def create_storage_index(relation: Relation) -> sql.Composed:
    """Return the statement that creates the storage-order index if it is missing."""
    key = sql.SQL(", ").join([_key_part(part) for part in relation.key])
    return sql.SQL("create unique index if not exists {} on {} (_vnode, {}, _from) nulls not distinct").format(
        sql.Identifier(f"t_{relation.id}_key"), table(relation.id), key
    )


def create_indexes(relation: Relation) -> Iterator[sql.Composed]:
    """Yield the statements that create the other indexes, on the end and the beginning of versions."""
    name = f"t_{relation.id}"
    yield sql.SQL("create index {} on {} (_to) where _to <> {}").format(
        sql.Identifier(f"{name}_to"), table(relation.id), sql.Literal(ALIVE)
    )
    yield sql.SQL("create index {} on {} {}").format(
        sql.Identifier(f"{name}_from"), table(relation.id), sql.SQL(FROM_INDEX)
    )


def create_live_view(relation: Relation, *, replace: bool = False) -> sql.Composed:
    """Return the statement that creates the view of alive rows, including hidden columns."""
    create = sql.SQL("create or replace" if replace else "create")
    return sql.SQL("{} view live.{} as select {} from {} where _to = {}").format(
        create, sql.Identifier(relation.name), names(relation.columns), table(relation.id), sql.Literal(ALIVE)
    )


def replace_live_view(relation: Relation, graph: GraphId) -> sql.Composed:
    """Return the statement that lets DML read what a graph of its own has published, instead of what it is writing."""
    epoch = sql.SQL("(select epoch from state.published where graph = {})").format(sql.Literal(graph))
    return sql.SQL("create or replace view live.{} as select {} from {} where _from <= {} and _to > {}").format(
        sql.Identifier(relation.name), names(relation.columns), table(relation.id), epoch, epoch
    )


def create_public_view(relation: Relation, graph: GraphId, *, replace: bool = False) -> sql.Composed:
    """Return the statement that creates the public view for users, or replaces it if its graph or its columns changed.

    It shows the graph's published epoch, which is read once per query (I2). That of a relation of a lake has its
    columns, for whoever plans a query, and refuses to be read.
    """
    if relation.lake is not None:
        return _create_lake_view(relation)
    epoch = sql.SQL("(select epoch from state.published where graph = {})").format(sql.Literal(graph))
    create = sql.SQL("create or replace" if replace else "create")
    return sql.SQL("{} view public.{} as select {} from {} where _from <= {} and _to > {}").format(
        create, sql.Identifier(relation.name), names(relation.visible), table(relation.id), epoch, epoch
    )


def _create_lake_view(relation: Relation) -> sql.Composed:
    columns = [
        trusted(f"r.t::{one.type}") + sql.SQL(" as {}").format(sql.Identifier(one.name)) for one in relation.visible
    ]
    return sql.SQL("create view public.{} as select {} from state.refuse_rows({}, {}) as r(t)").format(
        sql.Identifier(relation.name), sql.SQL(", ").join(columns), sql.Literal(relation.name), sql.Literal(_IN_LAKE)
    )


def key_comments(relation: Relation) -> Iterator[sql.Composed]:
    """Yield statements that say on the public view which columns are the primary key. A view has no key of its own."""
    visible = {column.name for column in relation.visible}
    for part in relation.key:
        if part.name in visible:
            text = "primary key, descending" if part.descending else "primary key"
            column = sql.Identifier("public", relation.name, part.name)
            yield sql.SQL("comment on column {} is {}").format(column, sql.Literal(text))


def column_definition(column: Column) -> sql.Composed:
    """Return the definition of a column in CREATE TABLE."""
    collation = ' collate "C"' if column.type.name is TypeName.TEXT else ""
    null = "" if column.nullable else " not null"
    shape = trusted(f"{column.type}{collation}{null}")
    return sql.SQL("{} {}").format(sql.Identifier(column.name), shape)


def add_column(relation: Relation) -> Iterator[sql.Composed]:
    """Yield the statements that add the last column of a relation to its table. No row is read or rewritten."""
    column, name = relation.columns[-1], table(relation.id)
    default = trusted("" if column.default is None else f" default ({column.default})::{column.type}")
    yield sql.SQL("alter table {} add column {}{}").format(name, column_definition(column), default)
    for check in checks_of([column], first=len(relation.columns)):
        yield sql.SQL("alter table {} add {} not valid").format(name, check)


def checks_of(columns: Sequence[Column], *, first: int = 1) -> Iterator[sql.Composed]:
    """Yield a constraint for each column whose type has values that Spark cannot represent exactly.

    The constraint calls `state.refuse`, so that the error contains the column and the reason. The constraints are
    numbered from `first` on.
    """
    for number, column in enumerate(columns, start=first):
        condition = _condition(column)
        if condition is None:
            continue
        yield sql.SQL("constraint {} check (case when ({}) is false then state.refuse({}, {}) else true end)").format(
            sql.Identifier(f"column_{number}_exact"),
            condition,
            sql.Literal(column.name),
            sql.Literal(_why(column)),
        )


def names(columns: Sequence[Column]) -> sql.Composed:
    """Return the list of the columns' names."""
    return sql.SQL(", ").join([sql.Identifier(column.name) for column in columns])


def digest(relation: Relation) -> str:
    """Return a digest of the stored layout. It detects an id that a restored meta store has used again."""
    shape = relation.model_dump(mode="json", include={"kind", "columns", "key", "vnode_count"}, exclude_none=True)
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def _key_part(part: KeyColumn) -> sql.Composed:
    order = "desc" if part.descending else "asc"
    nulls = "first" if part.nulls_first else "last"
    return sql.SQL("{} {} nulls {}").format(sql.Identifier(part.name), sql.SQL(order), sql.SQL(nulls))


def _condition(column: Column) -> sql.Composed | None:
    value = sql.Identifier(column.name)
    side = sql.SQL("all ({})").format(value) if column.type.array else sql.SQL("{}").format(value)
    conditions = [
        sql.SQL("{} {} {}").format(trusted(bound), trusted(operator), side)
        for operator, bound in bounds_of(column.type)
    ]
    if column.length is not None:
        conditions.append(sql.SQL("char_length({}) <= {}").format(value, column.length))
    if column.type.array:
        # Spark's arrays have one dimension and no lower bound. Both expressions are NULL for NULL and empty arrays.
        conditions.append(sql.SQL("coalesce(array_ndims({0}) = 1 and array_lower({0}, 1) = 1, true)").format(value))
    return sql.SQL(" and ").join(conditions) if conditions else None


def _why(column: Column) -> str:
    kind = column.type
    reasons = ["NaN and infinity cannot be kept"] if kind.unbounded else [_WHY[kind.name]] if kind.name in _WHY else []
    if column.length is not None:
        reasons.append(f"value too long for type character varying({column.length})")
    if kind.array:
        reasons.append("an array must have one dimension and begin at index 1")
    return "; ".join(reasons)
