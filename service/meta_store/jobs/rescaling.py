"""Store the parallelism that jobs request, and which jobs are due for it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import and_, bindparam, select, union, update

from service.domain.job import CREATING, Job, JobState
from service.domain.parallelism import Parallelism
from service.meta_store.documents import among
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.jobs import JOBS, job_of_row, parallelism_text
from service.meta_store.schema.core import RESCALE_DUE, fragment
from service.meta_store.schema.core import job as job_table
from service.protocol.ids import GraphId, JobId
from service.protocol.plan import ScanType


class PostgresRescaling(OnConnection):
    """See `service.ports.actors.Rescaling`."""

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
        held = select(job_table.c.id).where(asked).order_by(job_table.c.id).with_for_update(key_share=True).cte("held")
        await self._connection.execute(update(job_table).where(job_table.c.id == held.c.id).values(rescale_due=True))

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


_DUE: Final = (
    JOBS.where(job_table.c.graph == bindparam("of_graph"), RESCALE_DUE)
    .order_by(job_table.c.id)
    .with_for_update(of=job_table, skip_locked=True)
)
"""Built once, because every commit runs it."""
