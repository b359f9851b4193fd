"""What to do with one graph now: the whole barrier policy on one screen. Next: `service.operations.barriers`.

A graph's life is *inject -> collect -> commit -> publish*, one barrier at a time. The policy is level-triggered: it
looks at what is recorded and names the one next effect, so a missed wake-up costs latency, never correctness; a new
leader that reads the same view continues where the old one stopped (publishing first what was committed).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from service.domain.retry import backoff
from service.protocol.barrier import BarrierKind
from service.protocol.ids import Epoch, Generation, GraphId, RelationId, WorkerId
from service.protocol.report import Failed


class GraphStatus(StrEnum):
    """Where a graph is between generations."""

    RECOVERING = "RECOVERING"
    """The generation is over: the state store has to be fenced and rolled back to the committed epoch."""
    WAITING = "WAITING"
    """Rolled back; waits for its back-off and a worker. Stops are applied without a barrier meanwhile."""
    RUNNING = "RUNNING"


@dataclass(frozen=True, slots=True)
class InFlight:
    """The one barrier that is injected and neither committed nor attached to a later checkpoint."""

    epoch: Epoch
    kind: BarrierKind
    injected_at: datetime
    collected: bool = False
    failure: Failed | None = None


@dataclass(frozen=True, slots=True)
class OwnWorker:
    """How starting the worker goes that serves one graph and no other: `failures` counts the starts in a row that came
    to nothing, `error` says what was wrong with the last one, and at `due` it is tried again.
    """

    failures: int = 0
    error: str | None = None
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class FailedIndex:
    """Why the index of a snapshot job's table could not be built. `failures` counts the tries for which Postgres lacked
    space, memory or time, not those in which it was away or the table locked; at `due` it is tried again.
    """

    failures: int
    error: str
    due: datetime


@dataclass(frozen=True, slots=True)
class Decoupled:
    """What the graph of a snapshot job adds: its job ends, or goes on in the database graph, before it does."""

    relation: RelationId | None = None
    """What the job creates."""
    over: bool = False
    """The job was created, cancelled or failed: nothing needs the graph any more."""
    merged: bool = False
    """The job goes on in the database graph; what was committed here stays known until it is created."""
    unindexed: bool = False
    """The snapshot is loaded, and its table lacks the index that the change log's rows are found by."""
    index_failed: FailedIndex | None = None
    """None: its index was not tried yet, or never failed."""
    own_worker: OwnWorker | None = None
    """None: workers of the database graph serve it as well."""


@dataclass(frozen=True, slots=True)
class Line:
    """Whether jobs are new, or queued; and how many hold a permit, which a table never does."""

    new: bool = False
    queued: bool = False
    held: int = 0


@dataclass(frozen=True, slots=True)
class GraphView:
    """All that the policy looks at, read in one transaction."""

    graph: GraphId
    status: GraphStatus
    generation: Generation
    committed: Epoch
    published: Epoch
    newest: Epoch
    """The newest epoch ever injected; the next one is greater."""
    worker: WorkerId | None
    """The worker that runs the present generation."""
    alive: frozenset[WorkerId]
    """Workers that serve this graph, whose lease runs."""
    in_flight: InFlight | None = None
    uncommitted: int = 0
    """Collected barriers that wait for the next checkpoint."""
    attached: Epoch | None = None
    """The newest of them, which the next barrier comes after."""
    last_injected_at: datetime | None = None
    attempts: int = 0
    """Generations started since the last commit of a barrier that was not itself a start."""
    recovering_since: datetime | None = None
    commands_waiting: bool = False
    """A mutation or a flush is queued that does not wait for an ordinary barrier."""
    stops_waiting: bool = False
    commands_open: bool = False
    """Some command is queued, or carried by a barrier that is not committed."""
    statements_waiting: bool = False
    statements_queued: bool = False
    """The same, with those that wait for an epoch to themselves."""
    backfilling: bool = False
    """Some scan still reads history: then statements wait for the interval, to leave the scans long slices."""
    hurries: bool = False
    """One does without a limit: the next barrier need not wait for the rest of an interval in which nothing is read."""
    recover_asked: str | None = None
    """Why an operator wants a recovery, or None."""
    cleanups_waiting: bool = False
    """Something dropped or cancelled has yet to be removed from the state store."""
    unsettled: bool = False
    """Of the database graph: a scan of whatever graph has history left, a job may want other actors, or a relation was
    created that is not shown yet. Only then has the commit of an idle epoch consequences.
    """
    line: Line = Line()
    """Of the database graph, where every job begins."""
    decoupled: Decoupled | None = None
    """None for the database graph."""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """The system parameters that were set."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often barriers are made and how long one may take."""

    interval: timedelta = timedelta(seconds=1)
    checkpoint_frequency: int = 1
    hurry: float = 0.5
    """The least distance, in intervals, of barriers that are made early for a scan that hurries: one that reads at all
    fills its slice, and others need no more barriers.
    """
    statement_delay: timedelta = timedelta(milliseconds=50)
    """The least distance of barriers that are made early for waiting statements: enough for a few to share one."""
    deadline: timedelta = timedelta(minutes=5)
    """A barrier that is not collected by then is given up. Far above any healthy epoch, whose slice is one interval."""
    permits: int = 0
    """How many jobs may be created at once; 0: as many as there are."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Make the committed epoch visible."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Abandon:
    """End the generation: nothing of it that is not committed shall count. `failure` is the worker's own account."""

    reason: str
    failure: Failed | None = None


@dataclass(frozen=True, slots=True)
class RollBack:
    """Fence the state store and roll it back to the committed epoch."""


@dataclass(frozen=True, slots=True)
class ApplyStops:
    """Carry out drops and cancels without a barrier: no actor runs."""


@dataclass(frozen=True, slots=True)
class Inject:
    """Make the next barrier and hand it to `worker`."""

    kind: BarrierKind
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Attach:
    """A barrier that is no checkpoint was collected: it waits for the next checkpoint."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint was collected."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until` unless something happens; None: until something happens. `reason` is for people."""

    until: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """Build the index of a snapshot job's table."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Forget a snapshot job's graph, in the state store first: nothing may write in its name any more."""


STOPPED: Final = "the job is no longer to be created"

Effect = Publish | Abandon | RollBack | ApplyStops | Inject | Attach | Commit | Wait | BuildIndex | Retire


def decide(view: GraphView, *, now: datetime, pace: Pace) -> Effect:
    """Return the one thing to do next for the graph."""
    if view.decoupled is not None:
        return _decoupled(view, view.decoupled, now) or _next(view, now, pace)
    if view.published < view.committed:
        return Publish(view.committed)
    return _next(view, now, pace)


def after_commit(view: GraphView, epoch: Epoch, *, now: datetime, pace: Pace) -> Effect | None:
    """Return what follows once the epoch, the one in flight in `view`, is published; None: that takes another look.

    Only of a graph at rest is it known beforehand: nobody waits for anything in it, so that nothing but time makes the
    next barrier due.
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
    if view.decoupled is not None or any(stirred):
        return None
    published = replace(view, committed=epoch, published=epoch, in_flight=None, uncommitted=0, attached=None)
    return decide(published, now=now, pace=pace)


class Chore(StrEnum):
    """Work of the leader beside the barriers. Each chore has a loop of its own, because one item of it may wait long
    for a lock or fail again and again, and no barrier waits for that (I13).
    """

    START_JOBS = "start_jobs"
    """Start the jobs whose turn it is, and give the others their place in the queue."""
    CLEAN_UP = "clean_up"
    """Remove from the state store what was dropped, cancelled or failed."""
    ADAPT = "adapt"
    """Adapt limits to the barrier that was just published."""
    TIDY = "tidy"
    """Vacuum row versions and drop staging tables."""
    SUPERVISE = "supervise"
    """Start and end worker processes. It is every service's, not the leader's alone."""
    MIND_SOURCES = "mind_sources"
    """See to external databases."""


def chores(view: GraphView, pace: Pace) -> tuple[Chore, ...]:
    """Return the chores that are due. Before the roll back a clean-up would not be fenced."""
    due = {
        Chore.START_JOBS: may_start(view.line, pace.permits),
        Chore.CLEAN_UP: view.cleanups_waiting and view.status is not GraphStatus.RECOVERING,
    }
    return tuple(chore for chore, is_due in due.items() if is_due)


def may_start(line: Line, permits: int) -> bool:
    """Whether somebody in the line is to be started, or to be told that there is a queue; a limit of 0 is none."""
    return line.new or (line.queued and (permits == 0 or line.held < permits))


def _decoupled(view: GraphView, decoupled: Decoupled, now: datetime) -> Effect | None:
    """Return what only the graph of a snapshot job does. It publishes nothing: nobody can read its job yet."""
    if decoupled.over:
        return Retire()
    if decoupled.merged:
        return Wait(None, "its job goes on in the database graph")
    if view.status is not GraphStatus.RUNNING:
        return None
    if view.stops_waiting:
        # Without a barrier, which might not be collected for long: nothing of what it writes is wanted.
        return Abandon(STOPPED)
    # While it is backed off from, barriers carry commands, and read nothing.
    backed_off = decoupled.index_failed is not None and now < decoupled.index_failed.due
    return BuildIndex() if decoupled.unindexed and not backed_off and view.in_flight is None else None


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
    due = _later(view.recovering_since, backoff(view.attempts), now)
    if now < due:
        return Wait(due, "backing off after a failed start")
    return Inject(BarrierKind.INITIAL, min(view.alive))


def _run(view: GraphView, now: datetime, pace: Pace) -> Effect:
    if view.recover_asked is not None:
        return Abandon(view.recover_asked)
    if view.worker not in view.alive:
        # A worker that ends may have told why.
        told = None if view.in_flight is None else view.in_flight.failure
        return Abandon("worker lost") if told is None else Abandon(told.error, told)
    if view.in_flight is not None:
        return _advance(view.in_flight, now, pace)
    due = _due(view, now, pace)
    if now < due:
        return Wait(due, "barrier interval")
    last = view.uncommitted + 1 >= pace.checkpoint_frequency or view.commands_waiting
    assert view.worker is not None
    return Inject(BarrierKind.CHECKPOINT if last else BarrierKind.BARRIER, view.worker)


def _advance(barrier: InFlight, now: datetime, pace: Pace) -> Effect:
    if barrier.failure is not None:
        return Abandon(barrier.failure.error, barrier.failure)
    if barrier.collected:
        # An initial barrier is a checkpoint: it proves that the new generation can run.
        return Attach(barrier.epoch) if barrier.kind is BarrierKind.BARRIER else Commit(barrier.epoch)
    deadline = barrier.injected_at + pace.deadline
    if now >= deadline:
        return Abandon(f"barrier {barrier.epoch} was not collected within {pace.deadline.total_seconds():.0f} s")
    return Wait(deadline, "waiting for the worker to collect")


def _due(view: GraphView, now: datetime, pace: Pace) -> datetime:
    if view.commands_waiting or (view.decoupled is not None and view.hurries):
        return now
    wait = pace.interval
    if view.hurries:
        wait *= pace.hurry
    elif view.statements_waiting and not view.backfilling:
        wait = min(pace.statement_delay, pace.interval)
    return _later(view.last_injected_at, wait, now)


def _later(since: datetime | None, wait: timedelta, now: datetime) -> datetime:
    """Return when `wait` is over. A clock that went back since, or another leader's, must not stop the graph."""
    return now if since is None or since > now else since + wait
