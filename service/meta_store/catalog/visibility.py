"""Store which epochs and created relations users see."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import and_, bindparam, exists, not_, select, update

from service.domain.job import JobState
from service.meta_store.documents import among, printable
from service.meta_store.engine import OnConnection
from service.meta_store.relations import COLUMNS, LAKE, relation_of
from service.meta_store.schema.core import UNPUBLISHED, UNSHOWN, barrier, job
from service.meta_store.schema.core import graph as graphs
from service.meta_store.schema.core import relation as relations
from service.protocol.ids import Epoch, GraphId, RelationId
from service.protocol.relation import Relation


class PostgresVisibility(OnConnection):
    """See `service.ports.catalog.Visibility`."""

    async def publish(
        self,
        graph: GraphId,
        epoch: Epoch,
        *,
        now: datetime,
        created: bool = True,
        held_back: Collection[RelationId] = (),
    ) -> None:
        if created:
            its_job = exists().where(job.c.relation == relations.c.id, job.c.graph == graph, job.c.state == "Created")
            shown = update(relations).where(UNSHOWN, its_job, not_(among(relations.c.id, held_back)))
            await self._connection.execute(shown.values(shown=True, held_back=None))
        await self._connection.execute(_PUBLISHED, {"of_graph": graph, "upto": epoch, "now": now})

    async def unshown(self, graph: GraphId | None = None) -> Sequence[Relation]:
        if graph is None:
            return [relation_of(row) for row in await self._connection.execute(_UNSHOWN)]
        return [relation_of(row) for row in await self._connection.execute(_UNSHOWN_OF, {"of_graph": graph})]

    async def hold_back(self, relation: RelationId, reason: str) -> None:
        text = printable(reason)
        changed = and_(relations.c.id == relation, UNSHOWN, relations.c.held_back.is_distinct_from(text))
        await self._connection.execute(update(relations).where(changed).values(held_back=text))


_OF_GRAPH: Final = (
    update(graphs)
    .where(graphs.c.id == bindparam("of_graph"), graphs.c.published < bindparam("upto"))
    .values(published=bindparam("upto"))
)

_PUBLISHED: Final = (
    update(barrier)
    .where(barrier.c.graph == bindparam("of_graph"), barrier.c.epoch <= bindparam("upto"), UNPUBLISHED)
    .values(published_at=bindparam("now"))
    .add_cte(_OF_GRAPH.cte("of_graph"))
)

_UNSHOWN: Final = (
    select(relations.c.id, relations.c.name, relations.c.kind, relations.c.vnode_count, COLUMNS, LAKE)
    .join(job, job.c.relation == relations.c.id)
    .where(UNSHOWN, job.c.state == JobState.CREATED)
    .order_by(relations.c.id)
)
_UNSHOWN_OF: Final = _UNSHOWN.where(job.c.graph == bindparam("of_graph"))
"""Built once, because every commit runs it."""
