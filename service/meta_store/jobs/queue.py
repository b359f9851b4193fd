"""Summarize the job queue: whether a new or a queued job exists, and the number of permits in use.

Every tick of the database graph reads this, so its cost must not depend on the length of the queue.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Row, Text, and_, cast, func, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY, insert

from service.domain.fair_queue import Queued, Share
from service.domain.graph import Line
from service.domain.job import HOLDS_PERMIT, TERMINAL, Job, JobState
from service.domain.slow_views import SlowView
from service.meta_store.documents import among, printable
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.jobs import JOBS, job_of_row
from service.meta_store.schema.core import job as job_table
from service.meta_store.schema.core import relation
from service.meta_store.schema.limits import slow_view
from service.protocol.ids import JobId
from service.protocol.relation import RelationKind

_JOBS: Final = job_table.join(relation, relation.c.id == job_table.c.relation)
# The first row by index. With EXISTS the planner would rather read the table.
_NEW, _QUEUED = (
    select(job_table.c.id)
    .where(job_table.c.state == state)
    .order_by(job_table.c.id)
    .limit(1)
    .correlate(None)
    .scalar_subquery()
    for state in (JobState.INITIAL, JobState.QUEUED)
)
_HELD: Final = (
    select(func.count())
    .select_from(_JOBS)
    .where(job_table.c.state.in_(HOLDS_PERMIT), relation.c.kind != RelationKind.TABLE)
    .correlate(None)
    .scalar_subquery()
)
_UNFINISHED: Final = {JobState.INITIAL, JobState.QUEUED} | HOLDS_PERMIT
_TENANT_LOCK: Final = 0x74656E61
"""The first key of the advisory locks of tenants, "tena". Two tenants with one hash merely wait for each other."""
LINE: Final = (
    _NEW.is_not(None).label("new_jobs"),
    _QUEUED.is_not(None).label("queued_jobs"),
    _HELD.label("permits_held"),
)


def line_of(row: Row[*tuple[Any, ...]]) -> Line:
    """Return the queue summary of a row with the columns `LINE`."""
    return Line(new=row.new_jobs, queued=row.queued_jobs, held=row.permits_held)


class PostgresJobQueue(OnConnection):
    """See `service.ports.jobs.JobQueue`."""

    async def line(self) -> Line:
        return line_of((await self._connection.execute(select(*LINE))).one())

    async def waiting(self) -> Sequence[Queued]:
        queued = select(job_table.c.id, job_table.c.created_by).where(job_table.c.state == JobState.QUEUED)
        rows = await self._connection.execute(queued.order_by(job_table.c.id))
        return [Queued(JobId(id_), tenant) for id_, tenant in rows]

    async def shares(self, tenants: Collection[str]) -> Mapping[str, Share]:
        if not tenants:
            return {}
        tenant = func.unnest(cast(literal(sorted(set(tenants)), ARRAY(Text)), ARRAY(Text))).column_valued("tenant")
        its = select().select_from(_JOBS).where(job_table.c.created_by == tenant, relation.c.kind != RelationKind.TABLE)
        held = its.add_columns(func.count()).where(job_table.c.state.in_(HOLDS_PERMIT))
        # By the index, because a tenant may have started any number of jobs.
        last = (
            its.add_columns(job_table.c.started_at)
            .where(job_table.c.started_at.is_not(None))
            .order_by(job_table.c.started_at.desc())
            .limit(1)
        )
        shares = select(tenant, held.scalar_subquery(), last.scalar_subquery())
        return {of: Share(count, at) for of, count, at in await self._connection.execute(shares)}

    async def unfinished_of(self, tenant: str) -> Sequence[Job]:
        await self._connection.execute(select(func.pg_advisory_xact_lock(_TENANT_LOCK, func.hashtext(tenant))))
        found = JOBS.where(job_table.c.state.in_(_UNFINISHED), job_table.c.created_by == tenant)
        found = found.where(relation.c.kind != RelationKind.TABLE).order_by(job_table.c.id)
        return [job_of_row(row) for row in await self._connection.execute(found)]

    async def plan_bytes(self) -> Mapping[str, int]:
        found = select(job_table.c.created_by, cast(func.sum(job_table.c.plan_bytes), BigInteger).label("bytes"))
        found = found.where(job_table.c.state.not_in(TERMINAL)).group_by(job_table.c.created_by)
        return {row.created_by: row.bytes for row in await self._connection.execute(found)}

    async def too_slow(self, jobs: Collection[JobId], *, now: datetime) -> None:
        if not jobs:
            return
        its = select(job_table.c.created_by, func.max(relation.c.name), literal(now)).select_from(_JOBS)
        its = its.where(among(job_table.c.id, jobs)).group_by(job_table.c.created_by).order_by(job_table.c.created_by)
        new = insert(slow_view).from_select(["caller", "name", "at"], its)
        last = {"name": new.excluded.name, "at": new.excluded.at}
        await self._connection.execute(new.on_conflict_do_update(index_elements=["caller"], set_=last))

    async def slow_view(self, tenant: str) -> SlowView | None:
        found = select(slow_view.c.name, slow_view.c.at).where(slow_view.c.caller == tenant)
        row = (await self._connection.execute(found)).first()
        return None if row is None else SlowView(row.name, row.at)

    async def prepare(self, job: JobId, text: str | None) -> None:
        shown = None if text is None else printable(text)
        differs = and_(job_table.c.id == job, job_table.c.preparing.is_distinct_from(shown))
        await self._connection.execute(update(job_table).where(differs).values(preparing=shown))
