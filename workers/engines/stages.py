"""Compute a stage's part of an epoch in the state store. No rows travel.

History is read by one transaction per actor, which appends the sums of groups to a log: rows of several actors add to
the same group (`workers.engines.group_merge`). A part that is the whole input is computed by one transaction for all
actors, and so are changes.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from workers.backfill.pace import STAGE_AIM
from workers.backfill.positions import BLOCK_VNODES, Positions
from workers.backfill.stages import Advance, Advances, BoundStage, Reached
from workers.engines.copiers import Copiers
from workers.engines.history import ActorHistory, outcome_of
from workers.engines.port import ActorOutcome, StageTask
from workers.state_store.port import NOTHING, CopyingStore, PageReader, StageSession


@dataclass
class StageEngine:
    """Computes one stage in one generation."""

    store: CopyingStore
    bound: BoundStage
    copiers: Copiers
    block_vnodes: int = BLOCK_VNODES

    def run(self, task: StageTask) -> list[ActorOutcome]:
        """Run one epoch. When this returns, every transaction is durable. Raises the errors of the store."""
        every = range(len(task.actors))
        together = self.bound.stage.is_whole or not task.reads
        shares = [every] if together else [range(one, one + 1) for one in every]
        runs = self.copiers.run([partial(self._compute, task, share) for share in shares])
        return [outcome for outcomes in runs for outcome in outcomes]

    def give_up(self) -> None:
        """Make `run` on another thread fail soon. Nothing of it can be written any more (I7)."""
        self.copiers.give_up()

    def _compute(self, task: StageTask, actors: range) -> list[ActorOutcome]:
        """Compute the changes, which the first actor reports, and the pages of some actors, in one transaction."""
        outcomes: list[ActorOutcome] = []
        complete = True
        with self.store.staging(self.bound, task.curr, allowed_seconds=task.allowed_seconds) as session:
            changes = NOTHING
            if 0 in actors and task.changed:
                changes = session.copy_changes(task.windows, task.changed, self._advances(task))
            for index in actors:
                history = self._read(session, task, index)
                complete = complete and not history.positions.next_block()
                written = {"inserted": history.copied + changes.written.inserted, "closed": changes.written.closed}
                outcomes.append(outcome_of({**history.report(), "upstream_rows": changes.read, **written}))
                changes = NOTHING
            made = session.end(task.at, whole=complete) if task.reads else 0
        outcomes[0] = replace(outcomes[0], inserted=outcomes[0].inserted + made)
        return outcomes

    def _advances(self, task: StageTask) -> Advances:
        """Return how far the driver was read before the epoch: changes behind that are those of later pages (I1)."""
        reached = Reached.of(one for actor in task.actors for one in actor.positions)
        if len(reached.completed) == self.bound.upstream.vnode_count:
            return {}
        return {self.bound.stage.driver.alias: Advance(reached, reached)}

    def _read(self, session: StageSession, task: StageTask, index: int) -> ActorHistory:
        def open_pages(_: Positions) -> AbstractContextManager[PageReader]:
            return nullcontext(lambda block, size: session.read_page(block, size, task.at))

        history = ActorHistory(task, index, open_pages, self.block_vnodes, STAGE_AIM)
        self.copiers.read(history)
        return history
