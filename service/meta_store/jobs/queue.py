"""Who waits for a start, and how many hold a permit: asked at every look at the database graph, however long the queue
is.
"""

from typing import Any, Final

from sqlalchemy import Row, func, select

from service.domain.barrier import Line
from service.domain.job import HOLDS_PERMIT, JobState
from service.meta_store.schema.core import job, relation
from service.protocol.relation import RelationKind

# The first of many, for which the server would rather read the table if it were asked whether there is any.
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
    """Return what `LINE` has found."""
    return Line(new=row.new_jobs, queued=row.queued_jobs, held=row.permits_held)
