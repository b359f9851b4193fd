"""Define the plain values that `service.ports.meta_store` stores and returns. Instants are UTC."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from service.domain.graph import GraphStatus
from service.domain.job import JobState
from service.domain.order import Order
from service.domain.parallelism import Parallelism
from service.protocol.barrier import Barrier
from service.protocol.cdc import CdcScan
from service.protocol.connector import Connector
from service.protocol.dml import Statement
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
from service.protocol.plan import Query, ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Stage
from service.protocol.vnodes import Runs

Json = Mapping[str, Any]

THE_RELATION: Final = RelationId(0)
"""Stands for the relation after which a new job is named."""


def hidden_id(place: int) -> RelationId:
    """Return the id that stands for the hidden relation at this index of a new job."""
    return RelationId(-1 - place)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A relation with a job. `key_count` counts its rows at the committed epoch. `upstreams` are the relations that it
    reads. `shown` is true once it is created and the epoch of its finish is published.
    """

    relation: Relation
    definition: str
    job: JobId
    state: JobState
    key_count: int = 0
    upstreams: tuple[RelationId, ...] = ()
    shown: bool = False
    follows: bool = False
    """It is a followed table, which only CDC fills."""


@dataclass(frozen=True, slots=True)
class CatalogOutline:
    """What a `CatalogEntry` says of its relation besides its columns and its definition. `location` is where the rows
    of one that is read in place lie.
    """

    id: RelationId
    name: str
    kind: RelationKind
    job: JobId
    state: JobState
    upstreams: tuple[RelationId, ...]
    shown: bool
    location: str | None


@dataclass(frozen=True, slots=True)
class NewLogicalView:
    """A new logical view. `columns` are pairs (name, Postgres type). `reads` are the relations that it names.

    `selects_all` is whether it names columns by a star.
    """

    name: str
    definition: str
    columns: tuple[tuple[str, str], ...]
    reads: tuple[RelationId, ...]
    selects_all: bool | None = None


@dataclass(frozen=True, slots=True)
class LogicalView:
    """A stored logical view. `shown` is true once it is readable. An earlier release did not store `selects_all`."""

    id: RelationId
    name: str
    definition: str
    columns: tuple[tuple[str, str], ...]
    shown: bool
    selects_all: bool | None = None


DISCREET_EVENTS: Final = ("token.", "secret.")
"""How the kinds of the events begin that only admins may see."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to answer the call with an idempotency key.

    `number` is unique and fences older claims of the key. `statement` was accepted under an earlier claim of the key,
    whose owner is gone. Its result answers the call.
    """

    key: str
    number: int
    statement: StatementId | None = None


@dataclass(frozen=True, slots=True)
class Receded:
    """A report with fewer rows than its actor of `job` has committed.

    After an Update it compares the sums over all actors that the Update created.
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
    """The state of a graph: its committed and published epochs, and the reason of its last recovery."""

    status: GraphStatus
    generation: Generation
    committed: Epoch
    published: Epoch
    paused: bool
    paused_since: datetime | None
    recoveries: int
    last_error: str | None
    paused_by: str | None = None


@dataclass(frozen=True, slots=True)
class NewDml:
    """The fragment that runs a table's DML. As in all fragments, actors get ids in the order of `actors`."""

    actors: tuple[Runs, ...]


def output_id(output: int | None) -> RelationId:
    """Return what stands for an output of a job that is not stored yet: `hidden[output]`, or its own relation."""
    return THE_RELATION if output is None else hidden_id(output)


def node_of(query: Query, upstream: RelationId, output: int | None) -> RelationId:
    """Return the node of the backfill order to which a scan belongs.

    It is the relation that a stage writes. A scan of a user's relation that gives no rows, or rows of the view each of
    which needs no other row, belongs to its upstream.
    """
    if not isinstance(query, Stage) or (query.is_projection and output is None and upstream > THE_RELATION):
        return upstream
    return output_id(output)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTableScan:
    """A scan of an upstream. With `auto` the limit is adaptive and starts at `rate_limit`.

    The upstream is the driver of a stage. A negative id stands for a hidden relation of the job: -1 is `hidden[0]`.
    """

    actors: tuple[Runs, ...]
    upstream: RelationId
    query: Query
    scan_type: ScanType
    rate_limit: int | None = None
    auto: bool = False
    output: int | None = None
    """The index in `hidden` of the relation that it writes. None is the relation after which the job is named."""
    sink: Connector | None = None

    @property
    def node(self) -> RelationId:
        """The node of the backfill order to which the scan belongs."""
        return node_of(self.query, self.upstream, self.output)

    @property
    def reads(self) -> frozenset[RelationId]:
        """The relations that it reads, hidden ones included."""
        return frozenset(self.query.relations if isinstance(self.query, Stage) else (self.upstream,))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSourceScan:
    """A scan of an external table."""

    actors: tuple[Runs, ...]
    cdc: CdcScan
    rate_limit: int | None = None
    auto: bool = False
    added: bool = False
    """The external table was published for this scan, so it is removed from the publication with the scan."""
    completed: bool = False
    """There is no history to read."""
    lake: Connector | None = None
    """Where the rows lie, if not in the state store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSplitScan:
    """A scan of the splits of an external system."""

    actors: tuple[Runs, ...]
    connector: Connector


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOperator:
    """A stage without history of its own, as `OperatorPlan`. `output` is that of a `NewTableScan`."""

    actors: tuple[Runs, ...]
    query: Stage
    output: int | None = None


NewFragment = NewDml | NewTableScan | NewSourceScan | NewSplitScan | NewOperator


def _planned(fragment: NewFragment) -> Query | CdcScan | Connector | None:
    """Return what a fragment has of its own in a plan."""
    match fragment:
        case NewTableScan() | NewOperator():
            return fragment.query
        case NewSourceScan():
            return fragment.cdc
        case NewSplitScan():
            return fragment.connector
        case NewDml():
            return None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A new job with the relation after which it is named, and `hidden` relations, which only this job uses.

    The ids of relations and the names of hidden ones are ignored, because the store assigns them. Scans whose node
    comes after others in `order` start in the waiting state.
    """

    relation: Relation
    statement: str
    background: bool
    fragments: tuple[NewFragment, ...]
    parallelism: Parallelism | None = None
    backfill_parallelism: Parallelism | None = None
    order: Order = ()
    views: tuple[RelationId, ...] = ()
    """The logical views that its query names, or the source of its followed table."""
    serverless: bool = False
    """The job is created by its own worker."""
    hidden: tuple[Relation, ...] = ()
    resource_group: str | None = None
    """The profile of that worker."""
    traceparent: str | None = None
    """The request that asks for it, as a W3C context, if traces are made."""
    own_graph: str | None = None
    """Why it stays in a graph of its own."""

    def __post_init__(self) -> None:
        """Check that `order` names only nodes of scans. The scans after another one would wait for ever."""
        assert {one for edge in self.order for one in edge} <= {scan.node for scan in self.table_scans}, self.order

    @property
    def plan_bytes(self) -> int:
        """About how many bytes it adds to the barrier that begins a generation: its own relations and its fragments.

        Those relations of others that it reads are there once. The rows of a constant view are in its fragment.
        """
        relations = [one.without_defaults for one in (self.relation, *self.hidden)]
        planned = [part for one in self.fragments if (part := _planned(one)) is not None]
        return sum(len(one.model_dump_json()) for one in (*relations, *planned))

    @property
    def table_scans(self) -> tuple[NewTableScan, ...]:
        """The scans of upstreams."""
        return tuple(one for one in self.fragments if isinstance(one, NewTableScan))

    @property
    def upstreams(self) -> frozenset[RelationId]:
        """The relations that the scans read, without hidden ones."""
        return frozenset(one for scan in self.table_scans for one in scan.reads if one > THE_RELATION)

    @property
    def looked_up(self) -> frozenset[RelationId]:
        """The relations that the scans read and none of them scans."""
        return self.upstreams - {scan.upstream for scan in self.table_scans}


@dataclass(frozen=True, slots=True)
class Command:
    """A durable command, which is finished with the epoch of the barrier that carried it. `mutation` None is a flush.

    `epoch` is set once a barrier has carried it, `error` if it was refused after it was enqueued.
    """

    id: CommandId
    graph: GraphId
    mutation: Mutation | None
    asked_by: str
    epoch: Epoch | None = None
    done: bool = False
    error: str | None = None
    hurried: bool = True
    """The command triggers a barrier at once. Otherwise the next ordinary barrier carries it."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """A pending clean-up: the leader removes a dropped relation's tables from the state store. Repeatable.

    `held` is why it cannot yet, for example whose transaction still reads them. Nobody waits for it then.
    """

    relation: RelationId
    name: str
    held: str | None = None


@dataclass(frozen=True, slots=True)
class BarrierRecord:
    """A barrier of the history. Its latency is the time from injection to publication."""

    barrier: Barrier
    injected_at: datetime
    collected_at: datetime | None
    committed_at: datetime | None
    published_at: datetime | None
    failure: str | None
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A registered worker. `alive` is true while its lease is valid.

    `leaving` is true after the worker has said that it is about to end, and `serving` while a graph runs on it.
    """

    worker: WorkerId
    graph: GraphId
    host: str
    pid: int
    parallelism: int
    registered_at: datetime
    seen_at: datetime
    alive: bool
    leaving: bool = False
    serving: bool = False


@dataclass(frozen=True, slots=True)
class StoredStatement:
    """Accepted DML that waits for its result. The first `applied_rows` of its staged rows have committed."""

    id: StatementId
    statement: Statement
    staged_rows: int | None = None
    applied_rows: int = 0
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the append-only log. `id` increases. `kind` is a past-tense name such as `barrier.committed`."""

    id: int
    at: datetime
    kind: str
    facts: Json
