"""Compute a stage's part of an epoch in the state store. No rows travel.

History is read by one transaction per actor, which appends the sums of groups to a log: rows of several actors add to
the same group (`workers.engines.group_merge`). A part that is the whole input is computed by one transaction for all
actors, and so are changes.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

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
        # Those that have read the least come first, because late ones have to wait for the next epoch.
        ordered = sorted(shares, key=lambda share: sum(one.rows for one in task.actors[share[0]].positions))
        turns = _ReadingTurns(self.copiers.at_once, time.monotonic())  # noqa: TID251 - the task owns the clock of its slice
        runs = self.copiers.run([partial(self._compute, task, share, turns) for share in ordered])
        return sorted((outcome for outcomes in runs for outcome in outcomes), key=lambda one: one.actor)

    def give_up(self) -> None:
        """Make `run` on another thread fail soon. Nothing of it can be written any more (I7)."""
        self.copiers.give_up()

    def _compute(self, task: StageTask, actors: range, turns: "_ReadingTurns") -> list[ActorOutcome]:
        """Compute the changes, which the first actor reports, and the pages of some actors, in one transaction."""
        outcomes: list[ActorOutcome] = []
        complete = True
        with self.store.staging(self.bound, task.curr, allowed_seconds=task.allowed_seconds) as session:
            changes = NOTHING
            if 0 in actors and task.changed:
                changes = session.copy_changes(task.windows, task.changed, self._advances(task))
            for index in actors:
                history = self._read(session, task, index, turns)
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

    def _read(self, session: StageSession, task: StageTask, index: int, turns: "_ReadingTurns") -> ActorHistory:
        def open_pages(_: Positions) -> AbstractContextManager[PageReader]:
            return nullcontext(lambda block, size: session.read_page(block, size, task.at))

        history = ActorHistory(task, index, open_pages, self.block_vnodes, STAGE_AIM, began=turns.began)
        if turns.begins(history):
            self.copiers.read(history)
        return history


@dataclass
class _ReadingTurns:
    """The actors that begin to read in an epoch: those that begin at once, and others while the slice lasts. Each of
    800 would else read a page, however long it takes.
    """

    left: int
    began: float
    """When the slice of all actors began."""
    _lock: Lock = field(default_factory=Lock)

    def begins(self, history: ActorHistory) -> bool:
        """Whether an actor reads."""
        if history.over:
            return False
        with self._lock:
            self.left -= 1
            return self.left >= 0 or history.more_time
