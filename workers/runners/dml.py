"""Run the DML statements of an epoch. The DML fragments of all tables share one transaction, which keeps the
statements' order.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from service.protocol.barrier import Barrier
from service.protocol.dml import StatementResult
from service.protocol.report import DmlReport, FragmentReport
from workers.runners.port import RunningEpoch
from workers.state_store.port import DmlOutcome, DmlWriter

_UNSUPPORTED: Final = "0A000"
"""SQLSTATE of a feature that is not supported."""


def run_statements(epoch: RunningEpoch) -> Sequence[FragmentReport]:
    """Run the statements that came with the barrier, in order. Raises what `DmlWriter.run` raises."""
    with epoch.working("statements"):
        done = _run(epoch.stores.dml, epoch.barrier)
    epoch.timings_ms["dml"] = (epoch.clock() - epoch.began) * 1000
    epoch.changed |= done.changed
    for relation, delta in done.key_count_deltas.items():
        epoch.key_count_deltas[relation] += delta
    for result, relation in zip(done.results, done.relations, strict=True):
        epoch.inserted[relation] += result.affected
        epoch.written[relation] += result.affected
    return (DmlReport(results=done.results, unfinished=done.unfinished),)


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
