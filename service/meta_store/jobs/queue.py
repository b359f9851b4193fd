"""Summarize the job queue: whether a new or a queued job exists, and the number of permits in use.

Every tick of the database graph reads this, so its cost must not depend on the length of the queue.
"""

from typing import Any, Final

from sqlalchemy import Row, func, select

from service.domain.barrier import Line
from service.domain.job import HOLDS_PERMIT, JobState
from service.meta_store.schema.core import job, relation
from service.protocol.relation import RelationKind

# The first row by index. With EXISTS the planner would rather read the table.
_NEW, _QUEUED = (
    select(job.c.id).where(job.c.state == state).order_by(job.c.id).limit(1).correlate(None).scalar_subquery()
    for state in (JobState.INITIAL, JobState.QUEUED)
)
_HELD: Final = (
    select(func.count())
    .select_from(job.join(relation, relation.c.id == job.c.relation))
    .where(job.c.state.in_(HOLDS_PERMIT), relation.c.kind != RelationKind.TABLE)
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
