"""Store logical views: relations without a job."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, insert, select, update

from service.meta_store.documents import called, cut
from service.meta_store.engine import OnConnection
from service.meta_store.references import add_relation, hold_read, store_references
from service.meta_store.relations import COLUMNS
from service.meta_store.schema.core import TAKEN, relation_column, view_reference
from service.meta_store.schema.core import relation as relations
from service.ports.records import LogicalView, NewLogicalView
from service.protocol.ids import RelationId
from service.protocol.relation import RelationKind


class LogicalViews(OnConnection):
    """The logical views of the catalog. `Catalog.remove` also frees their names."""

    async def add(self, new: NewLogicalView) -> RelationId:
        """Store a view that is not visible yet, and lock the relations that it reads until the transaction ends.

        Raises Conflict if the name is taken or if one of these relations is being dropped.
        """
        await hold_read(self._connection, new.reads)
        # A logical view stores no rows, so its number of vnodes has no meaning.
        view = await add_relation(
            self._connection,
            new.name,
            RelationKind.VIEW,
            definition=new.definition,
            vnode_count=1,
            selects_all=new.selects_all,
        )
        await store_references(self._connection, view, new.reads)
        columns = [
            {"relation": view, "position": place, "name": name, "type": kind, "nullable": True, "hidden": False}
            for place, (name, kind) in enumerate(new.columns)
        ]
        if columns:
            await self._connection.execute(insert(relation_column).values(columns))
        return view

    async def named(self, name: str) -> LogicalView | None:
        return next(iter(await self._read(relations.c.name == name)), None)

    async def called(self, names: Collection[str]) -> Sequence[LogicalView]:
        """Return the views with these names, oldest first."""
        return await self._read(called(relations.c.name, names))

    async def all(self) -> Sequence[LogicalView]:
        """Oldest first."""
        return await self._read(definition=cut(relations.c.definition))

    async def hold(self, view: RelationId) -> LogicalView | None:
        """Lock the view's row until the transaction ends, so that no other call drops it, and return the view."""
        held = select(relations.c.id).where(relations.c.id == view).with_for_update(key_share=True)
        await self._connection.execute(held)
        return next(iter(await self._read(relations.c.id == view)), None)

    async def show(self, view: RelationId) -> None:
        """Record that the view exists in the state store and is readable."""
        await self._connection.execute(update(relations).where(relations.c.id == view).values(shown=True))

    async def reading(self, relation: RelationId) -> Sequence[LogicalView]:
        """Return the views that read a relation directly."""
        readers = select(view_reference.c.reader).where(view_reference.c.relation == relation)
        return await self._read(relations.c.id.in_(readers), definition=cut(relations.c.definition))

    async def references(self) -> Mapping[RelationId, Sequence[RelationId]]:
        """Return, for every relation whose statement names logical views or sources, and for every logical view, the
        relations that it names.
        """
        found: dict[RelationId, list[RelationId]] = {}
        named = select(view_reference.c.reader, view_reference.c.relation)
        for reader, relation in (await self._connection.execute(named)).all():
            found.setdefault(RelationId(reader), []).append(RelationId(relation))
        return found

    async def _read(
        self, *conditions: ColumnElement[bool], definition: ColumnElement[Any] = relations.c.definition
    ) -> list[LogicalView]:
        found = select(
            relations.c.id, relations.c.name, definition, relations.c.shown, relations.c.selects_all, COLUMNS
        ).where(relations.c.kind == RelationKind.VIEW, TAKEN, *conditions)
        return [_view(row) for row in await self._connection.execute(found.order_by(relations.c.id))]


def _view(row: Row[*tuple[Any, ...]]) -> LogicalView:
    columns = tuple((name, kind) for name, kind, *_ in row.columns or ())
    return LogicalView(RelationId(row.id), row.name, row.definition, columns, row.shown, row.selects_all)
