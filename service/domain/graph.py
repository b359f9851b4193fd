"""The values of the barrier policy: what it reads of a graph, how graphs differ, and the effects that it returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from service.protocol.barrier import BarrierKind
from service.protocol.ids import Epoch, Generation, GraphId, RelationId, WorkerId
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
class OwnWorker:
    """The state of starting a worker that serves one graph only.

    `failures` counts the consecutive starts that failed, `error` is the error of the last one, and `due` is when the
    next start is tried.
    """

    failures: int = 0
    error: str | None = None
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class FailedIndex:
    """Why the index of a snapshot job's table could not be built, and when the build is tried again (`due`).

    `failures` counts the tries for which Postgres lacked space, memory or time. An unreachable server or a locked table
    does not count.
    """

    failures: int
    error: str
    due: datetime


STAYING_EACH: Final = timedelta(milliseconds=50)
"""The interval of the graphs whose jobs stay is at least so long for each graph: a barrier takes the service and its
databases about 20 ms, whatever its epoch does.
"""


@dataclass(frozen=True, slots=True)
class GraphPolicy:
    """How the database graph and the partial graphs of jobs differ. The defaults are those of a new partial graph.

    The graph of a snapshot job ends after its job has ended or moved to the database graph. A job that *stays* has its
    graph for ever, which publishes epochs of its own once the job is created.
    """

    shared: bool = False
    """It is the database graph: it has DML and created relations, and its epochs delay others (I10)."""
    relation: RelationId | None = None
    """The relation that its only job creates."""
    over: bool = False
    """Nothing needs the graph any more: its job has ended or, unless it stays, was created."""
    stays: bool = False
    """The job never merges."""
    created: bool = False
    """The job stays and is created: users read what the graph publishes."""
    merged: bool = False
    """The job continues in the database graph. Its state committed here stays recorded until it is created."""
    unindexed: bool = False
    """The snapshot is loaded, but its table lacks the index that a replay needs."""
    index_failed: FailedIndex | None = None
    """None if the index was not tried yet, or its build never failed."""
    own_worker: OwnWorker | None = None
    """None if workers of the database graph serve this graph as well."""
    graphs: int = 1
    """How many partial graphs there are."""

    @property
    def publishes(self) -> bool:
        """Whether a commit becomes visible by a publication of its own. Before its job is created nobody reads it."""
        return self.shared or self.created

    def deadline(self, pace: Pace) -> timedelta:
        """Return how long a barrier may take."""
        return pace.deadline_staying if self.stays else pace.deadline

    def interval(self, asked: timedelta) -> timedelta:
        """Return the barrier interval. However many jobs stay, their barriers leave time for those of others (I13)."""
        return max(asked, self.graphs * STAYING_EACH) if self.created else asked

    def early(self, pace: Pace) -> timedelta:
        """Return the least distance of early barriers for a scan without a limit. Alone, it delays nobody."""
        return pace.interval * pace.hurry if self.shared else timedelta(0)

    def checkpoint_frequency(self, asked: int) -> int:
        """Return how many barriers are one checkpoint. A graph that publishes nothing has checkpoints at no cost."""
        return asked if self.shared else 1


DATABASE_POLICY: Final = GraphPolicy(shared=True)


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
    """Whether committing an idle epoch of a graph that publishes may have consequences.

    It is True while a scan of any graph has history left, while a job may want other actors, or while a created
    relation is not visible yet.
    """
    line: Line = Line()
    """The job queue. Set for the database graph only, because every job begins there."""
    policy: GraphPolicy = DATABASE_POLICY
    setbacks: Mapping[WorkerId, int] = field(default_factory=dict[WorkerId, int])
    """How often each worker failed the graph lately, as the leader remembers (`service.domain.setbacks`)."""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """The stored system parameters, as texts by name."""


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


Effect = Publish | Abandon | RollBack | ApplyStops | Inject | Attach | Commit | Wait | BuildIndex | Retire
