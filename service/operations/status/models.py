"""The shapes in which the doors show what is stored: plain values, rendered as they are.

Every instant is UTC, every epoch travels as text, every rate is in rows per second, every `*_ms` in milliseconds.
Filled by `service.operations.status.listing` and `service.operations.status.history`. The items of lists are not
frozen, because making a thousand of them would take twice as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from service.domain.job import JobState
from service.domain.progress import Phase
from service.domain.waiting import Waiting
from service.ports.limits import AutoLimit
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
from service.protocol.vnodes import Runs


@dataclass(slots=True)
class ProgressView:
    """How far a job is. `text` is the string of `rw_ddl_progress`; `total`, `percent`, `eta_seconds` are null where
    unknown; `waiting_for` says why no history moves now, or null while it moves.
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
    """Why a relation is not kept current: it follows no more (`broken`), its job `failed`, or it is `stale`, because
    its source is waited for or, where `because_of` names one, because of another relation that it reads. `since` is
    null where it is not known.
    """

    state: Literal["broken", "failed", "stale"]
    reason: str
    since: datetime | None
    because_of: str | None


@dataclass(slots=True)
class JobView:
    """A job and how far it is."""

    id: JobId
    relation: RelationId
    name: str
    kind: RelationKind
    statement: str
    state: JobState
    background: bool
    initialized_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    parallelism: str | None
    """What was asked for once it is created, null for a table."""
    backfill_parallelism: str | None
    """What was asked for until then, null where it is the same."""
    failures: int
    recoveries: int
    state_since: datetime | None
    waiting: Waiting | None
    """Why it does not go on, null while it does."""
    broken: Broken | None
    """Why its relation is not kept current, null while it is."""
    progress: ProgressView


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, oldest first. `next` is the cursor of the following page, null on the last one."""

    items: tuple[JobView, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """How many vnodes are in each state, and the rows they have read."""

    not_started: int
    in_progress: int
    completed: int
    rows: int


@dataclass(frozen=True, slots=True)
class ActorView:
    """One parallel instance of a fragment; `vnodes` are runs of neighbours, both ends inclusive."""

    id: ActorId
    vnodes: Runs
    positions: PositionCounts


@dataclass(frozen=True, slots=True)
class FragmentView:
    """One stage of a job. `rate_limit` is in rows per second and actor: null is unlimited, 0 is paused. `auto` says how
    it is adapted to the load, null where it is not. `waiting` says that the fragment waits for its place in the
    backfill order, and `waits_for` names the relations before it that are not finished.
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
    """A job with its fragments, as long as it has any, and the order in which their histories are read: each pair names
    what is read before and what after it.
    """

    job: JobView
    fragments: tuple[FragmentView, ...]
    backfill_order: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class VnodeView:
    """How far one vnode of a scan is. `key` is the last key that was read, as texts, null before the first and once the
    vnode is completed.
    """

    vnode: Vnode
    actor: ActorId
    state: str
    key: tuple[str | None, ...] | None
    rows: int


@dataclass(frozen=True, slots=True)
class VnodePage:
    """Some vnodes, in order. `next` is the cursor of the following page, null on the last one."""

    items: tuple[VnodeView, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class ScanWait:
    """A scan that waits for its place in the backfill order; without names it waits for the barrier that starts it."""

    fragment: FragmentId
    upstream: str
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScanAuto:
    """The limit of a scan that is adapted to the load, and what decided it last."""

    fragment: FragmentId
    upstream: str
    rate_limit: int | None
    limit: AutoLimit


@dataclass(frozen=True, slots=True)
class LimitChangeView:
    """One change of an adapted limit: `epoch` is when it took effect, null while it is asked for or where another one
    came first. `signal` is what spoke against more, null where nothing did.
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
    """Some changes, newest first. `next` is what to give as `before` for the following page, null on the last one."""

    items: tuple[LimitChangeView, ...]
    next: str | None


@dataclass(slots=True)
class DdlProgress:
    """The columns of `rw_ddl_progress`, and beside them numbers. `queue_place` counts from 1; `auto` are the scans
    whose limit is adapted, `waits` those that wait for others, and `waiting` says why the job does not go on.
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
    last_error: str | None
    recoveries: int
    auto: tuple[ScanAuto, ...]
    waiting: Waiting | None
    waits: tuple[ScanWait, ...]


@dataclass(slots=True)
class FragmentProgress:
    """The columns of `rw_fragment_backfill_progress`, and beside them numbers; `waiting` and `waits_for` as in the
    fragment.
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


@dataclass(frozen=True, slots=True)
class ColumnView:
    """A column as its user sees it; `type` is Postgres's spelling."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class RelationView:
    """A relation. `key` names the columns of its primary key (empty: none was declared), `readable` says that a
    SELECT can see it, `key_count` counts its rows at the committed epoch.
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
    """Some relations, oldest first. `next` is the cursor of the following page, null on the last one."""

    items: tuple[RelationView, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class BarrierView:
    """One barrier. Durations are milliseconds; `latency_ms` is injected to published, null while it is not."""

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
    """Some barriers, newest first. `next` is the epoch to give as `before` for the following page, null on the last
    one.
    """

    items: tuple[BarrierView, ...]
    next: EpochField | None


@dataclass(frozen=True, slots=True)
class CommandView:
    """A mutation or flush that was asked for: `queued`, `applied` with the epoch at which it took effect, or
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
    """A graph: where it stands and what last went wrong."""

    graph: GraphId
    status: str
    generation: Generation
    committed: EpochField
    published: EpochField
    paused: bool
    recoveries: int
    last_error: str | None
