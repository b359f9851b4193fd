"""Store snapshot jobs: those that are created in a partial graph."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Row, Select, and_, delete, func, insert, not_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.barrier import FailedIndex, GraphStatus
from service.domain.job import HOLDS_PERMIT
from service.meta_store.documents import among, printable
from service.meta_store.schema.core import GRAPH_ID, UNFINISHED, barrier, command, snapshot_backfill
from service.meta_store.schema.core import graph as graphs
from service.meta_store.schema.core import job as job_table
from service.ports.snapshots import Snapshot
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, JobId


class PostgresSnapshots:
    """See `service.ports.snapshots.Snapshots`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def begin(self, job: JobId, *, indexed: bool) -> Snapshot:
        """Lock the database graph's row, so that no barrier commits and no Pause is queued before this transaction."""
        held = select(graphs.c.committed, graphs.c.paused, graphs.c.paused_since).where(graphs.c.id == DATABASE_GRAPH)
        committed, paused, since = (await self._connection.execute(held.with_for_update())).one()
        kind = command.c.mutation["type"].astext
        asked = (
            select(kind)
            .where(command.c.graph == DATABASE_GRAPH, UNFINISHED, kind.in_(("pause", "resume")))
            .order_by(command.c.id.desc())
            .limit(1)
        )
        last = (await self._connection.execute(asked)).scalar()
        graph = GraphId((await self._connection.execute(select(GRAPH_ID.next_value()))).scalar_one())
        new = insert(graphs).values(
            id=graph,
            status=GraphStatus.RECOVERING,
            paused=paused if last is None else last == "pause",
            paused_since=since,
        )
        await self._connection.execute(new)
        pinned = update(job_table).where(job_table.c.id == job).values(graph=graph, snapshot_epoch=committed)
        await self._connection.execute(pinned)
        await self._connection.execute(insert(snapshot_backfill).values(job=job, graph=graph, indexed=indexed))
        return Snapshot(job, graph, Epoch(committed), indexed=indexed)

    async def of_graph(self, graph: GraphId) -> Snapshot | None:
        row = (await self._connection.execute(_SNAPSHOTS.where(snapshot_backfill.c.graph == graph))).first()
        return None if row is None else _snapshot(row)

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, Snapshot]:
        rows = await self._connection.execute(_SNAPSHOTS.where(among(snapshot_backfill.c.job, jobs)))
        return {JobId(row.job): _snapshot(row) for row in rows}

    async def graphs(self) -> Sequence[GraphId]:
        others = select(graphs.c.id).where(graphs.c.id != DATABASE_GRAPH).order_by(graphs.c.id)
        return [GraphId(one) for one in (await self._connection.execute(others)).scalars()]

    async def unmerged(self) -> Sequence[GraphId]:
        columns = snapshot_backfill.c
        running = select(columns.graph).where(not_(columns.merged)).order_by(columns.graph)
        return [GraphId(one) for one in (await self._connection.execute(running.with_for_update(read=True))).scalars()]

    async def graphs_of(self, jobs: Collection[JobId]) -> Mapping[JobId, GraphId]:
        """Return the graphs and lock the jobs with FOR KEY SHARE, which does not block commits that store progress.

        A transaction that moves a job to another graph or state locks it FOR UPDATE first.
        """
        columns = job_table.c
        held = select(columns.id, columns.graph).where(among(columns.id, jobs)).order_by(columns.id)
        rows = await self._connection.execute(held.with_for_update(read=True, key_share=True))
        return {JobId(row.id): GraphId(row.graph) for row in rows}

    async def index_built(self, graph: GraphId) -> None:
        await self._set(graph, indexed=True)

    async def index_failed(self, graph: GraphId, failed: FailedIndex) -> None:
        error = printable(failed.error)
        await self._set(graph, index_failures=failed.failures, index_error=error, index_due=failed.due)

    async def replayed(self, graph: GraphId, consumed: Epoch) -> None:
        await self._set(graph, consumed=consumed)

    async def merge(self, graph: GraphId) -> None:
        await self._set(graph, merged=True)
        moved = update(job_table).where(job_table.c.graph == graph)
        await self._connection.execute(moved.values(graph=DATABASE_GRAPH))
        await self._hand_over(graph)
        waiting = update(command).where(command.c.graph == graph, UNFINISHED)
        await self._connection.execute(waiting.values(graph=DATABASE_GRAPH))

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

    async def retire(self, graph: GraphId) -> None:
        """Lock the job and its graph before the database graph, as every transaction does that locks several."""
        its_job = select(job_table.c.id).where(job_table.c.graph == graph).order_by(job_table.c.id)
        await self._connection.execute(its_job.with_for_update())
        await self._connection.execute(select(graphs.c.id).where(graphs.c.id == graph).with_for_update())
        await self._hand_over(graph)
        mine = update(command).where(command.c.graph == graph)
        gone = and_(UNFINISHED, command.c.part_of.is_(None), command.c.mutation.is_not(None), not_(command.c.stops))
        last = select(graphs.c.committed).where(graphs.c.id == DATABASE_GRAPH).scalar_subquery()
        refused = mine.where(gone).values(error="the job is no longer being created")
        await self._connection.execute(refused)
        await self._connection.execute(mine.where(UNFINISHED).values(done=True, epoch=last))
        await self._connection.execute(mine.values(graph=DATABASE_GRAPH))
        # A job that ended before its graph belongs to the database graph from now on, as every other job.
        left = update(job_table).where(job_table.c.graph == graph)
        await self._connection.execute(left.values(graph=DATABASE_GRAPH))
        await self._connection.execute(delete(barrier).where(barrier.c.graph == graph))
        await self._connection.execute(delete(snapshot_backfill).where(snapshot_backfill.c.graph == graph))
        await self._connection.execute(delete(graphs).where(graphs.c.id == graph))

    async def _set(self, graph: GraphId, **values: Any) -> None:
        changed = update(snapshot_backfill).where(snapshot_backfill.c.graph == graph)
        await self._connection.execute(changed.values(values))

    async def _hand_over(self, graph: GraphId) -> None:
        """Raise the database graph's newest epoch to this graph's, so that its later writes have newer epochs."""
        newest = select(graphs.c.newest).where(graphs.c.id == graph).scalar_subquery()
        reached = update(graphs).where(graphs.c.id == DATABASE_GRAPH)
        await self._connection.execute(reached.values(newest=func.greatest(graphs.c.newest, newest)))


_CREATING: Final = snapshot_backfill.join(
    job_table,
    and_(job_table.c.id == snapshot_backfill.c.job, job_table.c.state.in_(HOLDS_PERMIT)),
)
_SNAPSHOTS: Final[Select[*tuple[Any, ...]]] = select(
    snapshot_backfill.c.job,
    snapshot_backfill.c.graph,
    job_table.c.snapshot_epoch,
    snapshot_backfill.c.consumed,
    snapshot_backfill.c.indexed,
    snapshot_backfill.c.merged,
).join(job_table, job_table.c.id == snapshot_backfill.c.job)


def _snapshot(row: Row[*tuple[Any, ...]]) -> Snapshot:
    return Snapshot(
        job=JobId(row.job),
        graph=GraphId(row.graph),
        epoch=Epoch(row.snapshot_epoch),
        consumed=None if row.consumed is None else Epoch(row.consumed),
        indexed=row.indexed,
        merged=row.merged,
    )
