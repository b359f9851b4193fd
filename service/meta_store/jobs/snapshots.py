"""Store snapshot jobs: those that are created in a partial graph."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from sqlalchemy import Row, Select, and_, bindparam, func, or_, select, update

from service.domain.graph import FailedIndex
from service.domain.job import HOLDS_PERMIT, JobState
from service.meta_store.documents import among, printable
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import fragment, snapshot_backfill, view_reference
from service.meta_store.schema.core import graph as graphs
from service.meta_store.schema.core import job as job_table
from service.ports.snapshots import Snapshot
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, JobId


class PostgresSnapshots(OnConnection):
    """See `service.ports.snapshots.Snapshots`."""

    async def of_graph(self, graph: GraphId) -> Snapshot | None:
        row = (await self._connection.execute(_SNAPSHOTS.where(snapshot_backfill.c.graph == graph))).first()
        return None if row is None else _snapshot(row)

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, Snapshot]:
        rows = await self._connection.execute(_SNAPSHOTS.where(among(snapshot_backfill.c.job, jobs)))
        return {JobId(row.job): _snapshot(row) for row in rows}

    async def index_built(self, graph: GraphId) -> None:
        await self._set(graph, indexed=True)

    async def index_failed(self, graph: GraphId, failed: FailedIndex) -> None:
        error = printable(failed.error)
        await self._set(graph, index_failures=failed.failures, index_error=error, index_due=failed.due)

    async def replayed(self, graph: GraphId, consumed: Epoch) -> None:
        await self._set(graph, consumed=consumed)

    async def readable(self, job: JobId) -> Epoch:
        # A job has the id of its relation.
        return Epoch((await self._connection.execute(_READABLE, {"job": job})).scalar_one())

    async def pinned(self) -> Epoch | None:
        columns = snapshot_backfill.c
        oldest = select(func.min(func.coalesce(columns.consumed, job_table.c.snapshot_epoch))).select_from(_CREATING)
        found = (await self._connection.execute(oldest)).scalar()
        return None if found is None else Epoch(found)

    async def settled(self) -> Mapping[JobId, Epoch]:
        merged = (
            select(job_table.c.id, graphs.c.committed)
            .select_from(_CREATING.join(graphs, graphs.c.id == snapshot_backfill.c.graph))
            .where(snapshot_backfill.c.merged)
        )
        return {JobId(row.id): Epoch(row.committed) for row in await self._connection.execute(merged)}

    async def _set(self, graph: GraphId, **values: Any) -> None:
        changed = update(snapshot_backfill).where(snapshot_backfill.c.graph == graph)
        await self._connection.execute(changed.values(values))


_STAYS: Final = job_table.c.own_graph.is_not(None)
_CREATING: Final = snapshot_backfill.join(
    job_table,
    and_(
        job_table.c.id == snapshot_backfill.c.job,
        or_(job_table.c.state.in_(HOLDS_PERMIT), and_(_STAYS, job_table.c.state == JobState.CREATED)),
    ),
)
"""The jobs that read versions of their inputs at an epoch of their own."""
_READ: Final = (
    select(fragment.c.upstream.label("relation"))
    .where(fragment.c.job == bindparam("job"), fragment.c.upstream.is_not(None))
    .union(select(view_reference.c.relation).where(view_reference.c.reader == bindparam("job")))
    .subquery()
)
_WRITERS: Final = select(job_table.c.graph).join(_READ, _READ.c.relation == job_table.c.relation)
_READABLE: Final = select(func.min(graphs.c.committed)).where(
    or_(graphs.c.id == DATABASE_GRAPH, graphs.c.id.in_(_WRITERS))
)
_SNAPSHOTS: Final[Select[*tuple[Any, ...]]] = select(
    snapshot_backfill.c.job,
    snapshot_backfill.c.graph,
    job_table.c.snapshot_epoch,
    snapshot_backfill.c.consumed,
    snapshot_backfill.c.indexed,
    snapshot_backfill.c.merged,
    _STAYS.label("stays"),
).join(job_table, job_table.c.id == snapshot_backfill.c.job)


def _snapshot(row: Row[*tuple[Any, ...]]) -> Snapshot:
    return Snapshot(
        job=JobId(row.job),
        graph=GraphId(row.graph),
        epoch=Epoch(row.snapshot_epoch),
        consumed=None if row.consumed is None else Epoch(row.consumed),
        indexed=row.indexed,
        merged=row.merged,
        stays=row.stays,
    )
