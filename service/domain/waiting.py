"""Compute why a job waits: a named reason, since when, and until when at the latest, if there is such a time.

A reason of the whole graph comes before a reason of the job, because it has to be resolved first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from service.domain.backoff import GRAPHS
from service.domain.graph import GraphStatus, GraphView, OwnWorker, Pace
from service.domain.job import Job, JobState, queued_at
from service.domain.launching import Launch
from service.domain.progress import ScanProgress, follows_unread, held_outside
from service.domain.slow_views import SLOW_VIEW

OVERDUE_INTERVALS: Final = 2
"""A healthy barrier is published within two intervals."""
OVERDUE_LEAST: Final = timedelta(seconds=5)
"""A busy machine often exceeds two short intervals."""
NAME_KEPT: Final = "the view of a dropped relation with its name is still used by"
"""The begin of the reason of a job whose name is free in the catalog, but not yet in the state store."""


class Reason(StrEnum):
    """The reasons for which a job waits."""

    QUEUE = "queue"
    START = "start"
    FIRST_BARRIER = "first_barrier"
    RECOVERY = "recovery"
    WORKER = "worker"
    LEADER = "leader"
    BARRIER = "barrier"
    SERVICE = "service"
    PAUSE = "pause"
    ORDER = "backfill_order"
    LIMIT = "backfill_rate_limit"
    INDEX = "index"
    STOP = "stop"
    SOURCE = "source"
    NAME = "name"
    SLOW_VIEW = "slow_view"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job waits. `since` is None if unrecorded. At `until` the service takes action; None if it takes none."""

    reason: Reason
    text: str
    since: datetime | None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Around:
    """The state of a graph on which the waiting of all its jobs depends."""

    graph: GraphView
    pace: Pace
    last_error: str | None
    paused: bool
    paused_since: datetime | None
    paused_by: str | None = None
    led: bool = True
    """Whether some service holds the leader lease."""
    own_workers: bool = True
    """Whether this service can start workers for one graph alone."""
    launch: Launch | None = None
    """The newest launch of the worker that the graph needs, if workers are started in a cluster."""


def why(
    job: Job, scans: Sequence[ScanProgress], around: Around, *, now: datetime, place: int | None = None
) -> Waiting | None:
    """Return why a job does not progress, or None if it does or is not running. `place` is its place in the queue."""
    if job.held_back is not None and not job.published:
        return Waiting(Reason.NAME, f"its view cannot be made: {job.held_back}", job.state_since)
    match job.state:
        case JobState.INITIAL | JobState.QUEUED if job.preparing is not None:
            return Waiting(_preparing(job.preparing), job.preparing, job.state_since or job.initialized_at)
        case JobState.INITIAL:
            return Waiting(Reason.START, "the leader has yet to start it", job.initialized_at)
        case JobState.QUEUED:
            return Waiting(Reason.QUEUE, queued_at(place, job.queued_by), job.state_since or job.initialized_at)
        case JobState.CANCELLING | JobState.DROPPING:
            return Waiting(Reason.STOP, "a barrier has yet to stop its actors", job.state_since)
        case JobState.CREATED if not follows_unread(scans):
            return None
        case JobState.CREATING | JobState.CREATED:
            return _of_graph(job, around, now) or _of_job(job, scans, around)
        case _:
            return None


def _preparing(text: str) -> Reason:
    """Return for what a job with this text waits before its start."""
    if text.startswith(SLOW_VIEW):
        return Reason.SLOW_VIEW
    return Reason.NAME if text.startswith(NAME_KEPT) else Reason.INDEX


def _of_graph(job: Job, around: Around, now: datetime) -> Waiting | None:
    graph, said = around.graph, around.last_error
    if graph.status is GraphStatus.RECOVERING and said is None:
        return Waiting(Reason.START, "its barriers are about to begin", graph.recovering_since)
    if graph.status is GraphStatus.RECOVERING:
        text = f"repeating the work since the last checkpoint: {said}"
        return Waiting(Reason.RECOVERY, text, graph.recovering_since)
    lost = graph.status is GraphStatus.RUNNING and graph.worker not in graph.alive
    if not graph.alive or lost:
        return _without_worker(graph.policy.own_worker, graph.recovering_since or job.state_since, around)
    if graph.status is GraphStatus.WAITING:
        since = graph.recovering_since
        due = None if since is None else since + GRAPHS.after(graph.attempts)
        if said is None and not graph.attempts:
            return Waiting(Reason.START, "its barriers are about to begin", since, due)
        text = f"pausing after {graph.attempts} starts: {said or 'no checkpoint was reached'}"
        return Waiting(Reason.RECOVERY, text, since, due)
    return _overdue(around, now)


def _without_worker(own: OwnWorker | None, since: datetime | None, around: Around) -> Waiting:
    if own is not None and not around.own_workers:
        text = "it needs a worker of its own, and this service starts none (TIDEFILL_LAUNCHER=none)"
        return Waiting(Reason.WORKER, text, since)
    subject, launch = "its own worker" if own is not None else "the worker", around.launch
    if launch is not None:
        if launch.held is not None:
            return Waiting(Reason.WORKER, f"{subject} is held up: {launch.held.text}", launch.held.since)
        own = OwnWorker() if launch.end is None else OwnWorker(launch.end.failures, launch.end.reason, launch.end.due)
    if own is None:
        return Waiting(Reason.WORKER, "no worker is alive", since)
    if own.error is None:
        return Waiting(Reason.WORKER, f"{subject} is being started", since)
    if own.failures == 0:
        return Waiting(Reason.WORKER, f"{subject} is being started anew: {own.error}", since, own.due)
    times = "once" if own.failures == 1 else f"{own.failures} times in a row"
    return Waiting(Reason.WORKER, f"{subject} failed {times}: {own.error}", since, own.due)


def _overdue(around: Around, now: datetime) -> Waiting | None:
    """Return the reason for a barrier that is overdue: not collected, or not made."""
    graph, since = around.graph, around.graph.last_injected_at
    if graph.policy.unindexed:
        if (failed := graph.policy.index_failed) is not None and now < failed.due:
            text = f"the index of its table could not be built: {failed.error}"
            return Waiting(Reason.INDEX, text, since, failed.due)
        return Waiting(Reason.INDEX, "the index of its table is being built", since)
    if since is None or now - since <= max(around.pace.interval * OVERDUE_INTERVALS, OVERDUE_LEAST):
        return None
    if graph.in_flight is None or graph.in_flight.collected:
        return _behind(around, since)
    text = f"the worker still computes epoch {graph.in_flight.epoch}"
    return Waiting(Reason.BARRIER, text, since, since + around.pace.deadline)


def _behind(around: Around, since: datetime) -> Waiting:
    """Return the reason for a barrier that no leader made or committed: there is no leader, or it is slow."""
    if not around.led:
        return Waiting(Reason.LEADER, "no service leads: no barrier was made or committed", since)
    flying = around.graph.in_flight
    if flying is None:
        return Waiting(Reason.SERVICE, "the service is behind: the next barrier is overdue", since)
    text = f"the service is behind: barrier {flying.epoch} is collected and not yet committed"
    return Waiting(Reason.SERVICE, text, since)


def _of_job(job: Job, scans: Sequence[ScanProgress], around: Around) -> Waiting | None:
    left = [scan for scan in scans if not scan.finished]
    if scans and all(scan.at is None for scan in scans):
        return Waiting(Reason.FIRST_BARRIER, "its first barrier has yet to be collected", job.state_since)
    if not left and around.graph.policy.shared:
        return None
    if held := held_outside(left):
        return Waiting(Reason.SOURCE, held, None)
    if around.paused:
        return Waiting(Reason.PAUSE, f"every backfill is paused{_by(around.paused_by)}", around.paused_since)
    # A snapshot job that has read all history replays the log. A pause and a limit of 0 also stop the replay.
    free = [scan for scan in left or scans if not scan.waiting]
    if not free:
        return Waiting(Reason.ORDER, "; ".join(map(order_text, left)), job.state_since)
    if all(scan.rate_limit == 0 for scan in free):
        changed = [(scan.limited_since, scan.limited_by) for scan in free if scan.limited_since is not None]
        since, by = max(changed, key=lambda change: change[0], default=(job.state_since, None))
        return Waiting(Reason.LIMIT, f"its history is paused{_by(by)}: backfill_rate_limit is 0", since)
    return None


def order_text(scan: ScanProgress) -> str:
    """Return for what a scan waits in the backfill order. No relation is left where only a barrier is."""
    return f"{scan.upstream} after {', '.join(scan.awaits) or 'the next barrier'}"


def _by(actor: str | None) -> str:
    return "" if actor is None else f" by {actor}"
