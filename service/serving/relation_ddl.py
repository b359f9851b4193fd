"""What is stored for a relation, as SQL: the versioned table, its indexes, its checks and its two views. Pure printing.

The unique index is the storage order: pages are read and marked by `(_vnode, key)` with the order and the place of
NULL spelled out, and text is `COLLATE "C"` because Spark compares bytes.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Final

from psycopg import sql

from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.ids import GraphId, RelationId
from service.protocol.relation import ALIVE, Relation, RelationKind
from service.serving.connections import trusted

FROM_INDEX: Final = "using brin (_from) with (pages_per_range = 16, autosummarize = on)"
"""How rows written after an epoch are found (changes, roll back): new rows lie together, so block ranges serve."""

_STORAGE: Final = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05"
"""Every update leaves an ended version that vacuum deletes: look at the table before a fifth of it is dead."""

# What Spark cannot hold exactly is refused on the way in, per element type: (conditions, why). `{0}` is the value;
# for an array each condition is turned around into `bound <operator> all (array)`.
_YEARS: Final = "must be finite and in the years 1 to 9999"
_BOUNDS: Final = {
    TypeName.DATE: (("<=", "date '0001-01-01'"), (">=", "date '9999-12-31'")),
    TypeName.TIMESTAMP: (("<=", "timestamp '0001-01-01'"), (">", "timestamp '10000-01-01'")),
    TypeName.TIMESTAMPTZ: (
        ("<=", "timestamptz '0001-01-01 00:00:00+00'"),
        (">", "timestamptz '10000-01-01 00:00:00+00'"),
    ),
    TypeName.NUMERIC: (("<>", "numeric 'NaN'"),),
}
_WHY: Final = {
    TypeName.DATE: f"a date {_YEARS}",
    TypeName.TIMESTAMP: f"a timestamp {_YEARS}",
    TypeName.TIMESTAMPTZ: f"a timestamptz {_YEARS}",
    TypeName.NUMERIC: "NaN cannot be kept",
}


def table(relation: RelationId) -> sql.Identifier:
    """Return the versioned table's name."""
    return sql.Identifier("state", f"t_{relation}")


def create_table(relation: Relation) -> sql.Composed:
    """Return the statement that makes the versioned table. Values of tables are checked; those of views come from
    Spark.
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


def create_storage_index(relation: Relation) -> sql.Composed:
    """Return the statement that makes the index of storage order, where it is missing."""
    key = sql.SQL(", ").join([_key_part(part) for part in relation.key])
    return sql.SQL("create unique index if not exists {} on {} (_vnode, {}, _from) nulls not distinct").format(
        sql.Identifier(f"t_{relation.id}_key"), table(relation.id), key
    )


def create_indexes(relation: Relation) -> Iterator[sql.Composed]:
    """Yield the statements that make the other indexes: what ended, what began."""
    name = f"t_{relation.id}"
    yield sql.SQL("create index {} on {} (_to) where _to <> {}").format(
        sql.Identifier(f"{name}_to"), table(relation.id), sql.Literal(ALIVE)
    )
    yield sql.SQL("create index {} on {} {}").format(
        sql.Identifier(f"{name}_from"), table(relation.id), sql.SQL(FROM_INDEX)
    )


def create_live_view(relation: Relation) -> sql.Composed:
    """Return the statement that makes the view of alive rows, hidden columns included."""
    return sql.SQL("create view live.{} as select {} from {} where _to = {}").format(
        sql.Identifier(relation.name), names(relation.columns), table(relation.id), sql.Literal(ALIVE)
    )


def create_public_view(relation: Relation, graph: GraphId) -> sql.Composed:
    """Return the statement that makes the view users read: at the graph's published epoch, found once per query
    (I2).
    """
    epoch = sql.SQL("(select epoch from state.published where graph = {})").format(sql.Literal(graph))
    return sql.SQL("create view public.{} as select {} from {} where _from <= {} and _to > {}").format(
        sql.Identifier(relation.name), names(relation.visible), table(relation.id), epoch, epoch
    )


def column_definition(column: Column) -> sql.Composed:
    """Return a column as CREATE TABLE spells it."""
    collation = ' collate "C"' if column.type.name is TypeName.TEXT else ""
    null = "" if column.nullable else " not null"
    shape = trusted(f"{column.type}{collation}{null}")
    return sql.SQL("{} {}").format(sql.Identifier(column.name), shape)


def checks_of(columns: Sequence[Column]) -> Iterator[sql.Composed]:
    """Yield a constraint per column whose type admits values that could not be kept exactly.

    The value is refused by `state.refuse`, so that the error itself names the column and the reason.
    """
    for number, column in enumerate(columns, start=1):
        condition = _condition(column)
        if condition is None:
            continue
        yield sql.SQL("constraint {} check (case when ({}) is false then state.refuse({}, {}) else true end)").format(
            sql.Identifier(f"column_{number}_exact"),
            condition,
            sql.Literal(column.name),
            sql.Literal(_why(column.type)),
        )


def names(columns: Sequence[Column]) -> sql.Composed:
    """Return the columns' names as a list."""
    return sql.SQL(", ").join([sql.Identifier(column.name) for column in columns])


def digest(relation: Relation) -> str:
    """Return what tells one stored layout from another: ids are never reused, a restored meta store may forget that."""
    shape = relation.model_dump(mode="json", include={"kind", "columns", "key", "vnode_count"})
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
        for operator, bound in _BOUNDS.get(column.type.name, ())
    ]
    if column.type.array:
        # Spark's arrays have one dimension and begin at the beginning; NULL and empty arrays have neither.
        conditions.append(sql.SQL("coalesce(array_ndims({0}) = 1 and array_lower({0}, 1) = 1, true)").format(value))
    return sql.SQL(" and ").join(conditions) if conditions else None


def _why(kind: ColumnType) -> str:
    reasons = [_WHY[kind.name]] if kind.name in _WHY else []
    if kind.array:
        reasons.append("an array must have one dimension and begin at index 1")
    return "; ".join(reasons)
