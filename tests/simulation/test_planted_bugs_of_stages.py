"""The simulation bites, as in `test_planted_bugs`: what is broken here are views of stages."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from service.domain.job import Job
from service.ports.records import NewJob
from service.protocol.ids import Epoch, JobId, RelationId
from service.protocol.report import FragmentReport
from tests.simulation.finding import found
from tests.simulation.stage_session import Session
from tests.support.fake_meta_jobs import FakeJobs, FakePlans
from tests.support.fake_state_store import StoredTable
from workers.backfill.actors import FragmentTask
from workers.backfill.stages import Advance, Advances, Window, Windows
from workers.engines import operators
from workers.engines.history import ActorHistory
from workers.engines.port import StageTask
from workers.engines.stages import StageEngine
from workers.runners.operators import Operator
from workers.runners.port import RunningEpoch
from workers.runners.stage_scan import StageScan

_windows = StageScan._windows  # pyright: ignore[reportPrivateUsage]
_changed = StageScan._changed  # pyright: ignore[reportPrivateUsage]
_at = StageScan._at  # pyright: ignore[reportPrivateUsage]
_merge = StageScan._merge  # pyright: ignore[reportPrivateUsage]
_advance = operators._advance  # pyright: ignore[reportPrivateUsage]


def test_a_window_that_begins_at_the_graphs_epoch_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the job's own relations may have been written since that epoch, in another graph."""

    def of_the_graph(self: StageScan, epoch: RunningEpoch) -> dict[RelationId, Window]:
        own = Window(epoch.barrier.prev, epoch.barrier.curr)
        return {one: own if one in self.own else window for one, window in _windows(self, epoch).items()}

    monkeypatch.setattr(StageScan, "_windows", of_the_graph)
    said = found(near=883, staging=True)
    assert "I1" in said or "I6" in said


@pytest.mark.soak
def test_a_window_that_forgets_what_is_left_of_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the first epoch in the database graph reads the changes since the last replayed one."""

    def since_the_last_barrier(self: StageScan, epoch: RunningEpoch) -> dict[RelationId, Window]:
        if epoch.readings.get(self.job) is None:
            self.consumed = None
        return _windows(self, epoch)

    monkeypatch.setattr(StageScan, "_windows", since_the_last_barrier)
    assert "I1" in found(staging=True)


def test_a_stage_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: its input is not complete."""
    added = FakeJobs.add

    async def at_once(self: FakeJobs, new: NewJob, *, now: datetime, by: str = "") -> Job:
        return await added(self, replace(new, order=()) if new.hidden else new, now=now, by=by)

    monkeypatch.setattr(FakeJobs, "add", at_once)
    assert "I1" in found(near=3, staging=True)


def test_changes_before_the_end_of_history_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what they touch has yet to be read."""
    ran = StageScan.run

    def too_early(self: StageScan, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        changed = frozenset(epoch.changed.intersection(self.reads))
        if changed and not (self.state.finished or self.bound.stage.is_projection):
            task = StageTask(
                curr=epoch.barrier.curr,
                actors=self.actor_tasks([0 for _ in self.state.actors]),
                page_rows=1,
                windows=_windows(self, epoch),
                changed=changed,
                at={},
            )
            for one in self._compute(epoch, task):  # pyright: ignore[reportPrivateUsage]
                epoch.wrote(self.target.id, inserted=one.inserted, ended=one.closed)
        return ran(self, epoch)

    def whole(_engine: StageEngine, _task: StageTask) -> Advances:
        return {}

    monkeypatch.setattr(StageScan, "run", too_early)
    monkeypatch.setattr(StageEngine, "_advances", whole)
    assert "I1" in found(near=3, staging=True)


def test_history_that_is_read_at_the_present_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the other inputs are read as of the pinned epoch as well."""

    def now(self: StageScan, epoch: RunningEpoch, relation: RelationId) -> Epoch:
        return _at(self, epoch, relation) if relation == self.bound.upstream.id else epoch.barrier.curr

    monkeypatch.setattr(StageScan, "_at", now)
    assert "I1" in found(near=63, staging=True)


@pytest.mark.soak
def test_a_first_epoch_that_does_not_ask_what_has_changed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: this epoch's runners do not know of the time before it."""

    def as_told(self: StageScan, epoch: RunningEpoch, windows: Mapping[RelationId, Window]) -> frozenset[RelationId]:
        consumed, self.consumed = self.consumed, None
        changed = _changed(self, epoch, windows)
        self.consumed = consumed
        return changed

    monkeypatch.setattr(StageScan, "_changed", as_told)
    assert "I1" in found(staging=True)


def test_a_recovery_that_forgets_hidden_relations_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: what an epoch wrote there that was never committed."""
    written = FakePlans.outputs

    async def named(self: FakePlans, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[RelationId]]:
        return {job: outputs[-1:] for job, outputs in (await written(self, jobs)).items()}

    monkeypatch.setattr(FakePlans, "outputs", named)
    found(near=60, staging=True)


def test_an_only_part_that_is_computed_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: it is computed once, when all history was read."""
    ended = Session.end

    def always(self: Session, at: Mapping[RelationId, Epoch], *, whole: bool) -> int:
        del whole
        return ended(self, at, whole=True)

    monkeypatch.setattr(Session, "end", always)
    found(near=23, staging=True)


def test_groups_that_are_merged_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the groups of a vnode are merged once, when all history was read."""
    ran = StageScan.run

    def too_early(self: StageScan, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        if self.merges and not self.state.finished and not epoch.paused:
            _merge(self, epoch)
        return ran(self, epoch)

    monkeypatch.setattr(StageScan, "run", too_early)
    found(near=3, staging=True)


def test_a_merge_that_begins_anew_after_a_recovery_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: the vnodes that were merged have their groups."""

    def every(self: Session) -> list[int]:
        return sorted({one.vnode for one in self.target.partials or ()})

    monkeypatch.setattr(Session, "unmerged", every)
    found(near=898, staging=True)


@pytest.mark.soak
def test_a_recovery_that_forgets_partial_groups_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: pages of an epoch that was never committed are read again."""
    rolled_back = StoredTable.roll_back

    def kept(self: StoredTable, epoch: int) -> None:
        partials = self.partials
        rolled_back(self, epoch)
        self.partials = partials

    monkeypatch.setattr(StoredTable, "roll_back", kept)
    assert "I1" in found(near=772, staging=True)


def test_a_scan_that_finishes_before_its_groups_are_merged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what the scan reports last is the end of the merge."""
    monkeypatch.setattr(StageScan, "history_over", property(lambda self: self.state.finished))
    found(near=3, staging=True)


def test_an_operator_that_sees_more_than_was_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: a change after the position reaches the stage, and later the page once more."""

    def whole(scan: FragmentTask, histories: list[ActorHistory]) -> Advance:
        after = _advance(scan, histories).after
        return Advance(after, after)

    monkeypatch.setattr(operators, "_advance", whole)
    assert "I1" in found(staging=True)


def test_one_prefix_for_both_sides_of_a_self_join_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I1: each occurrence of a relation has its own positions."""
    computed = Session.copy_changes

    def alike(self: Session, windows: Windows, changed: Collection[RelationId], *given: Any, anew: bool = False) -> Any:
        advances: Advances = next(iter(given), {})
        of = {self.meaning.bound.of[alias].id: one for alias, one in advances.items()}
        mine = {alias: of[self.meaning.bound.of[alias].id] for alias in advances}
        return computed(self, windows, changed, mine, anew=anew)

    monkeypatch.setattr(Session, "copy_changes", alike)
    assert "I1" in found(near=15, staging=True)


@pytest.mark.soak
def test_an_operator_that_is_blind_while_nothing_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I5: what was read changes also while its scan is paused or waits."""
    ran = Operator.run

    def later(self: Operator, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        return ran(self, epoch) if self.finished or self.readers(paused=epoch.paused) else ()

    monkeypatch.setattr(Operator, "run", later)
    said = found(staging=True)
    assert "I1" in said or "it does not come to rest" in said
