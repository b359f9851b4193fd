"""Store the sources that are places of many tables in a lake, and read why tables of a lake wait for their storage."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, delete, insert, select

from service.meta_store.documents import cut
from service.meta_store.engine import OnConnection
from service.meta_store.references import add_relation
from service.meta_store.schema.core import TAKEN, fragment, job
from service.meta_store.schema.core import relation as relations
from service.meta_store.schema.sources import AWAY, lake_source
from service.meta_store.sources.sources import hold_secret
from service.ports.source_records import AwayTable, LakeSource, NewLakeSource
from service.protocol.connector import Connector
from service.protocol.ids import JobId, RelationId
from service.protocol.relation import RelationKind


class Lakes(OnConnection):
    """The places of lakes in the catalog, and the tables that are read in place."""

    async def add(self, new: NewLakeSource) -> RelationId:
        """Store a source, and lock its secrets. Raises Conflict if the name is taken, and NotFound for a secret."""
        # A source stores no rows, so its number of vnodes has no meaning.
        one = await add_relation(
            self._connection, new.name, RelationKind.SOURCE, definition=new.definition, vnode_count=1
        )
        await self._connection.execute(relations.update().where(relations.c.id == one).values(shown=True))
        await self._connection.execute(insert(lake_source).values(relation=one, connector=new.connector.model_dump()))
        for secret in sorted(set(new.connector.secrets.values())):
            await hold_secret(self._connection, secret)
        return one

    async def named(self, name: str) -> LakeSource | None:
        return next(iter(await self._read(relations.c.name == name)), None)

    async def all(self) -> Sequence[LakeSource]:
        """Oldest first."""
        return await self._read(definition=cut(relations.c.definition))

    async def remove(self, source: RelationId) -> bool:
        """Free the name of a source, and return whether it is one of these. No table refers to it any more."""
        found = select(lake_source.c.relation).where(lake_source.c.relation == source)
        if (await self._connection.execute(found)).first() is None:
            return False
        freed = relations.update().where(relations.c.id == source, TAKEN).values(dropped=True, shown=False)
        await self._connection.execute(freed)
        await self._connection.execute(delete(lake_source).where(lake_source.c.relation == source))
        return True

    async def away(self) -> Sequence[AwayTable]:
        """Return the tables whose storage is away."""
        return [
            AwayTable(RelationId(row.relation), JobId(row.job), row.source_waiting, row.source_waiting_since)
            for row in await self._connection.execute(_AWAY)
        ]

    async def _read(
        self, *conditions: ColumnElement[bool], definition: ColumnElement[str] = relations.c.definition
    ) -> list[LakeSource]:
        found = select(relations.c.id, relations.c.name, definition, lake_source.c.connector)
        found = found.join(lake_source, lake_source.c.relation == relations.c.id)
        found = found.where(TAKEN, *conditions).order_by(relations.c.id)
        return [_source(row) for row in await self._connection.execute(found)]


_AWAY: Final[Select[*tuple[Any, ...]]] = (
    select(job.c.relation, fragment.c.job, fragment.c.source_waiting, fragment.c.source_waiting_since)
    .join(job, job.c.id == fragment.c.job)
    .where(AWAY)
    .order_by(fragment.c.id)
)


def _source(row: Row[*tuple[Any, ...]]) -> LakeSource:
    return LakeSource(RelationId(row.id), row.name, row.definition, Connector.model_validate(row.connector))
