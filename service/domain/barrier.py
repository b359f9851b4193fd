"""Decide what to do with one graph now: the whole barrier policy. Next: `service.operations.barriers.advance`.

A graph's life is *inject -> collect -> commit -> publish*, one barrier at a time. The policy is level-triggered: it
reads the recorded state and returns the one next effect. A missed wake-up therefore costs latency and never
correctness. A new leader that reads the same view continues where the old one stopped; it first publishes what was
committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from service.domain.backoff import GRAPHS
from service.domain.decoupled import Decoupled
from service.protocol.barrier import BarrierKind
from service.protocol.ids import Epoch, Generation, GraphId, WorkerId
from service.protocol.report import Failed


class GraphStatus(StrEnum):
    """The state of a graph between generations."""

    RECOVERING = "RECOVERING"
    """The generation has ended. The leader has to fence the state store and roll it back to the committed epoch."""
    WAITING = "WAITING"
    """Rolled back. The graph waits for its back-off and for a worker; meanwhile stops need no barrier."""
    RUNNING = "RUNNING"


@dataclass(frozen=True, slots=True)
class InFlight:
    """The one barrier that is injected, and neither committed nor attached to a later checkpoint."""

    epoch: Epoch
    kind: BarrierKind
    injected_at: datetime
    collected: bool = False
    failure: Failed | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """The job queue in brief: whether jobs are new or queued, and how many jobs hold a permit (a table never does)."""

    new: bool = False
    queued: bool = False
    held: int = 0


@dataclass(frozen=True, slots=True)
class GraphView:
    """Everything that the policy depends on, read in one transaction."""

    graph: GraphId
    status: GraphStatus
    generation: Generation
    committed: Epoch
    published: Epoch
    newest: Epoch
    """The newest epoch ever injected. The next epoch is greater."""
    worker: WorkerId | None
    """The worker that runs the present generation."""
    alive: frozenset[WorkerId]
    """The workers that serve this graph and whose lease has not expired."""
    leaving: frozenset[WorkerId] = frozenset()
    """The workers among `alive` that are about to end."""
    in_flight: InFlight | None = None
    uncommitted: int = 0
    """The number of collected barriers that wait for the next checkpoint."""
    attached: Epoch | None = None
    """The newest of those barriers. It is `prev` of the next barrier."""
    last_injected_at: datetime | None = None
    attempts: int = 0
    """Generations started since the last commit of a barrier that was not itself initial."""
    recovering_since: datetime | None = None
    commands_waiting: bool = False
    """A mutation or a flush is queued that must not wait for the barrier interval."""
    stops_waiting: bool = False
    commands_open: bool = False
    """Some command is queued, or carried by a barrier that is not committed."""
    statements_waiting: bool = False
    statements_queued: bool = False
    """As `statements_waiting`, but includes the statements that wait for an epoch of their own."""
    backfilling: bool = False
    """Some scan still reads history. Statements then wait for the interval, so that scans keep long time slices."""
    hurries: bool = False
    """Some scan has no limit. The next barrier need not wait for the rest of an interval in which nothing is read."""
    recover_asked: str | None = None
    """Why an operator requested a recovery, or None."""
    cleanups_waiting: bool = False
    """The state store still holds something of a dropped, cancelled or failed relation."""
    unsettled: bool = False
    """Whether committing an idle epoch has consequences. Set for the database graph only.

    It is True while a scan of any graph has history left, while a job may want other actors, or while a created
    relation is not visible yet.
    """
    line: Line = Line()
    """The job queue. Set for the database graph only, because every job begins there."""
    decoupled: Decoupled | None = None
    """None for the database graph."""
    setbacks: Mapping[WorkerId, int] = field(default_factory=dict[WorkerId, int])
    """How often each worker failed the graph lately, as the leader remembers (`service.domain.setbacks`)."""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """The stored system parameters, as texts by name."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often barriers are made and how long one may take."""

    interval: timedelta = timedelta(seconds=1)
    checkpoint_frequency: int = 1
    hurry: float = 0.5
    """The least distance of early barriers for a scan without a limit, in barrier intervals.

    A scan without a limit fills its time slice whenever it reads. Scans with a limit need no earlier barriers.
    """
    statement_delay: timedelta = timedelta(milliseconds=50)
    """The least distance of early barriers for waiting statements. It is long enough for a few to share one."""
    deadline: timedelta = timedelta(minutes=5)
    """The leader abandons a barrier that is not collected by then. A healthy epoch is far shorter: one slice."""
    deadline_staying: timedelta = timedelta(hours=1)
    """The same in the graph of a job that stays, where an epoch may read whole inputs and delays nobody."""
    permits: int = 0
    """How many jobs may be created at once; 0 is no limit."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Make the committed epoch visible."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Abandon:
    """End the generation. Nothing uncommitted of it may take effect. `failure` is the worker's report, if any."""

    reason: str
    failure: Failed | None = None


@dataclass(frozen=True, slots=True)
class RollBack:
    """Fence the state store and roll it back to the committed epoch."""


@dataclass(frozen=True, slots=True)
class ApplyStops:
    """Apply drops and cancels without a barrier, because no actor runs."""


@dataclass(frozen=True, slots=True)
class Inject:
    """Make the next barrier and send it to `worker`."""

    kind: BarrierKind
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach a collected barrier that is not a checkpoint to the next checkpoint."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit a collected checkpoint."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before `until`, unless an event arrives. None waits for an event only. `reason` is for users."""

    until: datetime | None
    reason: str


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """Build the index of a snapshot job's table."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Remove a snapshot job's graph. The leader fences the state store first, so that no write of the graph follows."""


STOPPED: Final = "the job is no longer to be created"
HANDED_OVER: Final = "its worker leaves, and another one stands by"

Effect = Publish | Abandon | RollBack | ApplyStops | Inject | Attach | Commit | Wait | BuildIndex | Retire


def decide(view: GraphView, *, now: datetime, pace: Pace) -> Effect:
    """Return the one next effect for the graph."""
    if view.decoupled is not None:
        return _decoupled(view, view.decoupled, now) or _next(view, now, pace)
    if view.published < view.committed:
        return Publish(view.committed)
    return _next(view, now, pace)


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
    if view.decoupled is not None or any(stirred):
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
    due = {
        Chore.START_JOBS: may_start(view.line, pace.permits),
        Chore.CLEAN_UP: view.cleanups_waiting and view.status is not GraphStatus.RECOVERING,
    }
    return tuple(chore for chore, is_due in due.items() if is_due)


def may_start(line: Line, permits: int) -> bool:
    """Whether a job in the queue may start, or needs its place in the queue; `permits` of 0 is no limit."""
    return line.new or (line.queued and (permits == 0 or line.held < permits))


def _decoupled(view: GraphView, decoupled: Decoupled, now: datetime) -> Effect | None:
    """Return an effect that only a snapshot job's graph has, or None.

    Such a graph publishes nothing before its job can be read.
    """
    if decoupled.over:
        return Retire()
    if decoupled.created and view.published < view.committed:
        return Publish(view.committed)
    if decoupled.merged:
        return Wait(None, "its job goes on in the database graph")
    if view.status is not GraphStatus.RUNNING:
        return None
    if view.stops_waiting:
        # Abandon the generation without a barrier, because a barrier might not be collected for long and its writes are
        # unwanted.
        return Abandon(STOPPED)
    # During the back-off of the build, barriers carry commands and read nothing.
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
        stays = view.decoupled is not None and view.decoupled.stays
        return _advance(view.in_flight, now, pace.deadline_staying if stays else pace.deadline)
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
    if view.commands_waiting or (view.decoupled is not None and view.hurries):
        return now
    wait = pace.interval
    if view.hurries:
        wait *= pace.hurry
    elif view.statements_waiting and not view.backfilling:
        wait = min(pace.statement_delay, pace.interval)
    return _later(view.last_injected_at, wait, now)


def _later(since: datetime | None, wait: timedelta, now: datetime) -> datetime:
    """Return when `wait` is over. It is over now if `since` is in the future, because leaders' clocks differ."""
    return now if since is None or since > now else since + wait
