"""Define the contexts of operations: ports, limits and process-wide state, by subject. Bootstrap creates them.

Operations use no other globals.
"""

import asyncio
import os
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self
from weakref import WeakValueDictionary

from service.domain.attention import Attention
from service.domain.awaited import Awaited
from service.domain.backlog import Backlog
from service.domain.command_turns import CommandTurns
from service.domain.dml import CallerTurns, SinglesTurn
from service.domain.epochs import Epochs
from service.domain.graph import Pace
from service.domain.lake_places import ANYWHERE, LakeRoots
from service.domain.loads import LoadPace
from service.domain.overhead import Overhead
from service.domain.parameters import SystemParameters
from service.domain.reach import ANY, HostRules
from service.domain.setbacks import Setbacks, Suspects
from service.domain.uploading import Spool
from service.operations.shared_reads import Recent, Spaced, Together
from service.ports.clock import Clock
from service.ports.columnar import ColumnarBodies
from service.ports.comparing import ExternalRows, FollowedRows
from service.ports.health import HttpProbe, StoreGauge
from service.ports.launcher import Profiles
from service.ports.lending import Lending
from service.ports.meta_store import Stores
from service.ports.parsing import Parsers
from service.ports.read_logins import ReadLogins, ReadPlace
from service.ports.records import Claim, Event
from service.ports.signals import Signals
from service.ports.sources import ExternalServers, ExternalTables, Replication
from service.ports.state_store import (
    Fences,
    LookupIndexes,
    Pins,
    PublicViews,
    Reader,
    ReadSessions,
    Staging,
    VersionedTables,
)
from service.ports.tokens import ApiToken, TokenId
from service.protocol.dml import StatementResult
from service.protocol.ids import Epoch, JobId, RelationId, StatementId
from service.protocol.table_format import POSTGRES, Capabilities
from service.telemetry.metrics import Metrics, Stage
from service.telemetry.traces import Traces
from service.turns import Turns

RECORDED_EVERY_SECONDS = 60.0
"""How often the audit trail tells of DML and refusals of one kind by one actor. It bounds the size of the trail."""
TOKENS_REMEMBERED_SECONDS = 5.0
"""How long a process uses what it read of an API token. A revoked token ends within this time everywhere."""
PARAMETERS_REMEMBERED_SECONDS = 5.0
"""How long a process uses the quotas of calls that it read."""
LOGIN_OPENED_EVERY_SECONDS = 5.0
"""How often a process sets the password of one caller's Postgres login."""
LOGIN_BARRED_SECONDS = 600.0
"""For so long a login that wrote is closed."""
Arrival = tuple[int, int, bool]
"""The last event that a stream has read, the maximum number, and whether it shows what only admins may see."""
LOADS_MAX = 4
PIECES_MAX = max(1, (os.cpu_count() or 1) // 2)
"""Maximum of pieces of bodies that are unpacked or written at the same time. It leaves processors to other work."""


def pieces_turns(pieces_max: int) -> Turns:
    """Return the turns of pieces of bodies. Each ends in milliseconds, so any number may wait."""
    return Turns("pieces of bodies", running=pieces_max, waiting=1 << 20)


def load_turns(loads_max: int) -> Turns:
    """Return the turns of bulk loads and INSERT .. SELECT, which are staged outside any epoch."""
    return Turns("loads (TIDEFILL_LOADS_MAX)", running=loads_max, waiting=100, seconds=10.0)


@dataclass(frozen=True, slots=True)
class StateStore:
    """The ports of the state store."""

    tables: VersionedTables
    fences: Fences
    lookups: LookupIndexes
    pins: Pins
    reader: Reader
    staging: Staging
    views: PublicViews
    gauge: StoreGauge
    followed_rows: FollowedRows
    table_format: Capabilities = POSTGRES


@dataclass(frozen=True, slots=True)
class External:
    """The ports of servers that the service does not own: sources and users' probes."""

    servers: ExternalServers
    catalog: ExternalTables
    replication: Replication
    external_rows: ExternalRows
    http_probe: HttpProbe
    hosts: HostRules = ANY
    """The hosts to which sources may connect."""
    lake_roots: LakeRoots = ANYWHERE
    """The places where tables of a lake may lie."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The signals to workers, and how long the service waits for them."""

    barriers: Signals
    """Signals of injected barriers. Workers wait for these, so that other changes do not wake them."""
    requests: Signals
    """Signals of new requests to workers."""
    dml_url: str = field(repr=False)
    """The database URL with which workers run users' DML. They receive it when they register."""
    startable: bool = False
    """Whether the service can start a worker for one job."""
    profiles: Profiles | None = None
    """The profiles of such a worker. None if it has none, because it is no pod."""
    lease: timedelta = timedelta(seconds=10)
    """A worker that makes no call for this long is evicted. It calls at least every `poll_wait`."""
    poll_wait: timedelta = timedelta(seconds=3)
    """The duration of a worker's long poll."""
    barrier_deadline: timedelta = Pace().deadline
    attention: Attention = field(default_factory=Attention)
    """The times in which this process could not notice calls of workers."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The reader and the limits of bulk loads' bodies."""

    columnar: ColumnarBodies
    idle: timedelta = timedelta(seconds=30)
    """The longest time without a byte."""
    rate_min: int = 1 << 10
    """The minimum rate in bytes per second."""
    within: timedelta = timedelta(hours=1)
    """The longest total time."""
    spool: Spool = field(default_factory=Spool)
    """The files of the bodies that this process receives."""
    pieces: Turns = field(default_factory=lambda: pieces_turns(PIECES_MAX))
    """Pieces of bodies that this process unpacks, or writes to files."""
    turns: Turns = field(default_factory=lambda: load_turns(LOADS_MAX))
    """Loads whose rows are being staged by this process."""


@dataclass(frozen=True, slots=True)
class Logins:
    """The logins of users' own tools. The ports are None if there are none, or no tool can read the table format."""

    read_logins: ReadLogins | None = None
    place: ReadPlace | None = None
    """Where the logins lead."""
    sessions: ReadSessions | None = None
    lending: Lending | None = None
    barred: Spaced = field(default_factory=lambda: Spaced(LOGIN_BARRED_SECONDS))
    """When logins for reading wrote, as far as this service has seen."""
    opened: Spaced = field(default_factory=lambda: Spaced(LOGIN_OPENED_EVERY_SECONDS))
    """When this process last opened a login."""
    opening: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]], repr=False)
    """The logins that it opens now."""
    turns: Turns = field(default_factory=lambda: Turns("logins", running=3, waiting=100, seconds=10.0, each=1))


@dataclass(frozen=True, slots=True)
class Leading:
    """The memory of a process that leads. A new leader begins without it."""

    epochs: Epochs = field(default_factory=Epochs)
    """The epoch numbers of the barriers that it makes."""
    overhead: Overhead = field(default_factory=Overhead)
    """The time that barriers spend outside the worker."""
    singles: SinglesTurn = field(default_factory=SinglesTurn)
    """Decides when a barrier carries a single statement."""
    callers: CallerTurns = field(default_factory=CallerTurns)
    """Decides whose statements share an epoch."""
    commands: CommandTurns = field(default_factory=CommandTurns)
    """Decides whose command a barrier carries."""
    loads: LoadPace = field(default_factory=LoadPace)
    """The rates at which tables take staged rows."""
    starting: set[RelationId] = field(default_factory=set[RelationId], repr=False)
    """Relations whose tables it is creating. They are not cleaned up yet, because the table may appear after that."""
    suspects: Suspects = field(default_factory=Suspects)
    """The jobs that workers computed when they ran out of memory."""
    setbacks: Setbacks = field(default_factory=Setbacks)
    """Workers that recently failed graphs."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The state that the calls of one process share."""

    claims: set[Claim] = field(default_factory=set[Claim], repr=False)
    """The claimed idempotency keys of the calls that are running."""
    answers: Together[StatementId, StatementResult] = field(default_factory=Together[StatementId, StatementResult])
    """Shared reads of the results of accepted statements."""
    arrivals: Together[Arrival, Sequence[Event]] = field(default_factory=Together[Arrival, Sequence[Event]])
    """Shared reads of new events for event streams."""
    awaited: Together[JobId, Awaited] = field(default_factory=Together[JobId, Awaited])
    """Shared reads of the jobs that callers wait for."""
    unfinished: Together[None, Collection[JobId]] = field(default_factory=Together[None, Collection[JobId]])
    """Shared reads of the jobs for which a WAIT without a name waits."""
    flushes: WeakValueDictionary[str, Together[None, Epoch]] = field(
        default_factory=WeakValueDictionary[str, Together[None, Epoch]], repr=False
    )
    """The checkpoint that each caller waits for."""
    tokens: Recent[TokenId, ApiToken] = field(default_factory=lambda: Recent(TOKENS_REMEMBERED_SECONDS), repr=False)
    """The API tokens of callers. Unknown callers occupy one connection, however many they are."""
    parameters: Recent[None, SystemParameters] = field(default_factory=lambda: Recent(PARAMETERS_REMEMBERED_SECONDS))
    """The system parameters for what is asked at every call. Elsewhere they are read from the meta store."""
    backlog: Backlog = field(default_factory=Backlog)
    """The statements that wait for an epoch, as last counted."""
    recorded: Spaced = field(default_factory=lambda: Spaced(RECORDED_EVERY_SECONDS))
    """When the audit trail last got an entry of a kind that would otherwise come too often."""
    verifications: Turns = field(default_factory=lambda: Turns("verifications", running=3, waiting=20, each=1))
    """Comparisons: each takes Spark's slots, a pin, and one of the connections to the state store, for 30 minutes at
    most. Beside those of two callers another one has a place.
    """
    looks: Turns = field(
        default_factory=lambda: Turns("looks of workers at tables in a lake", running=4, waiting=100, seconds=60.0)
    )
    """What a worker looks at before a statement is accepted. It takes a thread of the worker, and places that do not
    answer take a minute. They do not wait for comparisons, which take longer.
    """
    reads: Turns = field(default_factory=lambda: Turns("queries", running=6, waiting=1_000, seconds=60.0))
    """Looks of queries at the catalog before they begin, each with one of the connections to the meta store."""
    limits: Turns = field(default_factory=lambda: Turns("changes of limits", running=4, waiting=1_000))
    """Changes of limits wait for the rows of their scans, each with one of the connections to the meta store."""
    lines: Turns = field(default_factory=lambda: Turns("searches for the line of a row", running=1, waiting=1_000))
    """Each takes a share of the interpreter from the event loop."""
    long_pages: Turns = field(default_factory=lambda: Turns("readers of long pages", running=1, waiting=100))
    """Large pages of barriers and of relations, one at a time: each takes the event loop for tens of milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The ports that every operation may use. An operation that takes no more than this needs nothing else."""

    stores: Stores
    clock: Clock
    signals: Signals
    """Signals of any change in the meta store."""
    traces: Traces | None = None
    """Makes traces. None: it is off, and costs nothing."""
    metrics: Metrics = field(default_factory=Metrics)
    """Metrics of the epochs that this process commits and publishes while it leads."""

    @contextmanager
    def timed(self, stage: Stage) -> Generator[None]:
        """Measure a barrier transaction that is opened and committed inside the block."""
        began = self.clock.monotonic()
        yield
        self.metrics.transacted(stage, self.clock.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class World(Context):
    """The contexts of a process, one for each subject."""

    parsers: Parsers
    state_store: StateStore
    external: External
    workers: Workers
    loading: Loading
    logins: Logins = field(default_factory=Logins)
    leading: Leading = field(default_factory=Leading)
    calls: Calls = field(default_factory=Calls)

    def of(self, caller: str) -> Self:
        """Return the world for a call, whose parses and queries take the share of its caller."""
        state_store = replace(self.state_store, reader=self.state_store.reader.of(caller))
        return replace(self, parsers=self.parsers.of(caller), state_store=state_store)

    def patience(self) -> timedelta:
        """Return how long a worker may be silent before this process evicts it."""
        return self.workers.attention.patience(self.workers.lease, now=self.clock.monotonic())
