"""What operations act on, handed in by bootstrap: ports and the pace. No operation reaches for anything else."""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from service.domain.attention import Attention
from service.domain.awaited import Awaited
from service.domain.backlog import Backlog
from service.domain.barrier import Pace
from service.domain.dml import SinglesTurn
from service.domain.epochs import Epochs
from service.domain.exhaustion import Suspects
from service.domain.overhead import Overhead
from service.domain.reach import ANY, HostRules
from service.domain.setbacks import Setbacks
from service.domain.uploading import Spool
from service.operations.shared_reads import Together
from service.operations.turns import Turns
from service.ports.clock import Clock
from service.ports.columnar import ColumnarBodies
from service.ports.comparing import ExternalRows, FollowedRows
from service.ports.health import HttpProbe, StoreGauge
from service.ports.meta_store import Stores
from service.ports.parsing import Parsers
from service.ports.records import Claim, Event
from service.ports.signals import Signals
from service.ports.sources import ExternalTables, Replication
from service.ports.state_store import Pins, PublicViews, Reader, Staging, VersionedTables
from service.protocol.dml import StatementResult
from service.protocol.ids import JobId, RelationId, StatementId
from service.protocol.table_format import POSTGRES, Capabilities
from service.telemetry.metrics import Metrics, Stage

VERIFICATIONS_MAX, VERIFICATIONS_WAITING_MAX = 2, 20


def verification_turns() -> Turns:
    """Return the turns of a process's verifications."""
    return Turns("verifications", running=VERIFICATIONS_MAX, waiting=VERIFICATIONS_WAITING_MAX)


def page_turns() -> Turns:
    """Return the turns of the readers of barriers: a large page takes the event loop for tens of milliseconds."""
    return Turns("readers of barriers", running=1, waiting=100)


@dataclass(frozen=True, slots=True)
class World:
    """The ports, and how long things may take."""

    stores: Stores
    tables: VersionedTables
    pins: Pins
    reader: Reader
    staging: Staging
    gauge: StoreGauge
    http_probe: HttpProbe
    views: PublicViews
    external: ExternalTables
    replication: Replication
    external_rows: ExternalRows
    followed_rows: FollowedRows
    parsers: Parsers
    columnar: ColumnarBodies
    clock: Clock
    signals: Signals
    """Something changed in the meta store."""
    barrier_signals: Signals
    """A barrier was injected: what workers wait for. They need not look at every change; so with the next."""
    request_signals: Signals
    """A worker was asked something."""
    dml_url: str = field(repr=False)
    """Where workers run users' DML; handed to them when they register."""
    table_format: Capabilities = POSTGRES
    """What the format of the state store's tables can do."""
    hosts: HostRules = ANY
    """Which hosts sources may be at."""
    load_idle: timedelta = timedelta(seconds=30)
    """How long the body of a bulk load may bring nothing."""
    load_rate_min: int = 1 << 10
    """How many bytes a second it must bring."""
    load_within: timedelta = timedelta(hours=1)
    """How long it may take as a whole."""
    own_workers: bool = False
    """Whether a worker can be started for one job alone."""
    worker_lease: timedelta = timedelta(seconds=10)
    """A worker that is silent for this long is given up. Its calls come at least every `poll_wait`."""
    poll_wait: timedelta = timedelta(seconds=3)
    """How long a worker's long poll is held open."""
    barrier_deadline: timedelta = Pace().deadline
    request_deadline: timedelta = timedelta(minutes=2)
    """How long a question to a worker may take before the caller is told that none answered."""
    claims: set[Claim] = field(default_factory=set[Claim], repr=False)
    """Idempotency keys whose calls this process is carrying out."""
    starting: set[RelationId] = field(default_factory=set[RelationId], repr=False)
    """Relations whose tables this process is creating: a clean-up that came first would leave the table."""
    metrics: Metrics = field(default_factory=Metrics)
    """Counts what this process commits and publishes while it leads."""
    epochs: Epochs = field(default_factory=Epochs)
    """Given to the barriers that this process makes while it leads."""
    overhead: Overhead = field(default_factory=Overhead)
    """What barriers take outside the worker, as this process sees it while it leads."""
    answers: Together[StatementId, StatementResult] = field(default_factory=Together[StatementId, StatementResult])
    """What callers wait for whose statements were accepted."""
    arrivals: Together[tuple[int, int], Sequence[Event]] = field(
        default_factory=Together[tuple[int, int], Sequence[Event]]
    )
    """Events after one, at most so many: what streams wait for."""
    awaited: Together[JobId, Awaited] = field(default_factory=Together[JobId, Awaited])
    """Jobs that callers wait for."""
    unfinished: Together[None, Collection[JobId]] = field(default_factory=Together[None, Collection[JobId]])
    """The jobs that a WAIT for all of them waits for."""
    attention: Attention = field(default_factory=Attention)
    """When this process could not have noticed a worker's sign of life."""
    backlog: Backlog = field(default_factory=Backlog)
    """Statements that wait for an epoch, as this process counts them."""
    spool: Spool = field(default_factory=Spool)
    """Files of bodies that this process receives."""
    singles: SinglesTurn = field(default_factory=SinglesTurn)
    """When a barrier may carry a statement alone, as this process counts while it leads."""

    verifications: Turns = field(default_factory=verification_turns)
    """Comparisons of this process: each takes Spark's slots, a pin, and one of the connections to the state store."""
    barrier_pages: Turns = field(default_factory=page_turns)
    """Large pages of barriers, one at a time: other calls are answered between two of them."""
    suspects: Suspects = field(default_factory=Suspects)
    """Jobs that workers ended with, as this process saw it while it leads."""

    setbacks: Setbacks = field(default_factory=Setbacks)
    """Workers that failed graphs lately, as this process saw it while it leads."""

    def patience(self) -> timedelta:
        """Return how long a worker may have been silent before this process gives it up."""
        return self.attention.patience(self.worker_lease, now=self.clock.monotonic())

    @contextmanager
    def timed(self, stage: Stage) -> Generator[None]:
        """Count how long a barrier's transaction takes that is opened and committed inside."""
        began = self.clock.monotonic()
        yield
        self.metrics.transacted(stage, self.clock.monotonic() - began)
