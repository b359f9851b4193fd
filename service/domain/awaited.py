"""Decide when the wait for a job is over, from the state that waiting callers see. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.errors import Conflict, Refused
from service.domain.job import CREATING, Job, JobState
from service.domain.progress import ScanProgress, follows_unread
from service.protocol.ids import Generation


@dataclass(frozen=True, slots=True)
class Recovered:
    """The last recovery of the database graph: the generation it began, its reason, and whether a job caused it."""

    generation: Generation
    reason: str
    blamed: bool


@dataclass(frozen=True, slots=True)
class Awaited:
    """A job with its scans and the last recovery of the database graph, all read in one transaction."""

    job: Job
    scans: Sequence[ScanProgress]
    recovered: Recovered


def is_settled(job: Job) -> bool:
    """Whether the job is created and its relation readable.

    Raises Refused if the job failed, and Conflict if it was cancelled or its public view cannot be made.
    """
    match job.state:
        case JobState.FAILED:
            raise Refused(f"{job.kind} {job.name} could not be created: {job.error}")
        case JobState.CANCELLING | JobState.CANCELLED | JobState.DROPPING | JobState.DROPPED:
            why = "" if job.error is None else f": {job.error}"
            raise Conflict(f"the creation of {job.kind} {job.name} was cancelled{why}")
        case JobState.CREATED:
            return is_readable(job)
        case _:
            return False


def is_readable(job: Job) -> bool:
    """Whether the relation of a created job can be read. Raises Conflict if its public view cannot be made."""
    if not job.published and job.held_back is not None:
        raise Conflict(
            f"{job.kind} {job.name} is built and kept current, but its view cannot be made: {job.held_back}."
            " It appears once that is mended"
        )
    return job.published


def is_begun(job: Job) -> bool:
    """Whether the job has started, or waits: in the queue, or for what comes before its start.

    Raises the errors of `is_settled`.
    """
    if job.state in {JobState.QUEUED, JobState.CREATING, JobState.CREATED}:
        return True
    return is_settled(job) or job.preparing is not None


def is_over(seen: Awaited) -> bool:
    """Whether the job has ended, or is created and readable with its whole history read.

    Raises Conflict if its history is no longer read, or if its public view cannot be made.
    """
    job = seen.job
    if job.state is not JobState.CREATED:
        return job.state not in CREATING
    if follows_unread(seen.scans) and (stopped := next((one.stopped for one in seen.scans if one.stopped), None)):
        raise Conflict(f'the history of "{job.name}" is read no more: {stopped}')
    return is_readable(job) and not follows_unread(seen.scans)
