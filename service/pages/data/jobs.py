"""The list of jobs. Next: `service.pages.data.job`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from service.domain.errors import Invalid
from service.domain.job import CREATING, JobState
from service.domain.progress import Phase
from service.operations.status import listing
from service.operations.status.models import Broken, JobView
from service.operations.status.setbacks import setbacks
from service.pages.asking import Ask
from service.pages.data.bars import Bar, job_bar, moving
from service.pages.words import ago

PAGE_SIZE: Final = 200
_GONE: Final = frozenset({JobState.DROPPED, JobState.CANCELLED})
FILTERS: Final[Mapping[str, Sequence[JobState]]] = MappingProxyType(
    {
        "present": tuple(one for one in JobState if one not in _GONE),
        "unfinished": (*sorted(CREATING), JobState.CANCELLING),
        **{str(one): (one,) for one in JobState},
        "all": tuple(JobState),
    }
)
"""The states of the jobs that each filter shows. `present` leaves out what was dropped or cancelled."""
DEFAULT: Final = "present"


@dataclass(slots=True)
class Row:
    """A job of the list. `why` is why it waits, failed or is not kept current; `since` for how long it has done so.
    `fault` is the state of a relation that is not kept current in one word, such as `broken`.
    """

    id: int
    name: str
    kind: str
    state: str
    fault: str
    bar: Bar | None
    text: str
    speed: str
    eta: str
    why: str
    since: str


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a filter. `after` is the cursor of the next page, None on the last one."""

    rows: tuple[Row, ...]
    filter: str
    filters: tuple[str, ...]
    after: str | None
    moves: bool


async def read(ask: Ask) -> Jobs:
    """Read one page of jobs, of `PAGE_SIZE` or as many as `limit` says."""
    chosen = ask.text("state") or DEFAULT
    if chosen not in FILTERS:
        raise Invalid(f'state: "{chosen[:30]}" is no state of a job', pointer="state")
    limit = max(1, min(ask.number("limit") or PAGE_SIZE, 1000))
    page = await listing.jobs(ask.world, FILTERS[chosen], after=ask.number("after") or 0, limit=limit)
    stuck = await setbacks(ask.world, page.items)
    rows = tuple(row(job, ask.now, stuck.get(job.id)) for job in page.items)
    return Jobs(rows, chosen, tuple(FILTERS), page.next, moves=any(one.bar is not None for one in rows))


def row(job: JobView, now: datetime, stuck: str | None = None) -> Row:
    """Return a job as a row. `stuck` is why the graph of a created job fails again and again."""
    speed, eta = moving(job)
    why, since = why_of(job, stuck)
    return Row(
        id=job.id,
        name=job.name,
        kind=job.kind,
        state=job.state,
        fault=not_current(job.state, job.broken),
        bar=job_bar(job),
        text="100 %" if job.progress.phase is Phase.CREATED else "",
        speed=speed,
        eta=eta,
        why=why,
        since=ago(since, now),
    )


def not_current(state: JobState | None, broken: Broken | None) -> str:
    """Return in one word that a relation is not kept current. Empty if it is, or if the state of its job says so."""
    return "" if broken is None or state is JobState.FAILED else broken.state


def why_of(job: JobView, stuck: str | None = None) -> tuple[str, datetime | None]:
    """Return why a job makes no progress or its relation is not kept current, and since when. Empty if neither."""
    if job.error is not None:
        return job.error, job.finished_at or job.state_since
    if job.broken is not None:
        return job.broken.reason, job.broken.since
    if job.waiting is not None:
        return job.waiting.text, job.waiting.since
    return stuck or job.progress.waiting_for or "", None
