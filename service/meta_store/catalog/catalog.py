"""Read and remove relations that jobs create. A removed relation has freed its name and is not in the catalog."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Row,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert

from service.domain.job import JobState
from service.meta_store.catalog.indexes import remove_indexes
from service.meta_store.documents import among, called, cut, printable
from service.meta_store.engine import OnConnection
from service.meta_store.references import JOBLESS
from service.meta_store.relations import COLUMNS, LAKE, relation_of, store_columns
from service.meta_store.schema.core import TAKEN, cleanup, fragment, job, relation_column, view_reference
from service.meta_store.schema.core import relation as relations
from service.meta_store.sources.followed_tables import added_tables, unfollow
from service.ports.records import CatalogEntry, CatalogOutline, Cleanup
from service.protocol.connector import Connector
from service.protocol.ids import JobId, RelationId
from service.protocol.relation import Relation, RelationKind

_READ: Final = (RelationKind.TABLE, RelationKind.MATERIALIZED_VIEW)
"""The kinds that a job reads and that are not its own."""


class PostgresCatalog(OnConnection):
    """See `service.ports.catalog.Catalog`."""

    async def named(self, name: str) -> CatalogEntry | None:
        found = await self._read(relations.c.name == name, whole=True)
        return found[0] if found else None

    async def get(self, relation: RelationId) -> CatalogEntry | None:
        found = await self._read(relations.c.id == relation, whole=True)
        return found[0] if found else None

    async def all(self) -> Sequence[CatalogEntry]:
        """Oldest first."""
        return await self._read()

    async def outlines(self) -> Sequence[CatalogOutline]:
        rows = await self._connection.execute(
            select(
                relations.c.id,
                relations.c.name,
                relations.c.kind,
                relations.c.shown,
                LAKE,
                job.c.id.label("job"),
                job.c.state,
                _upstreams(),
            )
            .join(job, job.c.relation == relations.c.id)
            .where(TAKEN)
            .order_by(relations.c.id)
        )
        return [_outline(row) for row in rows]

    async def called(self, names: Collection[str]) -> Sequence[CatalogEntry]:
        return await self._read(called(relations.c.name, names))

    async def dependents(self, relation: RelationId) -> Sequence[CatalogEntry]:
        readers = select(job.c.relation).join(fragment, fragment.c.job == job.c.id)
        through = select(view_reference.c.reader).where(view_reference.c.relation == relation)
        return await self._read(
            or_(relations.c.id.in_(readers.where(fragment.c.upstream == relation)), relations.c.id.in_(through))
        )

    async def hold(self, wanted: Collection[RelationId]) -> None:
        """All jobs are locked before the rows of the first source or logical view. See the lock order."""
        jobs = select(job.c.id).where(among(job.c.relation, wanted))
        await self._connection.execute(jobs.order_by(job.c.id).with_for_update())
        jobless = select(relations.c.id).where(among(relations.c.id, wanted), relations.c.kind.in_(JOBLESS))
        await self._connection.execute(jobless.order_by(relations.c.id).with_for_update(key_share=True))
        fragments = select(fragment.c.id).where(fragment.c.job.in_(jobs))
        await self._connection.execute(fragments.order_by(fragment.c.id).with_for_update(key_share=True))

    async def add_column(self, relation: Relation, statement: str | None) -> None:
        if statement is not None:
            told = relations.c.definition.concat(f";\n{statement}")
            altered = update(relations).where(relations.c.id == relation.id).values(definition=told)
            await self._connection.execute(altered)
        await store_columns(self._connection, relation.id, relation, since=len(relation.columns) - 1)

    async def remove(self, relation: RelationId) -> None:
        """Free the name, but keep the row because the job's history refers to it. Repeatable."""
        jobs = select(job.c.id).where(job.c.relation == relation)
        unpublished = await added_tables(self._connection, jobs)
        await self._connection.execute(delete(fragment).where(fragment.c.job.in_(jobs)))
        freed = update(relations).where(relations.c.id == relation, TAKEN).values(dropped=True)
        name = (await self._connection.execute(freed.returning(relations.c.name))).scalar()
        if name is None:
            return
        await self._leave(relation, name)
        hidden = update(relations).where(relations.c.owner == relation, TAKEN).values(dropped=True)
        for one, its_name in (await self._connection.execute(hidden.returning(relations.c.id, relations.c.name))).all():
            await self._leave(one, its_name)
        await self._connection.execute(delete(view_reference).where(view_reference.c.reader == relation))
        indexes = select(view_reference.c.reader).where(view_reference.c.relation == relation)
        await remove_indexes(self._connection, relations.c.id.in_(indexes))
        await unfollow(self._connection, unpublished)

    async def _leave(self, relation: RelationId, name: str) -> None:
        """Delete a removed relation's columns and queue its clean-up in the state store."""
        await self._connection.execute(delete(relation_column).where(relation_column.c.relation == relation))
        new = insert(cleanup).values(relation=relation, name=name)
        await self._connection.execute(new.on_conflict_do_nothing(index_elements=["relation"]))

    async def _read(self, *conditions: ColumnElement[bool], whole: bool = False) -> list[CatalogEntry]:
        """Read entries. Without `whole`, there may be many, with the beginnings of their definitions."""
        rows = await self._connection.execute(
            select(
                relations.c.id,
                relations.c.name,
                relations.c.kind,
                relations.c.vnode_count,
                relations.c.definition if whole else cut(relations.c.definition),
                relations.c.key_count,
                relations.c.shown,
                COLUMNS,
                LAKE,
                job.c.id.label("job"),
                job.c.state,
                _upstreams(),
                exists().where(fragment.c.job == job.c.id, fragment.c.source.is_not(None)).label("follows"),
            )
            .join(job, job.c.relation == relations.c.id)
            .where(TAKEN, *conditions)
            .order_by(relations.c.id)
        )
        return [_entry(row) for row in rows]


class PostgresCleanups(OnConnection):
    """See `service.ports.catalog.Cleanups`."""

    async def all(self) -> Sequence[Cleanup]:
        """Newest first, because a reader must be cleaned up before the relation that it reads."""
        rows = await self._connection.execute(select(cleanup).order_by(cleanup.c.relation.desc()))
        return [Cleanup(RelationId(row.relation), row.name, row.held) for row in rows]

    async def done(self, relation: RelationId) -> None:
        await self._connection.execute(delete(cleanup).where(cleanup.c.relation == relation))
        of_it, itself = job.c.relation == relation, relations.c.id == relation
        await self._connection.execute(update(job).where(of_it).values(statement=cut(job.c.statement).element))
        short = (
            update(relations).where(itself, relations.c.dropped).values(definition=cut(relations.c.definition).element)
        )
        await self._connection.execute(short)
        named = exists().where(view_reference.c.relation == relation)
        gone = delete(relations).where(itself, relations.c.dropped, relations.c.kind == RelationKind.VIEW, ~named)
        await self._connection.execute(gone)

    async def hold(self, relation: RelationId, reason: str) -> None:
        held = update(cleanup).where(cleanup.c.relation == relation).values(held=printable(reason))
        await self._connection.execute(held)


def _upstreams() -> ColumnElement[Any]:
    """Return the relations that the job reads, without duplicates and hidden ones, in order of id."""
    scanned = select(fragment.c.upstream.label("id")).where(fragment.c.job == job.c.id)
    looked_up = select(view_reference.c.relation).where(view_reference.c.reader == job.c.relation)
    read, named = union(scanned.correlate(job), looked_up.correlate(job)).subquery("read"), relations.alias("named")
    ids = select(func.array_agg(aggregate_order_by(read.c.id, read.c.id))).select_from(read)
    of_users = ids.join(named, and_(named.c.id == read.c.id, named.c.kind.in_(_READ)))
    return func.coalesce(of_users.scalar_subquery(), []).label("upstreams")


def _entry(row: Row[*tuple[Any, ...]]) -> CatalogEntry:
    return CatalogEntry(
        relation=relation_of(row),
        definition=row.definition,
        job=JobId(row.job),
        state=JobState(row.state),
        key_count=row.key_count,
        upstreams=tuple(RelationId(upstream) for upstream in row.upstreams),
        shown=row.shown,
        follows=row.follows,
    )


def _outline(row: Row[*tuple[Any, ...]]) -> CatalogOutline:
    return CatalogOutline(
        id=RelationId(row.id),
        name=row.name,
        kind=RelationKind(row.kind),
        job=JobId(row.job),
        state=JobState(row.state),
        upstreams=tuple(RelationId(upstream) for upstream in row.upstreams),
        shown=row.shown,
        location=None if row.lake is None else Connector.model_validate(row.lake).options.get("location"),
    )
