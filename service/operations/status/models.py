"""Define the response models of API and CLI: plain values, rendered as they are.

Every instant is UTC and every epoch is a text. Every rate is in rows per second, every `*_ms` in milliseconds.
`service.operations.status.listing` and `service.operations.status.history` create the models. The items of lists are
not frozen, because creating a thousand frozen ones would take twice as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from service.domain.job import JobState
from service.domain.progress import Phase
from service.domain.waiting import Waiting
from service.ports.status import AutoLimit, EngineWork
from service.protocol.ids import (
    ActorId,
    CommandId,
    EpochField,
    FragmentId,
    Generation,
    GraphId,
    JobId,
    RelationId,
    Vnode,
)
from service.protocol.plan import FragmentKind, ScanType
from service.protocol.relation import RelationKind
from service.protocol.stage import Engine
from service.protocol.vnodes import Runs


@dataclass(slots=True)
class ProgressView:
    """The progress of a job. `text` is the string of `rw_ddl_progress`. `total`, `percent` and `eta_seconds` are null
    if unknown. `waiting_for` is the reason why no history is read now, null while it is read.
    """

    text: str
    phase: Phase
    rows: int
    total: int | None
    percent: float | None
    rows_per_second: float
    eta_seconds: float | None
    waiting_for: str | None


@dataclass(slots=True)
class Broken:
    """Why a relation is not kept current. A `broken` table no longer follows its external table. The job of a
    `failed` relation has failed. A `stale` relation waits for its source, or reads the relation `because_of`, which is
    not kept current. `since` is null if unknown.
    """

    state: Literal["broken", "failed", "stale"]
    reason: str
    since: datetime | None
    because_of: str | None


@dataclass(slots=True)
class JobView:
    """A job and its progress."""

    id: JobId
    relation: RelationId
    name: str
    kind: RelationKind
    statement: str
    state: JobState
    background: bool
    created_by: str | None
    """The caller who asked for it, as the audit trail names callers. Null if that was not recorded."""
    initialized_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    parallelism: str | None
    """The requested parallelism after the job is created, null for a table."""
    backfill_parallelism: str | None
    """The requested parallelism until then, null if it is the same."""
    resource_group: str | None
    """The requested profile of the job's own worker, null if there was none."""
    failures: int
    recoveries: int
    state_since: datetime | None
    waiting: Waiting | None
    """Why the job waits, null while it makes progress."""
    broken: Broken | None
    """Why the job's relation is not kept current, null while it is."""
    progress: ProgressView
    own_graph: str | None
    """Why the job stays in a graph of its own, and may lag. Null if the database graph maintains it."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, oldest first. `next` is the cursor of the following page, null on the last one. Statements and
    errors have their first 2,000 characters here, and a longer one `…` after them. `/v1/jobs/{job}` has all of it.
    """

    items: tuple[JobView, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """The number of vnodes in each state, and the rows read from them."""

    not_started: int
    in_progress: int
    completed: int
    rows: int


@dataclass(frozen=True, slots=True)
class ActorView:
    """A parallel instance of a fragment. `vnodes` are runs of consecutive vnodes, both ends inclusive."""

    id: ActorId
    vnodes: Runs
    positions: PositionCounts


@dataclass(frozen=True, slots=True)
class FragmentView:
    """A fragment of a job. `rate_limit` is in rows per second and actor: null is unlimited, 0 is paused. `auto` is the
    state of an adaptive limit, null otherwise. `waiting` is true while the backfill order delays the fragment.
    `waits_for` names the unfinished relations before it.
    """

    id: FragmentId
    job: JobId
    kind: FragmentKind
    upstream: str | None
    scan_type: ScanType | None
    rate_limit: int | None
    auto: AutoLimit | None
    waiting: bool
    waits_for: tuple[str, ...]
    rows: int
    total: int | None
    rows_per_second: float
    finished: bool
    positions: PositionCounts
    actors: tuple[ActorView, ...]


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with its fragments and its backfill order. The fragments are empty once the relation is gone. Each pair of
    the order is (relation read first, relation read after it).
    """

    job: JobView
    fragments: tuple[FragmentView, ...]
    backfill_order: tuple[tuple[str, str], ...]
    engines: Mapping[Engine, EngineWork]
    """What Spark and the state store have done for the job: jobs (of the store: runs), and the rows that they read."""


@dataclass(frozen=True, slots=True)
class VnodeView:
    """The position of one vnode of a scan. `key` is the last key read, as texts. It is null before the first key and
    after the vnode is completed.
    """

    vnode: Vnode
    actor: ActorId
    state: str
    key: tuple[str | None, ...] | None
    rows: int


@dataclass(frozen=True, slots=True)
class VnodePage:
    """A page of vnodes, in order. `next` is the cursor of the following page, null on the last one."""

    items: tuple[VnodeView, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class ScanWait:
    """A scan that the backfill order delays. With empty `waits_for` it waits only for the barrier that starts it."""

    fragment: FragmentId
    upstream: str
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScanAuto:
    """The adaptive limit of a scan and its state."""

    fragment: FragmentId
    upstream: str
    rate_limit: int | None
    limit: AutoLimit


@dataclass(frozen=True, slots=True)
class LimitChangeView:
    """A change of an adaptive limit. It took effect at `epoch`, null while it is queued or if another change came
    first. `signal` is the load signal against a higher limit, null if there was none.
    """

    id: int
    fragment: FragmentId
    at: datetime
    epoch: EpochField | None
    before: int
    after: int
    signal: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class LimitPage:
    """A page of changes, newest first. `next` is the `before` of the following page, null on the last one."""

    items: tuple[LimitChangeView, ...]
    next: str | None


@dataclass(slots=True)
class DdlProgress:
    """The columns of `rw_ddl_progress`, with additional numbers. `queue_place` counts from 1. `auto` are the scans with
    an adaptive limit. `waits` are the scans that the backfill order delays. `waiting` is the reason why the job waits.
    A long `ddl_statement` is cut as in a page of jobs.
    """

    ddl_id: JobId
    ddl_statement: str
    create_type: str
    progress: str
    initialized_at: datetime
    is_serverless_backfill: bool
    backfill_type: str
    name: str
    state: JobState
    phase: Phase
    rows: int
    total: int | None
    percent: float | None
    rows_per_second: float
    eta_seconds: float | None
    waiting_for: str | None
    queue_place: int | None
    created_by: str | None
    last_error: str | None
    recoveries: int
    auto: tuple[ScanAuto, ...]
    waiting: Waiting | None
    waits: tuple[ScanWait, ...]


@dataclass(slots=True)
class FragmentProgress:
    """The columns of `rw_fragment_backfill_progress`, with additional numbers. `waiting` and `waits_for` are as in the
    fragment. `kind` is `scan`, or `lookup` for an input that the fragment looks up: it is complete from the start.
    """

    job_id: JobId
    fragment_id: FragmentId
    job_name: str
    upstream_table_name: str
    progress: str
    rows: int
    total: int | None
    rows_per_second: float
    finished: bool
    rate_limit: int | None
    waiting: bool
    waits_for: tuple[str, ...]
    kind: Literal["scan", "lookup"]


@dataclass(frozen=True, slots=True)
class ColumnView:
    """A visible column. `type` is in Postgres's spelling."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class RelationView:
    """A relation. `key` names the columns of its primary key and is empty if none was declared. `readable` is true once
    a SELECT can read it. `key_count` is the number of its rows at the committed epoch.
    """

    id: RelationId
    name: str
    kind: RelationKind
    columns: tuple[ColumnView, ...]
    key: tuple[str, ...]
    definition: str
    job: JobId
    state: JobState
    readable: bool
    key_count: int
    upstreams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RelationPage:
    """A page of relations, oldest first. `next` is the cursor of the following page, null on the last one. Definitions
    have their first 2,000 characters here, and a longer one `…` after them. `/v1/relations/{name}` has all of it.
    """

    items: tuple[RelationView, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class BarrierView:
    """A barrier. Durations are in milliseconds. `latency_ms` is the time from injection to publication, null before."""

    epoch: EpochField
    prev: EpochField
    kind: str
    generation: Generation
    mutation: str | None
    injected_at: datetime
    collected_at: datetime | None
    committed_at: datetime | None
    published_at: datetime | None
    collect_ms: float | None
    commit_ms: float | None
    publish_ms: float | None
    latency_ms: float | None
    failure: str | None
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BarrierPage:
    """A page of barriers, newest first. `next` is the `before` of the following page, null on the last one."""

    items: tuple[BarrierView, ...]
    next: EpochField | None


@dataclass(frozen=True, slots=True)
class CommandView:
    """A requested mutation or flush. `state` is `queued`, `applied` with the epoch at which it took effect, or
    `refused`.
    """

    command: CommandId
    type: str
    state: str
    asked_by: str
    epoch: EpochField | None
    error: str | None


@dataclass(frozen=True, slots=True)
class GraphDetail:
    """The state of a graph and the reason of its last recovery."""

    graph: GraphId
    status: str
    generation: Generation
    committed: EpochField
    published: EpochField
    paused: bool
    recoveries: int
    last_error: str | None
