"""A barrier closes the interval `(prev, curr]`; everything written inside it carries `curr`. Next:
`service.domain.barrier`.
"""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from service.protocol.dml import DmlLimits, Statement
from service.protocol.ids import EpochField, Generation, GraphId
from service.protocol.mutation import Add, Mutation


class BarrierKind(StrEnum):
    """`initial` starts a generation and carries the whole plan; only a `checkpoint` commits and publishes."""

    INITIAL = "initial"
    BARRIER = "barrier"
    CHECKPOINT = "checkpoint"


class Barrier(BaseModel):
    """One barrier of one graph, with the DML that was accepted when it was injected.

    `interval_ms` is the pace the leader keeps, and `overhead_ms` what barriers have lately taken outside the worker: a
    scan's time slice is derived from both. `replay_upto` is set in the graph of a snapshot job whose snapshot is read:
    the upstreams' change log may be replayed up to that epoch, which the database graph has committed. Invariants:
    `prev < curr`; an initial barrier carries an `Add`.
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

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        assert self.prev < self.curr, (self.prev, self.curr)
        assert self.kind is not BarrierKind.INITIAL or isinstance(self.mutation, Add), self.kind
        return self
