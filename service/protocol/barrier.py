"""Define a barrier: it closes the interval `(prev, curr]`, and everything written inside it carries `curr`.

Next: `service.domain.barrier`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, model_validator

from service.protocol.dml import DmlLimits, Statement
from service.protocol.ids import EpochField, Generation, GraphId
from service.protocol.mutation import Add, Mutation

COST_REFILL: Final = 0.2
"""The part of the time that flows back into the budget of what views may cost others (`ScanLimits.timeout_ms`)."""


class BarrierKind(StrEnum):
    """`initial` starts a generation, carries the whole plan and commits; a later barrier commits only as a
    `checkpoint`.
    """

    INITIAL = "initial"
    BARRIER = "barrier"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How long the changes of a scan may take in the generation that an initial barrier begins (0 is no bound). From
    how many rows on Spark reads history, or follows the changes of an epoch, where the user left that to tidefill.
    Jobs of the callers in `apart` are computed one by one, because some of them together took all memory.
    """

    timeout_ms: int = 0
    spark_history_rows: int = 100_000
    spark_changes_rows: int = 1_000_000
    apart: tuple[str, ...] = ()


class Barrier(BaseModel):
    """One barrier of one graph, with the DML that was accepted when the leader injected it.

    `interval_ms` is the barrier interval. `overhead_ms` is the time that recent barriers took outside the worker. A
    scan derives its time slice from both. `replay_upto` is set in the graph of a snapshot job whose table is loaded
    and indexed. It is the epoch up to which the worker may replay the upstreams' change log; the graphs of upstreams
    have committed it. With `follows` the job is created, and neither a pause nor a limit stops its replay.
    `traceparent` is the W3C context of the epoch's root span, set while traces are made.

    Invariants: `prev < curr`; an initial barrier carries an `Add`.
    """

    model_config = ConfigDict(frozen=True)

    graph: GraphId
    generation: Generation
    prev: EpochField
    curr: EpochField
    kind: BarrierKind
    mutation: Mutation | None = None
    statements: tuple[Statement, ...] = ()
    dml: DmlLimits = DmlLimits()
    interval_ms: int = 1000
    overhead_ms: int = 0
    replay_upto: EpochField | None = None
    follows: bool = False
    scans: ScanLimits = ScanLimits()
    traceparent: str | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        assert self.prev < self.curr, (self.prev, self.curr)
        assert self.kind is not BarrierKind.INITIAL or isinstance(self.mutation, Add), self.kind
        return self
