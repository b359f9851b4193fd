"""Store the actors of scans, and the parallelism that is set for their jobs."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import delete, func, insert, select

from service.meta_store.documents import among
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.plans import read_actors, runs_of_row
from service.meta_store.schema.core import SCHEMA, actor, backfill_position, fragment, scan_progress
from service.protocol.ids import ActorId, FragmentId, JobId
from service.protocol.plan import SCANS, ActorPlan
from service.protocol.vnodes import Runs, vnodes_of


class PostgresActors(OnConnection):
    """See `service.ports.actors.Actors`."""

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
