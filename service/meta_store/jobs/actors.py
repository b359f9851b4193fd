"""Store the actors of scans, and the parallelism that is set for their jobs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import and_, bindparam, delete, func, insert, not_, select, union, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.job import CREATING, Job, JobState
from service.domain.parallelism import Parallelism
from service.meta_store.documents import among
from service.meta_store.jobs.jobs import JOBS, job_of_row, parallelism_text
from service.meta_store.jobs.plans import read_actors, runs_of_row
from service.meta_store.schema.core import RESCALE_DUE, SCHEMA, actor, backfill_position, fragment, scan_progress
from service.meta_store.schema.core import job as job_table
from service.protocol.ids import ActorId, FragmentId, GraphId, JobId
from service.protocol.plan import SCANS, ActorPlan, ScanType
from service.protocol.vnodes import Runs, vnodes_of


class PostgresActors:
    """See `service.ports.actors.Actors`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def hold(self, job: JobId) -> Job | None:
        held = JOBS.where(job_table.c.id == job).with_for_update(of=job_table)
        row = (await self._connection.execute(held)).first()
        return None if row is None else job_of_row(row)

    async def set_parallelism(self, job: JobId, parallelism: Parallelism | None, backfill: Parallelism | None) -> None:
        values = {
            "parallelism": parallelism_text(parallelism),
            "backfill_parallelism": parallelism_text(backfill),
            "rescale_due": True,
        }
        await self._connection.execute(update(job_table).where(job_table.c.id == job).values(values))

    async def due(self, graph: GraphId) -> Sequence[Job]:
        """Skip jobs whose rows another transaction has locked. The next tick of the leader sees them."""
        rows = await self._connection.execute(_DUE, {"of_graph": graph})
        return [job_of_row(row) for row in rows]

    async def settled(self, jobs: Collection[JobId]) -> None:
        done = update(job_table).where(among(job_table.c.id, jobs), RESCALE_DUE)
        await self._connection.execute(done.values(rescale_due=False))

    async def all_due(self, graph: GraphId) -> None:
        running = job_table.c.state.in_((JobState.CREATING, JobState.CREATED))
        asked = and_(job_table.c.graph == graph, running, job_table.c.parallelism.is_not(None))
        await self._connection.execute(update(job_table).where(asked).values(rescale_due=True))

    async def layouts(self, jobs: Collection[JobId]) -> Mapping[JobId, Mapping[FragmentId, Sequence[Runs]]]:
        columns = fragment.c
        scans = select(columns.id, columns.job).where(among(columns.job, jobs))
        scans = scans.where(columns.kind.in_(SCANS)).order_by(columns.id)
        owners = {row.id: row.job for row in await self._connection.execute(scans)}
        actors = await read_actors(self._connection, owners.keys())
        layouts: dict[JobId, dict[FragmentId, Sequence[Runs]]] = {one: {} for one in jobs}
        for scan, owner in owners.items():
            layouts[JobId(owner)][FragmentId(scan)] = [runs_of_row(row) for row in actors[scan]]
        return layouts

    async def tied(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[Job]]:
        maker, scan = job_table.alias(), fragment.c
        itself = select(scan.job.label("tied"), scan.job.label("one"))
        readers = select(scan.job, maker.c.id).join(maker, maker.c.relation == scan.upstream)
        pairs = union(
            itself.where(scan.scan_type == ScanType.BACKFILL, among(scan.job, jobs)),
            readers.where(scan.scan_type == ScanType.BACKFILL, among(maker.c.id, jobs)),
        ).subquery()
        alive = job_table.c.state.in_(CREATING | {JobState.CREATED})
        found = JOBS.add_columns(pairs.c.one).join(pairs, pairs.c.tied == job_table.c.id).where(alive)
        tied: dict[JobId, list[Job]] = {one: [] for one in jobs}
        for row in await self._connection.execute(found.order_by(job_table.c.id)):
            tied[JobId(row.one)].append(job_of_row(row))
        return tied

    async def unfinished(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ActorId]]:
        """In order of id."""
        mine = select(fragment.c.job, actor.c.id).join(fragment, fragment.c.id == actor.c.fragment)
        left = mine.where(among(fragment.c.job, jobs), not_(actor.c.finished)).order_by(actor.c.id)
        found: dict[JobId, list[ActorId]] = {one: [] for one in jobs}
        for row in await self._connection.execute(left):
            found[JobId(row.job)].append(ActorId(row.id))
        return found

    async def reserve(self, number: int) -> Sequence[ActorId]:
        sequence = func.pg_get_serial_sequence(f"{SCHEMA}.{actor.name}", "id")
        taken = select(func.nextval(sequence)).select_from(func.generate_series(1, number).alias("one"))
        return [ActorId(one) for one in (await self._connection.execute(taken)).scalars()]

    async def replace(self, fragments: Mapping[FragmentId, Sequence[ActorPlan]]) -> None:
        columns = scan_progress.c
        found = select(columns.fragment, columns.finished).where(among(columns.fragment, fragments))
        finished = {FragmentId(row.fragment): row.finished for row in await self._connection.execute(found)}
        if not finished:
            return
        rows = await self._rows(finished)
        await self._connection.execute(delete(actor).where(among(actor.c.fragment, finished)))
        new = [
            {
                "id": plan.id,
                "fragment": one,
                "runs": plan.vnodes,
                "rows": sum(rows.get((one, vnode), 0) for vnode in vnodes_of(plan.vnodes)),
                "finished": done,
            }
            for one, done in finished.items()
            for plan in fragments[one]
        ]
        await self._connection.execute(insert(actor), new)

    async def _rows(self, fragments: Collection[FragmentId]) -> Mapping[tuple[FragmentId, int], int]:
        columns = backfill_position.c
        found = select(columns.fragment, columns.vnode, columns.rows).where(among(columns.fragment, fragments))
        return {(row.fragment, row.vnode): row.rows for row in await self._connection.execute(found)}


_DUE: Final = (
    JOBS.where(job_table.c.graph == bindparam("of_graph"), RESCALE_DUE)
    .order_by(job_table.c.id)
    .with_for_update(of=job_table, skip_locked=True)
)
"""Built once, because every commit runs it."""
