"""Store and read relations: one row each, and one row per column. Shared by the aggregates that use relations."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Row, func, insert, or_, select
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.connectors import IN_PLACE
from service.meta_store.documents import among
from service.meta_store.schema.core import fragment, job, relation_column
from service.meta_store.schema.core import relation as relations
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.connector import Connector
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind

_COLUMN: Final = func.jsonb_build_array(
    relation_column.c.name,
    relation_column.c.type,
    relation_column.c.nullable,
    relation_column.c.hidden,
    relation_column.c.key_position,
    relation_column.c.descending,
    relation_column.c.length,
    relation_column.c.default_value,
    type_=JSONB,
)

COLUMNS: Final = (
    select(func.jsonb_agg(aggregate_order_by(_COLUMN, relation_column.c.position), type_=JSONB))
    .where(relation_column.c.relation == relations.c.id)
    .correlate(relations)
    .scalar_subquery()
    .label("columns")
)
"""All columns of the selected relation as one document. NULL for a relation that was removed."""


LAKE: Final = (
    select(fragment.c.connector)
    .join(job, job.c.id == fragment.c.job)
    .where(job.c.relation == relations.c.id, relations.c.kind != RelationKind.SINK)
    .where(fragment.c.connector["name"].astext.in_(IN_PLACE))
    .limit(1)
    .correlate(relations)
    .scalar_subquery()
    .label("lake")
)
"""Where the rows of the selected relation lie, if it is read in place: all writers of a view say the same."""


def relation_of(row: Row[*tuple[Any, ...]]) -> Relation:
    """Return the relation of a row with the columns `id name kind vnode_count columns lake`."""
    keys = sorted((place, name, down) for name, _, _, _, place, down, *_ in row.columns if place is not None)
    return Relation(
        id=RelationId(row.id),
        name=row.name,
        kind=RelationKind(row.kind),
        columns=tuple(
            Column(
                name=name, type=ColumnType.parse(kind), nullable=nullable, hidden=hidden, length=length, default=default
            )
            for name, kind, nullable, hidden, _, _, length, default in row.columns
        ),
        key=tuple(KeyColumn(name=name, descending=descending) for _, name, descending in keys),
        vnode_count=row.vnode_count,
        lake=None if row.lake is None else Connector.model_validate(row.lake),
    )


async def read_relations(
    connection: AsyncConnection, ids: Collection[int], owners: Collection[int]
) -> tuple[Mapping[int, Relation], Mapping[int, Sequence[Relation]]]:
    """Return the relations with these ids, and the hidden ones of each owner in order of id. Removed ones are left out.

    One statement, because every recovery reads the plans of all jobs.
    """
    named = relations.c.id, relations.c.name, relations.c.kind, relations.c.vnode_count, relations.c.owner
    wanted = or_(among(relations.c.id, ids), among(relations.c.owner, owners))
    found = select(*named, COLUMNS, LAKE).where(wanted, COLUMNS.element.is_not(None)).order_by(relations.c.id)
    by_id: dict[int, Relation] = {}
    hidden: dict[int, list[Relation]] = defaultdict(list)
    for row in await connection.execute(found):
        by_id[row.id] = relation_of(row)
        if row.owner is not None:
            hidden[row.owner].append(by_id[row.id])
    return by_id, hidden


async def store_columns(connection: AsyncConnection, relation: RelationId, of: Relation, *, since: int = 0) -> None:
    """Store the columns of a relation, from the place `since` on, and its key."""
    places = {part.name: (place, part.descending) for place, part in enumerate(of.key)}
    rows: list[dict[str, Any]] = []
    for position, column in enumerate(of.columns[since:], since):
        place, descending = places.get(column.name, (None, False))
        rows.append(
            {
                "relation": relation,
                "position": position,
                "name": column.name,
                "type": str(column.type),
                "nullable": column.nullable,
                "hidden": column.hidden,
                "key_position": place,
                "descending": descending,
                "length": column.length,
                "default_value": column.default,
            }
        )
    await connection.execute(insert(relation_column).values(rows))
