"""What the meta store holds, as plain values: the words of `service.ports.meta_store`. Instants are UTC."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.domain.barrier import GraphStatus
from service.domain.job import JobState
from service.domain.order import Order
from service.domain.parallelism import Parallelism
from service.protocol.barrier import Barrier
from service.protocol.cdc import CdcScan
from service.protocol.dml import Statement, StatementResult
from service.protocol.ids import (
    CommandId,
    Epoch,
    FragmentId,
    Generation,
    GraphId,
    JobId,
    RelationId,
    StatementId,
    WorkerId,
)
from service.protocol.mutation import Mutation
from service.protocol.plan import Connector, ScanType, Stateless
from service.protocol.relation import Relation
from service.protocol.vnodes import Runs

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A relation whose name is taken. `key_count` counts alive keys at the committed epoch; `upstreams` are what it
    reads; `shown` says that it was created and that the epoch of its finish is published.
    """

    relation: Relation
    definition: str
    job: JobId
    state: JobState
    key_count: int = 0
    upstreams: tuple[RelationId, ...] = ()
    shown: bool = False
    follows: bool = False
    """It is filled by following an external table, and by nothing else."""


@dataclass(frozen=True, slots=True)
class NewLogicalView:
    """A logical view to be stored. `columns` are (name, Postgres type), `reads` the relations that it names."""

    name: str
    definition: str
    columns: tuple[tuple[str, str], ...]
    reads: tuple[RelationId, ...]


@dataclass(frozen=True, slots=True)
class LogicalView:
    """A logical view whose name is taken; `shown` says that it can be read."""

    id: RelationId
    name: str
    definition: str
    columns: tuple[tuple[str, str], ...]
    shown: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to answer the call with an idempotency key. `number` is its fence: no two claims have the same.
    `statement` was accepted under an earlier claim of the key whose holder is gone: its result answers the call.
    """

    key: str
    number: int
    statement: StatementId | None = None


@dataclass(frozen=True, slots=True)
class Receded:
    """A report of an actor of `job` that takes back rows that were committed; or of all those that an Update brought,
    together.
    """

    actor: str
    fragment: FragmentId
    rows: int
    job: JobId
    committed: int

    def __str__(self) -> str:
        return f"actor {self.actor} of fragment {self.fragment} reports {self.rows} rows after {self.committed}"


@dataclass(frozen=True, slots=True)
class GraphState:
    """How a graph stands: what it committed and published, and what its last recovery was for."""

    status: GraphStatus
    generation: Generation
    committed: Epoch
    published: Epoch
    paused: bool
    paused_since: datetime | None
    recoveries: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class NewDml:
    """The fragment that runs the statements that write a table. Actors get ids in the order of `actors`, here as in all
    fragments.
    """

    actors: tuple[Runs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTableScan:
    """A scan of an upstream. `auto`: the limit is adapted to the load, from `rate_limit` on."""

    actors: tuple[Runs, ...]
    upstream: RelationId
    query: Stateless
    scan_type: ScanType
    rate_limit: int | None = None
    auto: bool = False
    output: int | None = None
    """The place of the hidden relation that it writes; None is the relation that the job is named after."""
    sink: Connector | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSourceScan:
    """A scan of an external table."""

    actors: tuple[Runs, ...]
    cdc: CdcScan
    rate_limit: int | None = None
    auto: bool = False
    added: bool = False
    """The external table was published for this scan: it is to be taken back with it."""
    completed: bool = False
    """There is no history to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSplitScan:
    """A scan of the splits of an external system."""

    actors: tuple[Runs, ...]
    connector: Connector


NewFragment = NewDml | NewTableScan | NewSourceScan | NewSplitScan


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored together with the relation that it is named after, and the `hidden` ones that only it writes
    and reads. Their ids, and the names of hidden ones, are ignored and assigned. Scans of relations that come after
    others in `order` start waiting.
    """

    relation: Relation
    statement: str
    background: bool
    fragments: tuple[NewFragment, ...]
    parallelism: Parallelism | None = None
    backfill_parallelism: Parallelism | None = None
    order: Order = ()
    views: tuple[RelationId, ...] = ()
    """The logical views that its query names, or the source that it follows."""
    serverless: bool = False
    """A worker of its own shall create it."""
    hidden: tuple[Relation, ...] = ()

    def __post_init__(self) -> None:
        """What nobody scans would never be read, and nothing could come after it."""
        assert {one for edge in self.order for one in edge} <= self.upstreams, self.order

    @property
    def table_scans(self) -> tuple[NewTableScan, ...]:
        """The scans of upstreams."""
        return tuple(one for one in self.fragments if isinstance(one, NewTableScan))

    @property
    def upstreams(self) -> frozenset[RelationId]:
        """The relations that it scans."""
        return frozenset(one.upstream for one in self.table_scans)


@dataclass(frozen=True, slots=True)
class Command:
    """A request for a barrier, durable and answered with the epoch that carried it. `mutation` None is a flush.

    `epoch` is set when it was carried, `error` when it was refused after it was queued. `stop` names the jobs of a
    Stop.
    """

    id: CommandId
    graph: GraphId
    mutation: Mutation | None
    asked_by: str
    epoch: Epoch | None = None
    done: bool = False
    error: str | None = None
    hurried: bool = True
    """A barrier is made for it at once; otherwise it rides on the next ordinary one."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What is left of a dropped relation in the state store, to be removed by the leader; repeatable."""

    relation: RelationId
    name: str


@dataclass(frozen=True, slots=True)
class BarrierRecord:
    """One barrier of the history. Latency is injected -> published."""

    barrier: Barrier
    injected_at: datetime
    collected_at: datetime | None
    committed_at: datetime | None
    published_at: datetime | None
    failure: str | None
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker that registered. `alive` says whether its lease runs."""

    worker: WorkerId
    graph: GraphId
    host: str
    pid: int
    parallelism: int
    registered_at: datetime
    seen_at: datetime
    alive: bool


@dataclass(frozen=True, slots=True)
class StoredStatement:
    """DML that was accepted. `result` is set once the epoch that ran it (the last of its slices) has committed."""

    id: StatementId
    statement: Statement
    accepted_at: datetime
    staged_rows: int | None = None
    applied_rows: int = 0
    epoch: Epoch | None = None
    result: StatementResult | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the append-only log. `id` grows; `kind` is a past-tense name such as `barrier.committed`."""

    id: int
    at: datetime
    kind: str
    facts: Json
