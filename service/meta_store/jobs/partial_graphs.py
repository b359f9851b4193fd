"""Create, merge and retire the partial graphs of snapshot jobs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import and_, delete, func, insert, not_, select, update

from service.domain.graph import GraphStatus
from service.domain.job import JobState
from service.meta_store.documents import among
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.snapshots import PostgresSnapshots
from service.meta_store.schema.core import (
    GRAPH_ID,
    UNFINISHED,
    barrier,
    command,
    fragment,
    relation,
    scan_progress,
    snapshot_backfill,
)
from service.meta_store.schema.core import graph as graphs
from service.meta_store.schema.core import job as job_table
from service.ports.snapshots import Snapshot
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, JobId
from service.protocol.plan import ScanType
from service.protocol.relation import RelationKind

_PAUSE: Final = (graphs.c.paused, graphs.c.paused_since, graphs.c.paused_by)


class PostgresPartialGraphs(OnConnection):
    """See `service.ports.snapshots.PartialGraphs`."""

    async def begin(self, job: JobId, *, indexed: bool) -> Snapshot:
        """Lock the database graph's row, so that no barrier commits and no Pause is queued before this transaction."""
        held = select(*_PAUSE).where(graphs.c.id == DATABASE_GRAPH).with_for_update()
        pause = (await self._connection.execute(held)).mappings().one()
        kind = command.c.mutation["type"].astext
        asked = (
            select(kind)
            .where(command.c.graph == DATABASE_GRAPH, UNFINISHED, kind.in_(("pause", "resume")))
            .order_by(command.c.id.desc())
            .limit(1)
        )
        last = (await self._connection.execute(asked)).scalar()
        # The job's inputs may be in graphs of their own, which have come less far.
        readable = await PostgresSnapshots(self._connection).readable(job)
        state = {**pause, "paused": pause["paused"] if last is None else last == "pause"}
        graph, stays = await self._add(job, state, readable, indexed=indexed)
        return Snapshot(job, graph, readable, indexed=indexed, stays=stays)

    async def _add(
        self, job: JobId, state: Mapping[Any, Any], epoch: Epoch, *, indexed: bool, consumed: Epoch | None = None
    ) -> tuple[GraphId, bool]:
        """Move a job into a new graph, and return the graph and whether the job stays there. `epoch` is pinned."""
        graph = GraphId((await self._connection.execute(select(GRAPH_ID.next_value()))).scalar_one())
        await self._connection.execute(insert(graphs).values(id=graph, status=GraphStatus.RECOVERING, **state))
        pinned = update(job_table).where(job_table.c.id == job).values(graph=graph, snapshot_epoch=epoch)
        stays = (await self._connection.execute(pinned.returning(job_table.c.own_graph))).scalar_one() is not None
        backfill = insert(snapshot_backfill).values(job=job, graph=graph, indexed=indexed, consumed=consumed)
        await self._connection.execute(backfill)
        return graph, stays

    async def pin_totals(self, job: JobId) -> None:
        scans = update(scan_progress).where(
            scan_progress.c.fragment == fragment.c.id,
            fragment.c.job == job,
            fragment.c.scan_type == ScanType.SNAPSHOT_BACKFILL,
            relation.c.id == fragment.c.upstream,
            relation.c.kind != RelationKind.INTERNAL,
        )
        await self._connection.execute(scans.values(total=relation.c.key_count))

    async def all(self) -> Sequence[GraphId]:
        others = select(graphs.c.id).where(graphs.c.id != DATABASE_GRAPH).order_by(graphs.c.id)
        return [GraphId(one) for one in (await self._connection.execute(others)).scalars()]

    async def unmerged(self) -> Sequence[GraphId]:
        columns = snapshot_backfill.c
        running = select(columns.graph).where(not_(columns.merged)).order_by(columns.graph)
        return [GraphId(one) for one in (await self._connection.execute(running.with_for_update(read=True))).scalars()]

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, GraphId]:
        """Return the graphs and lock the jobs with FOR KEY SHARE, which does not block commits that store progress.

        A transaction that moves a job to another graph or state locks it FOR UPDATE first.
        """
        columns = job_table.c
        held = select(columns.id, columns.graph).where(among(columns.id, jobs)).order_by(columns.id)
        rows = await self._connection.execute(held.with_for_update(read=True, key_share=True))
        return {JobId(row.id): GraphId(row.graph) for row in rows}

    async def merge(self, graph: GraphId) -> None:
        merged = update(snapshot_backfill).where(snapshot_backfill.c.graph == graph)
        await self._connection.execute(merged.values(merged=True))
        moved = update(job_table).where(job_table.c.graph == graph)
        await self._connection.execute(moved.values(graph=DATABASE_GRAPH))
        await self._connection.execute(select(graphs.c.id).where(graphs.c.id == graph).with_for_update(key_share=True))
        await self._hand_over(graph)
        waiting = update(command).where(command.c.graph == graph, UNFINISHED)
        await self._connection.execute(waiting.values(graph=DATABASE_GRAPH))

    async def leave(self) -> None:
        created = and_(job_table.c.graph == DATABASE_GRAPH, job_table.c.state == JobState.CREATED)
        leaving = select(job_table.c.id).where(created, job_table.c.own_graph.is_not(None))
        jobs = (await self._connection.execute(leaving.order_by(job_table.c.id).with_for_update())).scalars().all()
        if not jobs:
            return
        columns = (graphs.c.committed, graphs.c.published, graphs.c.newest, *_PAUSE)
        present = select(*columns).where(graphs.c.id == DATABASE_GRAPH).with_for_update(key_share=True)
        state = (await self._connection.execute(present)).mappings().one()
        for job in jobs:
            await self._add(JobId(job), state, state["committed"], indexed=True, consumed=state["committed"])

    async def retire(self, graph: GraphId) -> None:
        """Lock the job and its graph before the database graph, as every transaction does that locks several."""
        its_job = select(job_table.c.id).where(job_table.c.graph == graph).order_by(job_table.c.id)
        await self._connection.execute(its_job.with_for_update())
        await self._connection.execute(delete(snapshot_backfill).where(snapshot_backfill.c.graph == graph))
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
        await self._connection.execute(delete(graphs).where(graphs.c.id == graph))

    async def _hand_over(self, graph: GraphId) -> None:
        """Raise the database graph's newest epoch to this graph's, so that its later writes have newer epochs."""
        newest = select(graphs.c.newest).where(graphs.c.id == graph).scalar_subquery()
        reached = update(graphs).where(graphs.c.id == DATABASE_GRAPH)
        await self._connection.execute(reached.values(newest=func.greatest(graphs.c.newest, newest)))
