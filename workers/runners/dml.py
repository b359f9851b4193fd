"""Run the DML statements of an epoch. The DML fragments of all tables share one transaction, which keeps the
statements' order.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from service.protocol.barrier import Barrier
from service.protocol.dml import StatementResult
from service.protocol.ids import JobId, RelationId
from service.protocol.mutation import Mutation
from service.protocol.report import DmlReport, FragmentReport
from workers.runners.port import Phase, Place, RunningEpoch
from workers.state_store.port import DmlOutcome, DmlWriter

_UNSUPPORTED: Final = "0A000"
"""SQLSTATE of a feature that is not supported."""


class DmlRunner:
    """Runs the statements that came with a barrier."""

    place: Place = (Phase.DML, 0, 0)
    reads: Collection[RelationId] = ()
    settled = True

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Return False: it runs before all others."""
        del epoch
        return False

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Do nothing: no mutation acts on DML."""

    def readers(self, *, paused: bool) -> int:
        """Return 0: DML reads no history."""
        del paused
        return 0

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Run the statements in order. Raises what `DmlWriter.run` raises."""
        barrier = epoch.barrier
        done = _run(epoch.stores.dml, barrier) if barrier.statements else None
        epoch.timings_ms["dml"] = (epoch.clock() - epoch.began) * 1000
        if done is None:
            return ()
        epoch.changed |= done.changed
        for relation, delta in done.key_count_deltas.items():
            epoch.key_count_deltas[relation] += delta
        for result, relation in zip(done.results, done.relations, strict=True):
            epoch.inserted[relation] += result.affected
            epoch.written[relation] += result.affected
        return (DmlReport(results=done.results, unfinished=done.unfinished),)

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Return False: a graph without tables may still get one."""
        del jobs
        return False

    def end(self) -> None:
        """Do nothing: no resource is held between epochs."""


def _run(dml: DmlWriter | None, barrier: Barrier) -> DmlOutcome:
    if dml is not None:
        return dml.run(barrier.statements, barrier.curr, barrier.dml)
    refused = partial(StatementResult, affected=0, error="the table format runs no statements", sqlstate=_UNSUPPORTED)
    return DmlOutcome(
        tuple(refused(id=statement.id) for statement in barrier.statements),
        tuple(statement.relation.id for statement in barrier.statements),
        {},
        frozenset(),
    )
