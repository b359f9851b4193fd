"""Store named indexes, which are relations without a job, and the indexes of the state store."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Row, Select, and_, case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.meta_store.documents import among, printable, stored_text, text_of
from service.meta_store.engine import OnConnection
from service.meta_store.references import add_relation, hold_read, store_references
from service.meta_store.relations import COLUMNS, LAKE, relation_of, store_columns
from service.meta_store.schema.core import TAKEN, relation_column, view_reference
from service.meta_store.schema.core import relation as relations
from service.meta_store.schema.indexes import stored_index
from service.ports.indexes import IndexState, NamedIndex, StoredIndex
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import LookupIndex

_INDEX: Final = TypeAdapter(LookupIndex)
_STORED: Final[Select[*tuple[Any, ...]]] = select(stored_index, text_of(stored_index.c.shape).label("text")).order_by(
    stored_index.c.relation, stored_index.c.shape
)
"""In one order, so that transactions that lock several rows do not wait for each other."""


class PostgresNamedIndexes(OnConnection):
    """See `service.ports.indexes.NamedIndexes`."""

    async def add(self, index: Relation, on: RelationId, definition: str) -> RelationId:
        await hold_read(self._connection, [on])
        # An index stores no rows of its own, so its number of vnodes has no meaning.
        added = await add_relation(
            self._connection, index.name, RelationKind.INDEX, definition=definition, vnode_count=1
        )
        await store_references(self._connection, added, [on])
        await store_columns(self._connection, added, index)
        return added

    async def named(self, name: str) -> NamedIndex | None:
        return next(iter(await self._read(relations.c.name == name)), None)

    async def all(self) -> Sequence[NamedIndex]:
        return await self._read()

    async def show(self, index: RelationId) -> None:
        await self._connection.execute(update(relations).where(relations.c.id == index, TAKEN).values(shown=True))

    async def remove(self, index: RelationId) -> None:
        await remove_indexes(self._connection, relations.c.id == index)

    async def _read(self, *conditions: ColumnElement[bool]) -> list[NamedIndex]:
        columns = relations.c.id, relations.c.name, relations.c.kind, relations.c.vnode_count, COLUMNS, LAKE
        found = (
            select(*columns, relations.c.definition, relations.c.shown, view_reference.c.relation.label("on"))
            .join(view_reference, view_reference.c.reader == relations.c.id)
            .where(relations.c.kind == RelationKind.INDEX, TAKEN, *conditions)
            .order_by(relations.c.id)
        )
        return [
            NamedIndex(relation_of(row), RelationId(row.on), row.definition, row.shown)
            for row in await self._connection.execute(found)
        ]


class PostgresStoredIndexes(OnConnection):
    """See `service.ports.indexes.StoredIndexes`."""

    async def lock(self) -> Sequence[StoredIndex]:
        return [_stored(row) for row in await self._connection.execute(_STORED.with_for_update())]

    async def stored(self, relation: RelationId) -> Sequence[StoredIndex]:
        found = _STORED.where(stored_index.c.relation == relation)
        return [_stored(row) for row in await self._connection.execute(found)]

    async def hold(self, relations: Collection[RelationId]) -> frozenset[LookupIndex]:
        wanted = and_(among(stored_index.c.relation, relations), stored_index.c.state == IndexState.CREATED)
        rows = await self._connection.execute(_STORED.where(wanted).with_for_update(read=True))
        return frozenset(_INDEX.validate_json(row.text) for row in rows)

    async def expect(self, wanted: Collection[LookupIndex], *, now: datetime) -> None:
        for index in sorted(wanted, key=str):
            new = insert(stored_index).values(**_key(index), state=IndexState.CREATING, asked_at=now)
            await self._connection.execute(new.on_conflict_do_nothing(index_elements=["relation", "shape"]))

    async def put(self, index: StoredIndex, *, now: datetime) -> None:
        values: dict[str, Any] = {
            "state": index.state,
            "bytes": index.bytes,
            "error": None if index.error is None else printable(index.error),
            "named": list(index.named),
            "views": list(index.views),
        }
        is_built = index.state is IndexState.CREATED
        new = insert(stored_index).values(
            **_key(index.index), **values, asked_at=now, built_at=now if is_built else None
        )
        since = case((stored_index.c.state == IndexState.CREATED, stored_index.c.built_at), else_=now)
        await self._connection.execute(
            new.on_conflict_do_update(
                index_elements=["relation", "shape"], set_={**values, "built_at": since if is_built else None}
            )
        )

    async def ended(self, index: LookupIndex, *, error: str | None, now: datetime) -> None:
        values: dict[str, Any] = {"error": None if error is None else printable(error)}
        if error is None:
            values |= {"state": IndexState.CREATED, "built_at": now}
        creating = stored_index.c.state == IndexState.CREATING
        await self._connection.execute(update(stored_index).where(_is(index), creating).values(**values))

    async def forget(self, index: LookupIndex) -> None:
        over = stored_index.c.state == IndexState.DROPPING
        await self._connection.execute(delete(stored_index).where(_is(index), over))


async def remove_indexes(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> None:
    """Free the names of named indexes. Their rows stay, as those of other relations do."""
    freed = update(relations).where(relations.c.kind == RelationKind.INDEX, TAKEN, *conditions).values(dropped=True)
    for one in (await connection.execute(freed.returning(relations.c.id))).scalars().all():
        await connection.execute(delete(relation_column).where(relation_column.c.relation == one))
        await connection.execute(delete(view_reference).where(view_reference.c.reader == one))
        without = func.array_remove(stored_index.c.named, one)
        named = stored_index.c.named.contains([one])
        await connection.execute(update(stored_index).where(named).values(named=without))


def _key(index: LookupIndex) -> dict[str, Any]:
    return {"relation": index.relation, "shape": stored_text(_INDEX.dump_json(index).decode())}


def _is(index: LookupIndex) -> ColumnElement[bool]:
    key = _key(index)
    return and_(stored_index.c.relation == key["relation"], stored_index.c.shape == key["shape"])


def _stored(row: Row[*tuple[Any, ...]]) -> StoredIndex:
    return StoredIndex(
        index=_INDEX.validate_json(row.text),
        state=IndexState(row.state),
        bytes=row.bytes,
        error=row.error,
        named=tuple(map(RelationId, row.named)),
        views=tuple(map(RelationId, row.views)),
    )
