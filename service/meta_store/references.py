"""Take a name, and lock the relations that a new relation reads. Shared by the aggregates that add relations."""

from collections.abc import Collection
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.errors import Conflict, Invalid
from service.domain.job import CREATING, TERMINAL, JobState
from service.meta_store.documents import among
from service.meta_store.schema.core import TAKEN, view_reference
from service.meta_store.schema.core import job as job_table
from service.meta_store.schema.core import relation as relations
from service.protocol.ids import RelationId
from service.protocol.relation import CATALOG_PREFIX, RelationKind

JOBLESS: Final = (RelationKind.VIEW, RelationKind.SOURCE)
"""Kinds of relations that no job creates."""
_UNREADABLE: Final = TERMINAL | {JobState.CANCELLING, JobState.DROPPING, JobState.FAILED}


async def hold_read(connection: AsyncConnection, read: Collection[RelationId]) -> None:
    """Lock relations until the transaction ends. Raises Conflict where one of them is being removed.

    A drop locks the row of its job to change its state, or the row of a logical view or source to free its name. A
    concurrent drop therefore commits first and is seen here, or it comes later and sees the reader.
    """
    if not read:
        return
    jobs = (
        select(job_table.c.state, relations.c.id, relations.c.name, relations.c.kind)
        .join(relations, relations.c.id == job_table.c.relation)
        .where(among(relations.c.id, read))
        .order_by(relations.c.id)
        .with_for_update(read=True, of=job_table)
    )
    held: set[int] = set()
    for row in await connection.execute(jobs):
        held.add(row.id)
        if JobState(row.state) in _UNREADABLE:
            raise Conflict(f'{row.kind} "{row.name}" cannot be read: it is {row.state}')
    views = select(relations.c.id, relations.c.name, relations.c.kind, relations.c.dropped).where(
        among(relations.c.id, set(read) - held), relations.c.kind.in_(JOBLESS)
    )
    for row in await connection.execute(views.order_by(relations.c.id).with_for_update(read=True)):
        if row.dropped:
            raise Conflict(f'{row.kind} "{row.name}" cannot be read: it was dropped')


async def add_relation(
    connection: AsyncConnection,
    name: str,
    kind: RelationKind,
    *,
    definition: str,
    vnode_count: int,
    selects_all: bool | None = None,
) -> RelationId:
    """Add a relation and take its name. Raises Conflict where the name is taken, and Invalid for one of the catalog."""
    if name.startswith(CATALOG_PREFIX):
        raise Invalid(f'name "{name}" is reserved: the relations of rw_catalog begin with {CATALOG_PREFIX}')
    row = insert(relations).values(
        name=name, kind=kind, definition=definition, vnode_count=vnode_count, selects_all=selects_all
    )
    free = row.on_conflict_do_nothing(index_elements=["name"], index_where=TAKEN).returning(relations.c.id)
    added = (await connection.execute(free)).scalar()
    if added is None:
        raise Conflict(await _taken_by(connection, name, kind))
    return RelationId(added)


async def own(connection: AsyncConnection, owner: RelationId, hidden: Collection[RelationId]) -> None:
    """Turn the hidden relations into internal tables of `owner`."""
    if hidden:
        owned = update(relations).where(among(relations.c.id, hidden))
        await connection.execute(owned.values(owner=owner, kind=RelationKind.INTERNAL))


async def store_references(connection: AsyncConnection, reader: RelationId, read: Collection[RelationId]) -> None:
    """Record the relations that `reader` reads, or the logical views and sources that its statement names."""
    if read:
        rows = [{"reader": reader, "relation": one} for one in sorted(set(read))]
        await connection.execute(insert(view_reference).values(rows))


async def _taken_by(connection: AsyncConnection, name: str, asked: RelationKind) -> str:
    """Return the error message for a taken name, in RisingWave's wording."""
    existing = (
        select(relations.c.kind, relations.c.shown, job_table.c.state)
        .outerjoin(job_table, job_table.c.relation == relations.c.id)
        .where(relations.c.name == name, TAKEN)
    )
    row = (await connection.execute(existing)).first()
    kind = asked if row is None else RelationKind(row.kind)
    if row is not None and (JobState(row.state) in CREATING if row.state else not row.shown):
        return f"{kind} named {name} already exists and is still being created"
    return f'{kind} with name "{name}" exists'
