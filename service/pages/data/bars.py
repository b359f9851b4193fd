"""The bar of a job or a scan: a number between 0 and 100 where it is known, and always a text."""

from dataclasses import dataclass

from service.domain.progress import Phase
from service.domain.waiting import Reason
from service.domain.words import span, speed
from service.operations.status.models import JobView
from service.pages.words import number


@dataclass(frozen=True, slots=True)
class Bar:
    """The rows that were read, of how many. `percent` is None if the total is unknown."""

    percent: float | None
    text: str


def bar(rows: int, total: int | None, percent: float | None) -> Bar:
    """Return the bar of `rows` read rows."""
    if total is None:
        return Bar(None, f"{rows:,} rows of an unknown number")
    # None of 0 rows is no unknown share: a bar without a number moves as if something were read.
    known = min(rows / max(total, 1) * 100, 100.0) if percent is None else percent
    return Bar(known, f"{known:.1f} %: {rows:,} of {number(total)} rows")


def reads_history(job: JobView) -> bool:
    """Return whether a job reads history, or will."""
    return job.progress.phase not in {Phase.CREATED, Phase.STOPPED}


def job_bar(job: JobView) -> Bar | None:
    """Return the bar of a job; None if it reads no history now."""
    one = job.progress
    return bar(one.rows, one.total, one.percent) if reads_history(job) else None


def held_up(job: JobView) -> bool:
    """Return whether a job waits for something else than its limit or its order, so that none of its scans reads."""
    return job.waiting is not None and job.waiting.reason not in {Reason.LIMIT, Reason.ORDER}


def moving(job: JobView) -> tuple[str, str]:
    """Return the speed and the time left of a job, empty unless it reads history now."""
    one = job.progress
    if one.phase is not Phase.BACKFILLING or held_up(job):
        return "", ""
    return speed(one.rows_per_second), span(one.eta_seconds)
