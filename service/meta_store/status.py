"""Read what only status pages show."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, Row, and_, cast, func, not_, select, true
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH

from service.domain.adaptive import Adaptation
from service.domain.job import Job, JobState
from service.meta_store.documents import among
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.jobs import JOBS, job_of_row
from service.meta_store.jobs.plans import read_positions
from service.meta_store.schema.core import ENGINE_WORK, actor, backfill_position, fragment, relation, scan_progress
from service.meta_store.schema.core import job as job_table
from service.meta_store.schema.limits import adaptive_limit, limit_change
from service.ports.status import AutoLimit, EngineWork, LimitChange, PositionsByState, Signalled
from service.protocol.ids import ActorId, Epoch, FragmentId, JobId, Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import RelationKind
from service.protocol.stage import Engine


class Status(OnConnection):
    """Queries of the status pages."""

    async def jobs(self, states: Collection[JobState] | None, *, after: int, limit: int) -> Sequence[Job]:
        """Return the oldest jobs in these states (None: all) with ids above `after`."""
        found = JOBS.where(job_table.c.id > after).order_by(job_table.c.id).limit(limit)
        found = found if states is None else found.where(job_table.c.state.in_(states))
        return [job_of_row(row) for row in (await self._connection.execute(found)).all()]

    async def adaptive_limits(self, jobs: Collection[JobId]) -> Mapping[FragmentId, AutoLimit]:
        """Return the state of the adaptive limits of these jobs' scans."""
        found = (
            select(fragment.c.id, adaptive_limit)
            .outerjoin(adaptive_limit, adaptive_limit.c.fragment == fragment.c.id)
            .where(among(fragment.c.job, jobs), fragment.c.auto)
        )
        return {FragmentId(row.id): _shown(row) for row in await self._connection.execute(found)}

    async def limit_changes(self, job: JobId, *, limit: int, before: int | None = None) -> Sequence[LimitChange]:
        """Return the changes with ids below `before` of the limits of a job's scans, newest first."""
        scans = select(fragment.c.id).where(fragment.c.job == job).scalar_subquery()
        found = select(limit_change).where(limit_change.c.fragment.in_(scans))
        if before is not None:
            found = found.where(limit_change.c.id < before)
        rows = await self._connection.execute(found.order_by(limit_change.c.id.desc()).limit(limit))
        return [_limit_change(row) for row in rows]

    async def backfill_order(self, job: JobId) -> Sequence[tuple[str, str]]:
        """Return the backfill order of a job as edges (before, after) of relation names."""
        edges = (
            await self._connection.execute(select(job_table.c.backfill_order).where(job_table.c.id == job))
        ).scalar() or []
        found = select(relation.c.id, relation.c.name).where(
            among(relation.c.id, {one for edge in edges for one in edge})
        )
        names = {row.id: row.name for row in await self._connection.execute(found)}
        return [(names[before], names[after]) for before, after in edges]

    async def positions(
        self, fragment: FragmentId, vnodes: Collection[int] | None = None
    ) -> Mapping[Vnode, VnodePosition]:
        """Return positions of a scan, even of a finished one: all, or those of some vnodes. A vnode without a position
        has not started.
        """
        return (await read_positions(self._connection, [fragment], vnodes)).get(fragment, {})

    async def position_counts(self, fragments: Collection[FragmentId]) -> Mapping[ActorId, PositionsByState]:
        """Count the vnodes of actors by the state of their positions. An actor without a position is absent."""
        run = func.jsonb_array_elements(actor.c.runs).table_valued(Column("ends", JSONB), name="run").render_derived()
        first, last = (run.c.ends[place].astext.cast(Integer) for place in (0, 1))
        mine = and_(backfill_position.c.fragment == actor.c.fragment, backfill_position.c.vnode.between(first, last))
        found = (
            select(
                actor.c.id,
                *(
                    func.count().filter(backfill_position.c.state == state)
                    for state in (PositionState.IN_PROGRESS, PositionState.COMPLETED)
                ),
                func.sum(backfill_position.c.rows).cast(BigInteger),
            )
            .select_from(actor.join(run, true()).join(backfill_position, mine))
            .where(among(actor.c.fragment, fragments))
            .group_by(actor.c.id)
        )
        return {ActorId(one): PositionsByState(*counts) for one, *counts in await self._connection.execute(found)}

    async def unfinished_actors(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ActorId]]:
        """Return the unfinished actors of each job, in order of id. Every given job is in the result."""
        mine = select(fragment.c.job, actor.c.id).join(fragment, fragment.c.id == actor.c.fragment)
        left = mine.where(among(fragment.c.job, jobs), not_(actor.c.finished)).order_by(actor.c.id)
        found: dict[JobId, list[ActorId]] = {one: [] for one in jobs}
        for row in await self._connection.execute(left):
            found[JobId(row.job)].append(ActorId(row.id))
        return found

    async def engine_work(self, jobs: Collection[JobId]) -> Mapping[JobId, Mapping[Engine, EngineWork]]:
        """Return what each engine has done for each job. Every given job is in the result, with both engines."""
        counts = [func.coalesce(func.sum(scan_progress.c[name]), 0).cast(BigInteger) for name in ENGINE_WORK]
        mine = select(fragment.c.job, *counts).join(fragment, fragment.c.id == scan_progress.c.fragment)
        found = {one: _work((0, 0, 0, 0)) for one in jobs}
        for job, *work in await self._connection.execute(
            mine.where(among(fragment.c.job, jobs)).group_by(fragment.c.job)
        ):
            found[JobId(job)] = _work(work)
        return found

    async def lookups(self, jobs: Collection[JobId]) -> Mapping[FragmentId, Sequence[str]]:
        """Return the relations that the stages of these jobs look up, once for each occurrence, in their order.

        They are all inputs of a stage but the first, which is its driver. Hidden relations are not among them. A stage
        that looks nothing up is absent.
        """
        inputs = func.jsonb_path_query(fragment.c.query, cast("$.joins[*].inputs[*].relation", JSONPATH))
        each = inputs.table_valued("id", with_ordinality="place", name="input").render_derived()
        looked_up = cast(each.c.id, BigInteger)
        found = (
            select(fragment.c.id, relation.c.name)
            .select_from(fragment.join(each, true()).join(relation, relation.c.id == looked_up))
            .join(scan_progress, scan_progress.c.fragment == fragment.c.id)
            .where(among(fragment.c.job, jobs), each.c.place > 1, relation.c.kind != RelationKind.INTERNAL)
            .order_by(fragment.c.id, each.c.place)
        )
        names: dict[FragmentId, list[str]] = defaultdict(list)
        for row in await self._connection.execute(found):
            names[FragmentId(row.id)].append(row.name)
        return names


def _work(counts: Sequence[int]) -> Mapping[Engine, EngineWork]:
    spark_jobs, spark_rows, store_jobs, store_rows = counts
    return {Engine.SPARK: EngineWork(spark_jobs, spark_rows), Engine.STORE: EngineWork(store_jobs, store_rows)}


def _shown(row: Row[*tuple[Any, ...]]) -> AutoLimit:
    state = None if row.present is None else Adaptation(row.present, row.threshold)
    return AutoLimit(
        phase="slow start" if state is None or state.doubling else "even steps",
        move=row.move,
        signal=row.signal,
        reason=row.reason,
        looked_at=row.looked_at,
        effective_epoch=str(row.since) if row.since else None,
        readings=tuple(Signalled(**one) for one in row.readings or ()),
    )


def _limit_change(row: Row[*tuple[Any, ...]]) -> LimitChange:
    return LimitChange(
        id=row.id,
        fragment=FragmentId(row.fragment),
        at=row.at,
        epoch=None if row.epoch is None else Epoch(row.epoch),
        before=row.before,
        after=row.after,
        signal=row.signal,
        reason=row.reason,
    )
