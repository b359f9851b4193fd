"""Define a worker's answers: an epoch is *collected* (its state-store transactions are durable) or it *failed*.

Answers are idempotent by (worker, generation, epoch). The first answer counts and the service confirms a repetition. It
refuses an answer of an older generation (I7).
"""

from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, FiniteFloat, TypeAdapter

from service.protocol.cdc import SourceReport
from service.protocol.dml import NOTHING_UNFINISHED, StatementResult, Unfinished
from service.protocol.ids import (
    COUNT_MAX,
    ActorId,
    Bigint,
    Count,
    EpochField,
    FragmentId,
    Generation,
    GraphId,
    JobId,
    RelationId,
    StatementId,
    WorkerId,
)
from service.protocol.plan import VnodePosition
from service.protocol.stage import Engine

WORK_MAX: Final = 100
"""The most parts of an epoch's work in one answer."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class ActorReport(_Value):
    """The report of one scan actor after an epoch.

    `rows` is cumulative over all vnodes of the actor; `positions` are those that changed. `finished` is True in the
    epoch in which the fragment's history ends, and in all later ones.
    """

    kind: Literal["actor"] = "actor"
    actor: Bigint[ActorId]
    fragment: Bigint[FragmentId]
    rows: Count
    snapshot_rows: Count = 0
    """Rows read from the upstream's history in this epoch."""
    upstream_rows: Count = 0
    """Live changes forwarded in this epoch."""
    engine: Engine | None = None
    """The engine that computed the rows of this epoch."""
    jobs: Count = 0
    """The jobs of Spark in this epoch, or the runs of the store. The first actor of a scan reports them for all."""
    completed: bool = False
    """All history of the fragment is read, and the next barrier may finish the fragment."""
    finished: bool = False
    waiting: str | None = None
    """Why the table that is read in place cannot be read now. It counts in a report with positions."""
    positions: Annotated[tuple[VnodePosition, ...], FailFast()] = ()


class DmlReport(_Value):
    """The report of the statements of an epoch: their results, and which of them wait for a later epoch."""

    kind: Literal["dml"] = "dml"
    results: Annotated[tuple[StatementResult, ...], FailFast()]
    unfinished: Unfinished = NOTHING_UNFINISHED


FragmentReport = ActorReport | SourceReport | DmlReport
Report = TypeVar("Report", bound=FragmentReport)
Kind = type[Report]


class RelationReport(_Value):
    """The change of a relation's number of alive keys in this epoch."""

    relation: Bigint[RelationId]
    key_count_delta: int = Field(ge=-COUNT_MAX, le=COUNT_MAX)


class Work(_Value):
    """A part of an epoch's work, in milliseconds since the epoch began in the worker. `name` says what ran, with its id
    (`scan 7`), and nothing of the data.
    """

    name: Annotated[str, Field(max_length=50)]
    began_ms: FiniteFloat
    ms: FiniteFloat


class _Answer(_Value):
    worker: WorkerId
    graph: Bigint[GraphId]
    generation: Bigint[Generation]
    epoch: EpochField


class Collected(_Answer):
    """Every actor passed the barrier. `reports` are what its fragments report. A kind of fragment has its own report.

    `timings_ms` has milliseconds by stage, for users and metrics. `consumed` is set by the graph of a snapshot job
    whose snapshot is read: the epoch up to which it replayed the change log. `work` is empty unless the barrier has a
    `traceparent`.
    """

    type: Literal["reported"] = "reported"
    """Up to version 4 it was `collected`. Neither version must misread an answer of the other one."""
    reports: Annotated[tuple[Annotated[FragmentReport, Field(discriminator="kind")], ...], FailFast()] = ()
    relations: Annotated[tuple[RelationReport, ...], FailFast()] = ()
    timings_ms: dict[str, FiniteFloat] = Field(default_factory=dict)
    consumed: EpochField | None = None
    work: Annotated[tuple[Work, ...], Field(max_length=WORK_MAX), FailFast()] = ()

    def of(self, kind: Kind[Report]) -> tuple[Report, ...]:
        """Return the reports of one kind."""
        return tuple(one for one in self.reports if isinstance(one, kind))


class JobFailure(_Value):
    """A job that failed in an epoch, and would fail again in the same way.

    `too_slow` means that its changes took longer than others may wait for them (`stage_timeout_ms`).
    """

    job: Bigint[JobId]
    error: str
    too_slow: bool = False


class Failed(_Answer):
    """The worker could not run the epoch, so nothing of it may be committed.

    `job` is set if one job caused the failure. `statement` is set if the connection was lost while that statement ran.
    `deterministic` means that the same epoch would fail the same way again (for example a bad cast in a query). The
    leader fails such a job at once, so that it does not block the graph, and so it does with a `statement` that is
    `too_slow`. `exhausted` means that the worker ran out of memory while it computed the job, or that the error may be
    due to the moment or to the job. The leader fails a job that does so repeatedly. `beside` are several jobs that were
    computed beside each other when the worker ran out of memory: the next generation computes what their callers own
    one by one. `too_slow` is as in `JobFailure`. `others` are further jobs that failed deterministically in this epoch:
    all of them cost one recovery (I13).
    """

    type: Literal["failed"] = "failed"
    error: str
    job: Bigint[JobId] | None = None
    statement: Bigint[StatementId] | None = None
    deterministic: bool = False
    exhausted: bool = False
    beside: Annotated[tuple[Bigint[JobId], ...], FailFast()] = ()
    too_slow: bool = False
    others: Annotated[tuple[JobFailure, ...], FailFast()] = ()

    @property
    def slow(self) -> frozenset[JobId]:
        """The jobs whose changes took longer than others may wait for them."""
        its = [self.job] if self.too_slow and self.job is not None else []
        return frozenset([*its, *(one.job for one in self.others if one.too_slow)])


Answer = Annotated[Collected | Failed, Field(discriminator="type")]
ANSWER: TypeAdapter[Collected | Failed] = TypeAdapter(Answer)
