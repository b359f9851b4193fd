"""What a worker answers: an epoch is *collected* (its state-store transactions are durable) or it *failed*.

Answers are idempotent by (worker, generation, epoch): the first one counts, a repetition is confirmed, an answer of
an older generation is refused (I7).
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter

from service.protocol.cdc import SourceReport
from service.protocol.dml import StatementResult, Unfinished
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


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class ActorReport(_Value):
    """One scan actor after an epoch. `rows` is cumulative over all its vnodes; `positions` are those that changed.

    `finished` is reported one barrier after the epoch in which the last vnode completed, and on every barrier after
    that.
    """

    actor: Bigint[ActorId]
    fragment: Bigint[FragmentId]
    rows: Count
    snapshot_rows: Count = 0
    """Rows read from the upstream's history in this epoch."""
    upstream_rows: Count = 0
    """Live changes forwarded in this epoch."""
    completed: bool = False
    """The fragment's last vnode completed in this epoch: the next barrier finishes it."""
    finished: bool = False
    positions: tuple[VnodePosition, ...] = ()


class RelationReport(_Value):
    """How the number of alive keys of a relation changed in this epoch."""

    relation: Bigint[RelationId]
    key_count_delta: int = Field(ge=-COUNT_MAX, le=COUNT_MAX)


class _Answer(_Value):
    worker: WorkerId
    graph: Bigint[GraphId]
    generation: Bigint[Generation]
    epoch: EpochField


class Collected(_Answer):
    """Every actor passed the barrier. Timings are milliseconds by stage, for people and metrics. `consumed` is set by
    the graph of a snapshot job that has read its snapshot: the epoch up to which the change log was replayed.
    """

    type: Literal["collected"] = "collected"
    actors: tuple[ActorReport, ...] = ()
    relations: tuple[RelationReport, ...] = ()
    statements: tuple[StatementResult, ...] = ()
    unfinished: Unfinished = Unfinished()
    sources: tuple[SourceReport, ...] = ()
    timings_ms: dict[str, FiniteFloat] = Field(default_factory=dict)
    consumed: EpochField | None = None


class Failed(_Answer):
    """The epoch could not be run; nothing of it may be committed. `job` is set where one job is to blame, `statement`
    where the connection was lost while that statement ran.

    `deterministic` says that running the same epoch again would fail the same way (a bad cast in a query, say): such
    a job is failed at once instead of holding up the graph. `exhausted` says that the worker had no memory left while
    it computed the job: one that does so again and again is failed, too.
    """

    type: Literal["failed"] = "failed"
    error: str
    job: Bigint[JobId] | None = None
    statement: Bigint[StatementId] | None = None
    deterministic: bool = False
    exhausted: bool = False


Answer = Annotated[Collected | Failed, Field(discriminator="type")]
ANSWER: TypeAdapter[Collected | Failed] = TypeAdapter(Answer)
