"""Decide what to do with one graph now: the whole barrier policy. Next: `service.operations.barriers.advance`.

A graph's life is *inject -> collect -> commit -> publish*, one barrier at a time. The policy is level-triggered: it
reads the recorded state and returns the one next effect. A missed wake-up therefore costs latency and never
correctness. A new leader that reads the same view continues where the old one stopped; it first publishes what was
committed.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from service.domain.backoff import GRAPHS
from service.domain.graph import (
    Abandon,
    ApplyStops,
    Attach,
    BuildIndex,
    Commit,
    Effect,
    GraphStatus,
    GraphView,
    InFlight,
    Inject,
    Line,
    Pace,
    Publish,
    Retire,
    RollBack,
    Wait,
)
from service.protocol.barrier import BarrierKind
from service.protocol.ids import Epoch

STOPPED: Final = "the job is no longer to be created"
HANDED_OVER: Final = "its worker leaves, and another one stands by"


def decide(view: GraphView, *, now: datetime, pace: Pace) -> Effect:
    """Return the one next effect for the graph."""
    policy = view.policy
    if policy.over:
        return Retire()
    if policy.publishes and view.published < view.committed:
        return Publish(view.committed)
    if policy.merged:
        return Wait(None, "its job goes on in the database graph")
    return _of_a_job(view, now) or _next(view, now, pace)


def after_commit(view: GraphView, epoch: Epoch, *, now: datetime, pace: Pace) -> Effect | None:
    """Return the effect that follows the publication of the epoch in flight in `view`, or None to read the view again.

    The effect is known in advance only for a graph at rest. Nothing waits in such a graph, so only time makes its next
    barrier due.
    """
    stirred = (
        view.commands_open,
        view.statements_queued,
        view.unsettled,
        view.cleanups_waiting,
        view.line.held,
        view.line.new,
        view.line.queued,
        view.recover_asked is not None,
    )
    if not view.policy.publishes or any(stirred):
        return None
    published = replace(view, committed=epoch, published=epoch, in_flight=None, uncommitted=0, attached=None)
    return decide(published, now=now, pace=pace)


class Chore(StrEnum):
    """The leader's work outside the barriers.

    Each chore has its own loop, because one item may wait long for a lock or fail repeatedly. No barrier waits (I13).
    """

    START_JOBS = "start_jobs"
    """Start the jobs that may start, and give the others their place in the queue."""
    CLEAN_UP = "clean_up"
    """Remove the remains of dropped, cancelled and failed relations from the state store."""
    ADAPT = "adapt"
    """Adapt limits to the barrier that was just published."""
    TIDY = "tidy"
    """Vacuum row versions and drop staging tables."""
    INDEX = "index"
    """Build the lookup indexes of stages, and drop the others."""
    SUPERVISE = "supervise"
    """Start and end worker processes. Every service does this, not only the leader."""
    MIND_SOURCES = "mind_sources"
    """Look after external databases."""
    ELECT = "elect"
    """Try to gain the lease, which a leader has released. Every service does this."""


def chores(view: GraphView, pace: Pace) -> tuple[Chore, ...]:
    """Return the chores that are due. A clean-up waits for the roll back: before that it would not be fenced."""
    due = (
        {}
        if not view.policy.shared
        else {
            Chore.START_JOBS: may_start(view.line, pace.permits),
            Chore.CLEAN_UP: view.cleanups_waiting and view.status is not GraphStatus.RECOVERING,
        }
    )
    return tuple(chore for chore, is_due in due.items() if is_due)


def may_start(line: Line, permits: int) -> bool:
    """Whether a job in the queue may start, or needs its place in the queue; `permits` of 0 is no limit."""
    return line.new or (line.queued and (permits == 0 or line.held < permits))


def _of_a_job(view: GraphView, now: datetime) -> Effect | None:
    """Return an effect that only the running graph of one job has, or None."""
    policy = view.policy
    if policy.shared or view.status is not GraphStatus.RUNNING:
        return None
    if view.stops_waiting:
        # Abandon the generation without a barrier, because a barrier might not be collected for long and its writes are
        # unwanted.
        return Abandon(STOPPED)
    # During the back-off of the build, barriers carry commands and read nothing.
    backed_off = policy.index_failed is not None and now < policy.index_failed.due
    return BuildIndex() if policy.unindexed and not backed_off and view.in_flight is None else None


def _next(view: GraphView, now: datetime, pace: Pace) -> Effect:
    match view.status:
        case GraphStatus.RECOVERING:
            return RollBack()
        case GraphStatus.WAITING:
            return _start(view, now)
        case GraphStatus.RUNNING:
            return _run(view, now, pace)


def _start(view: GraphView, now: datetime) -> Effect:
    if view.stops_waiting:
        return ApplyStops()
    if not view.alive:
        return Wait(None, "no worker is alive")
    due = _later(view.recovering_since, GRAPHS.after(view.attempts), now)
    if now < due:
        return Wait(due, "backing off after a failed start")
    staying = (view.alive - view.leaving) or view.alive
    return Inject(BarrierKind.INITIAL, min(staying, key=lambda worker: (view.setbacks.get(worker, 0), worker)))


def _run(view: GraphView, now: datetime, pace: Pace) -> Effect:
    if view.recover_asked is not None:
        return Abandon(view.recover_asked)
    if view.worker not in view.alive:
        # A worker that stops may have reported the reason before.
        told = None if view.in_flight is None else view.in_flight.failure
        return Abandon("worker lost") if told is None else Abandon(told.error, told)
    if view.in_flight is not None:
        return _advance(view.in_flight, now, view.policy.deadline(pace))
    leaves = view.worker in view.leaving and view.leaving < view.alive
    if leaves and view.uncommitted == 0:
        return Abandon(HANDED_OVER)
    due = _due(view, now, pace)
    if now < due:
        return Wait(due, "barrier interval")
    last = view.uncommitted + 1 >= pace.checkpoint_frequency or view.commands_waiting or leaves
    assert view.worker is not None
    return Inject(BarrierKind.CHECKPOINT if last else BarrierKind.BARRIER, view.worker)


def _advance(barrier: InFlight, now: datetime, patience: timedelta) -> Effect:
    if barrier.failure is not None:
        return Abandon(barrier.failure.error, barrier.failure)
    if barrier.collected:
        # An initial barrier commits too, because it proves that the new generation can run.
        return Attach(barrier.epoch) if barrier.kind is BarrierKind.BARRIER else Commit(barrier.epoch)
    deadline = barrier.injected_at + patience
    if now >= deadline:
        return Abandon(f"barrier {barrier.epoch} was not collected within {patience.total_seconds():.0f} s")
    return Wait(deadline, "waiting for the worker to collect")


def _due(view: GraphView, now: datetime, pace: Pace) -> datetime:
    if view.commands_waiting:
        return now
    wait = pace.interval
    if view.hurries:
        wait = view.policy.early(pace)
    elif view.statements_waiting and not view.backfilling:
        wait = min(pace.statement_delay, pace.interval)
    return _later(view.last_injected_at, wait, now)


def _later(since: datetime | None, wait: timedelta, now: datetime) -> datetime:
    """Return when `wait` is over. It is over now if `since` is in the future, because leaders' clocks differ."""
    return now if since is None or since > now else since + wait
