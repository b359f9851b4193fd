"""Compute an operator's part of an epoch in the state store: pass pages of its inputs, then follow all that is new.

One transaction does both. A page is only passed: its keys are counted, and the rows reach the stage as new versions of
its input (`workers.state_store.stage_delta`).
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from pydantic import BaseModel, ConfigDict

from service.protocol.ids import EpochField, RelationId
from service.protocol.plan import VnodePosition
from workers.backfill.actors import FragmentTask
from workers.backfill.positions import BLOCK_VNODES, Positions
from workers.backfill.stages import Advance, BoundStage, Reached, Window
from workers.engines.copiers import Copiers
from workers.engines.history import ActorHistory, outcome_of
from workers.engines.port import ActorOutcome
from workers.state_store.port import NOTHING, CopyingStore, PageReader, Replayed, StageSession


class OperatorTask(BaseModel):
    """An operator's epoch.

    `windows` are the changes of its inputs, and `changed` those relations that have any. `scans` has the inputs whose
    history was not read to its end before, by alias. With `anew`, no epoch of the job may have committed yet.
    `allowed_seconds` is as in `FragmentTask`.
    """

    model_config = ConfigDict(frozen=True)

    curr: EpochField
    windows: dict[RelationId, Window]
    changed: frozenset[RelationId]
    scans: dict[str, FragmentTask]
    anew: bool = False
    allowed_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class OperatorOutcome:
    """The outcomes of the scans' actors, by alias, and the numbers of versions read and written."""

    scans: Mapping[str, list[ActorOutcome]]
    replayed: Replayed


@dataclass
class OperatorEngine:
    """Computes one operator in one generation."""

    store: CopyingStore
    bound: BoundStage
    copiers: Copiers
    block_vnodes: int = BLOCK_VNODES

    def run(self, task: OperatorTask) -> OperatorOutcome:
        """Run one epoch. When this returns, its transaction is durable. Raises the errors of the store."""
        (outcome,) = self.copiers.run([partial(self._compute, task)])
        return outcome

    def give_up(self) -> None:
        """Make `run` on another thread fail soon. Nothing of it can be written any more (I7)."""
        self.copiers.give_up()

    def _compute(self, task: OperatorTask) -> OperatorOutcome:
        with self.store.staging(self.bound, task.curr, allowed_seconds=task.allowed_seconds) as session:
            histories = {alias: self._passed(session, task, alias) for alias in task.scans}
            advances = {alias: _advance(task.scans[alias], those) for alias, those in histories.items()}
            paged = any(one.before != one.after for one in advances.values())
            replayed = NOTHING
            if paged or task.changed or task.anew:
                replayed = session.copy_changes(task.windows, task.changed, advances, anew=task.anew)
        nothing = {"upstream_rows": 0, "inserted": 0, "closed": 0}
        outcomes = {
            alias: [outcome_of({**one.report(), **nothing}) for one in those] for alias, those in histories.items()
        }
        return OperatorOutcome(outcomes, replayed)

    def _passed(self, session: StageSession, task: OperatorTask, alias: str) -> list[ActorHistory]:
        """Pass the pages of one input, for each of its scan's actors."""
        relation = self.bound.of[alias]
        at = task.windows[relation.id].upto
        scan = task.scans[alias]

        def open_pages(_: Positions) -> AbstractContextManager[PageReader]:
            return nullcontext(lambda block, size: session.pass_page(relation, block, size, at))

        histories: list[ActorHistory] = []
        for index in range(len(scan.actors)):
            history = ActorHistory(scan, index, open_pages, self.block_vnodes)
            self.copiers.read(history)
            histories.append(history)
        return histories


def _advance(scan: FragmentTask, histories: list[ActorHistory]) -> Advance:
    before: list[VnodePosition] = [one for actor in scan.actors for one in actor.positions]
    after = [one for history in histories for one in history.positions.by_vnode.values()]
    return Advance(Reached.of(before), Reached.of(after))
