"""Summarize the job queue: whether a new or a queued job exists, and the number of permits in use.

Every tick of the database graph reads this, so its cost must not depend on the length of the queue.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, and_, func, select, update

from service.domain.barrier import Line
from service.domain.job import HOLDS_PERMIT, JobState
from service.meta_store.documents import printable
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import job as job_table
from service.meta_store.schema.core import relation
from service.protocol.ids import JobId
from service.protocol.relation import RelationKind

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
    .select_from(job_table.join(relation, relation.c.id == job_table.c.relation))
    .where(job_table.c.state.in_(HOLDS_PERMIT), relation.c.kind != RelationKind.TABLE)
    .correlate(None)
    .scalar_subquery()
)
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

    async def waiting(self) -> Sequence[JobId]:
        queued = select(job_table.c.id).where(job_table.c.state == JobState.QUEUED).order_by(job_table.c.id)
        return [JobId(one) for one in (await self._connection.execute(queued)).scalars()]

    async def prepare(self, job: JobId, text: str) -> None:
        differs = and_(job_table.c.id == job, job_table.c.preparing.is_distinct_from(printable(text)))
        await self._connection.execute(update(job_table).where(differs).values(preparing=printable(text)))
