"""The rows of the meta store in memory, and what makes a transaction of them: whatever was put can be taken back.

Rows are values: to change one is to put another in its place. Transactions run one after the other, so that there is
nothing to isolate; what row locks decide between two that overlap is the real store's business and its tests'.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, Generic, TypeVar

from service.domain.dml import SINGLY
from service.domain.graph import FailedIndex, GraphStatus, OwnWorker
from service.domain.job import TERMINAL, Job, JobState
from service.domain.launching import Launch
from service.domain.order import Order
from service.domain.slow_views import SlowView
from service.domain.unstoppable import Unstoppable
from service.ports.indexes import NamedIndex, StoredIndex
from service.ports.records import Claim, Cleanup, Command, Event, Json, StoredStatement
from service.ports.snapshots import Snapshot
from service.protocol.api import Registration
from service.protocol.barrier import Barrier
from service.protocol.connector import Connector
from service.protocol.dml import StatementResult
from service.protocol.epoch import NEVER
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    CommandId,
    Epoch,
    FragmentId,
    Generation,
    GraphId,
    JobId,
    RelationId,
    StatementId,
    Term,
    Vnode,
    WorkerId,
)
from service.protocol.plan import FragmentKind, Query, ScanType, VnodePosition
from service.protocol.relation import Relation
from service.protocol.report import Collected, Failed
from service.protocol.stage import LookupIndex, Stage
from service.protocol.vnodes import Runs

K = TypeVar("K")
R = TypeVar("R")

UNREADABLE = TERMINAL | {JobState.CANCELLING, JobState.DROPPING, JobState.FAILED}
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_FIRST = Generation(0)
_NOBODYS = Term(0)

Journal = list[tuple[dict[Any, Any], Any, Any]]
"""(table, key, the row before or `_NONE`), oldest first."""
_NONE: Any = object()


class Table(dict[K, R], Generic[K, R]):
    """Rows by key. Changed by `put` and `take` only, so that the journal knows of everything."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def put(self, key: K, row: R) -> None:
        self._journal.append((self, key, self.get(key, _NONE)))
        self[key] = row

    def take(self, key: K) -> R | None:
        """Remove a row, if it is there, and return it."""
        if key not in self:
            return None
        self._journal.append((self, key, self[key]))
        return self.pop(key)


def undo(journal: Journal) -> None:
    """Make as if nothing of the journal had been done."""
    for table, key, before in reversed(journal):
        if before is _NONE:
            del table[key]
        else:
            table[key] = before
    journal.clear()


def printable(text: str) -> str:
    """Return `text` as a text column keeps it."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True, slots=True)
class LeaseRow:
    term: Term = _NOBODYS
    holder: str = ""
    expires_at: datetime = LONG_AGO


@dataclass(frozen=True, slots=True)
class GraphRow:
    id: GraphId
    status: GraphStatus = GraphStatus.RECOVERING
    generation: Generation = _FIRST
    committed: Epoch = NEVER
    published: Epoch = NEVER
    newest: Epoch = NEVER
    worker: WorkerId | None = None
    last_injected_at: datetime | None = None
    attempts: int = 0
    recovering_since: datetime | None = None
    recoveries: int = 0
    last_error: str | None = None
    paused: bool = False
    paused_since: datetime | None = None
    paused_by: str | None = None
    recover_asked: str | None = None


@dataclass(frozen=True, slots=True)
class BarrierRow:
    """`state` is as in `service.meta_store.barriers.barriers`."""

    barrier: Barrier
    worker: WorkerId
    injected_at: datetime
    state: str = "INJECTED"
    answer: Collected | Failed | None = None
    failure: str | None = None
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    collected_at: datetime | None = None
    committed_at: datetime | None = None
    published_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RelationRow:
    relation: Relation
    definition: str
    job: JobId
    key_count: int = 0
    shown: bool = False
    dropped: bool = False
    owner: RelationId | None = None


@dataclass(frozen=True, slots=True)
class JobRow:
    job: Job
    order: Order
    rescale_due: bool
    snapshot_epoch: Epoch | None = None
    progress: Json | None = None
    traceparent: str | None = None
    plan_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FragmentRow:
    id: FragmentId
    job: JobId
    kind: FragmentKind
    upstream: RelationId | None = None
    query: Query | None = None
    scan_type: ScanType | None = None
    rate_limit: int | None = None
    waiting: bool = False
    limit_epoch: Epoch | None = None
    limit_by: str | None = None
    paused: bool = False
    resumes_at: int | None = None
    output: RelationId | None = None
    connector: Connector | None = None

    @property
    def reads(self) -> tuple[RelationId, ...]:
        """The upstream first, and each relation once."""
        stage = self.query.inputs if isinstance(self.query, Stage) else ()
        upstream = () if self.upstream is None else (self.upstream,)
        return tuple(dict.fromkeys((*upstream, *(one.relation for one in stage))))


@dataclass(frozen=True, slots=True)
class ActorRow:
    id: ActorId
    fragment: FragmentId
    runs: Runs
    rows: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class ScanRow:
    rows: int = 0
    rate: float = 0.0
    finished: bool = False
    at: datetime | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerRow:
    registration: Registration
    registered_at: datetime
    seen_at: datetime
    given_up: bool = False
    leaving: bool = False

    def alive(self, after: datetime) -> bool:
        return not self.given_up and self.seen_at > after


@dataclass(frozen=True, slots=True)
class StatementRow:
    """`staging`: it has a staging table that was not dropped yet."""

    stored: StoredStatement
    outcome: tuple[Epoch, StatementResult] | None = None
    affected: int = 0
    carried_by: Epoch | None = None
    carried_to: int | None = None
    finished_at: datetime | None = None
    staging: bool = False
    tries: int = 0
    caller: str | None = None

    def waits(self, *, singly: bool) -> bool:
        """Whether no barrier carries it, and it is carried singly, or shares an epoch."""
        return self.carried_by is None and (self.tries >= SINGLY) == singly


@dataclass(frozen=True, slots=True)
class KeyRow:
    claim: Claim
    fingerprint: str
    claimed_at: datetime
    held_until: datetime
    response: Json | None = None


class Tables:
    """The database. What is open and what is over lie apart, so that a look costs the same however long the history."""

    def __init__(self) -> None:
        journal = self.journal = Journal()
        self.lease = Table[None, LeaseRow](journal)
        self.graphs = Table[GraphId, GraphRow](journal)
        self.barriers = Table[tuple[GraphId, Epoch], BarrierRow](journal)
        self.history = Table[tuple[GraphId, Epoch], BarrierRow](journal)
        self.commands = Table[CommandId, Command](journal)
        self.finished_commands = Table[CommandId, Command](journal)
        self.parts = Table[CommandId, tuple[CommandId, ...]](journal)
        """What other graphs do of a command, by the part that stands for the whole."""
        self.snapshots = Table[GraphId, Snapshot](journal)
        self.own_workers = Table[GraphId, OwnWorker](journal)
        self.failed_indexes = Table[GraphId, FailedIndex](journal)
        self.relations = Table[RelationId, RelationRow](journal)
        self.cleanups = Table[RelationId, Cleanup](journal)
        self.named_indexes = Table[RelationId, NamedIndex](journal)
        self.stored_indexes = Table[LookupIndex, StoredIndex](journal)
        self.jobs = Table[JobId, JobRow](journal)
        self.unstoppable = Table[str, Unstoppable](journal)
        self.slow_views = Table[str, SlowView](journal)
        self.fragments = Table[FragmentId, FragmentRow](journal)
        self.actors = Table[ActorId, ActorRow](journal)
        self.positions = Table[FragmentId, Mapping[Vnode, VnodePosition]](journal)
        self.scans = Table[FragmentId, ScanRow](journal)
        self.workers = Table[WorkerId, WorkerRow](journal)
        self.launches = Table[WorkerId, Launch](journal)
        self.statements = Table[StatementId, StatementRow](journal)
        self.finished_statements = Table[StatementId, StatementRow](journal)
        self.events = Table[int, Event](journal)
        self.parameters = Table[str, str](journal)
        self.secrets = Table[str, str](journal)
        self.keys = Table[str, KeyRow](journal)
        self.ids = count(1)
        """One sequence for all: like the real ones, it does not go back with a transaction."""
        self.lease[None] = LeaseRow()
        self.graphs[DATABASE_GRAPH] = GraphRow(DATABASE_GRAPH)

    def of_job(self, job: JobId) -> list[FragmentRow]:
        """Return a job's fragments in order of id."""
        return sorted((row for row in self.fragments.values() if row.job == job), key=lambda row: row.id)

    def taken(self) -> list[RelationRow]:
        """Return the relations of the catalog, oldest first."""
        return [row for _, row in sorted(self.relations.items()) if not row.dropped]

    def hidden(self, owner: RelationId) -> list[RelationRow]:
        """Return the internal tables of an object that were not removed, in order of id."""
        found = [row for row in self.relations.values() if row.owner == owner and not row.dropped]
        return sorted(found, key=lambda row: row.relation.id)

    def of_fragment(self, fragment: FragmentId) -> list[ActorRow]:
        """Return a fragment's actors in order of id."""
        return sorted((row for row in self.actors.values() if row.fragment == fragment), key=lambda row: row.id)
