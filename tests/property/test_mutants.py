"""The schedules of `test_arrangement` bite: each planted bug breaks an invariant within a few hundred walks.

Seeds are fixed, so a mutant is found at the same walk every time; a check that got weaker shows here first.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from service.protocol.ids import Vnode
from service.protocol.plan import ActorPlan, HistoryScanPlan, PositionState, ScanType, TableScanPlan, VnodePosition
from service.protocol.vnodes import Runs
from tests.support.arrangement import INTERLEAVING, INTERVAL, World, random_walk
from tests.support.model import Arrangement, Half, Key, Marks, Passed, Reading, VersionedTable
from tests.support.planted import (
    ForgetsBufferedRowsAtAForcedFinish,
    ForgetsTheLastPage,
    MarksStrictly,
    ReadsAtPrev,
    loses_a_position,
)
from workers.backfill.budget import Budget
from workers.backfill.positions import Block, Page, Positions, redistributed
from workers.backfill.scan import ActorState, ScanState

WALKS = 300


def found(
    *,
    world: type[World] = World,
    executor: type[Arrangement] = Arrangement,
    scan_type: ScanType = ScanType.ARRANGEMENT_BACKFILL,
) -> str | None:
    """Return what the first failing walk says, or None."""
    for seed in range(WALKS):
        try:
            random_walk(seed, world=world, executor=executor, scan_type=scan_type)
        except AssertionError as failure:
            return str(failure) or "an assertion"
    return None


class MarksByTheNewPosition(Arrangement):
    """A page row and a change of one key meet in an epoch."""

    def run(self, actor: ActorState, prev: int, curr: int, reading: Reading | None) -> None:
        if reading is not None:
            self.read(actor, curr, curr, reading)
        self.forward(actor, prev, curr, dict(actor.positions.by_vnode))
        self.passed(Passed("after_pages", actor.id))


class ForwardsForNotStarted(Arrangement):
    """A vnode without a position forwards its changes, and reads them again later."""

    def visible(self, position: VnodePosition | None, key: Key) -> bool:
        return True if position is None else super().visible(position, key)


class DropsForCompleted(Arrangement):
    """Changes are evaluated only where a position is in progress (a hazard of the reference)."""

    def marked(self, changes: Sequence[Half], marks: Marks) -> list[Half]:
        evaluated = any(position.state is PositionState.IN_PROGRESS for position in marks.values())
        return super().marked(changes, marks) if evaluated else []


class ForgetsHalfVisibleUpdates(Arrangement):
    """Both halves are dropped unless both are visible."""

    def marked(self, changes: Sequence[Half], marks: Marks) -> list[Half]:
        visible = super().marked(changes, marks)
        hidden_rows = {half.row[0] for half in changes if half not in visible}
        return [half for half in visible if half.row[0] not in hidden_rows]


@pytest.mark.parametrize("scan_type", INTERLEAVING)
@pytest.mark.parametrize(
    "executor",
    [
        MarksStrictly,
        MarksByTheNewPosition,
        ReadsAtPrev,
        ForgetsTheLastPage,
        ForgetsBufferedRowsAtAForcedFinish,
        ForwardsForNotStarted,
        DropsForCompleted,
        ForgetsHalfVisibleUpdates,
    ],
)
def test_a_broken_executor_is_found(executor: type[Arrangement], scan_type: ScanType) -> None:
    assert found(executor=executor, scan_type=scan_type) is not None


def test_actors_of_no_shuffle_with_several_positions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.backfill.scan.ONE_VNODE", 2)
    assert (found(scan_type=ScanType.BACKFILL) or "").startswith("an actor with")


class LosesAVnode(World):
    """The last vnode belongs to nobody after a rescale or a recovery."""

    def actor_plans(self, actors: int) -> tuple[ActorPlan, ...]:
        plans = super().actor_plans(actors)
        (first, last), *_ = plans[-1].vnodes
        if len(plans) == 1 or first == last:
            return plans
        return (*plans[:-1], plans[-1].model_copy(update={"vnodes": ((first, last - 1),)}))


class ForgetsPositions(World):
    """The last actor starts from nothing after a recovery."""

    def actor_plans(self, actors: int) -> tuple[ActorPlan, ...]:
        plans = super().actor_plans(actors)
        return (*plans[:-1], plans[-1].model_copy(update={"positions": ()}))


class SharesAVnode(World):
    """Two actors own one vnode after a rescale or a recovery."""

    def actor_plans(self, actors: int) -> tuple[ActorPlan, ...]:
        plans = super().actor_plans(actors)
        if len(plans) == 1:
            return plans
        (first, last), *_ = plans[0].vnodes
        shared = plans[0].model_copy(update={"vnodes": ((first, last + 1),)})
        return (shared, *plans[1:])


@pytest.mark.parametrize("world", [LosesAVnode, ForgetsPositions, SharesAVnode])
def test_a_broken_rescale_is_found(world: type[World]) -> None:
    assert found(world=world) is not None


def forgets_rows(held: Sequence[Positions], owned: Sequence[Runs]) -> list[Positions]:
    """Positions move, their rows do not."""
    dealt = redistributed(held, owned)
    for positions in dealt:
        moved = {vnode: one.model_copy(update={"rows": 0}) for vnode, one in positions.by_vnode.items()}
        positions.by_vnode.update(moved)
    return dealt


def goes_by_the_actors_order(held: Sequence[Positions], owned: Sequence[Runs]) -> list[Positions]:
    """Each new actor takes the positions of the old one in its place, whatever its vnodes are."""
    dealt = redistributed(held, owned)
    for old, new in zip(held, dealt, strict=False):
        new.by_vnode = dict(old.by_vnode)
    return dealt


@pytest.mark.parametrize("broken", [loses_a_position, forgets_rows, goes_by_the_actors_order])
def test_a_broken_redistribution_is_found(broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """I11."""
    monkeypatch.setattr("workers.backfill.scan.redistributed", broken)
    assert found() is not None


def test_a_rescale_that_fills_the_buckets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rescaled = ScanState.rescale

    def full(self: ScanState, plans: Sequence[ActorPlan], *, now: float) -> None:
        rescaled(self, plans, now=now)
        for actor in self.actors:
            if actor.budget.limit:
                actor.budget = replace(actor.budget, tokens=max(1.0, actor.budget.limit * INTERVAL))

    monkeypatch.setattr(ScanState, "rescale", full)
    assert "I4" in (found() or "")


def test_a_rescale_that_lifts_the_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rescaled = ScanState.rescale

    def unlimited(self: ScanState, plans: Sequence[ActorPlan], *, now: float) -> None:
        rescaled(self, plans, now=now)
        self.throttle(None, now=now)

    monkeypatch.setattr(ScanState, "rescale", unlimited)
    assert "I4" in (found() or "")


def test_a_skipped_roll_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def skipped(self: VersionedTable, epoch: int) -> None:
        del self, epoch

    monkeypatch.setattr(VersionedTable, "roll_back", skipped)
    assert found() is not None


def test_a_roll_back_that_reopens_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: VersionedTable, epoch: int) -> None:
        self.versions = [version for version in self.versions if version.start <= epoch]

    monkeypatch.setattr(VersionedTable, "roll_back", half)
    assert found() is not None


def test_completing_a_vnode_that_has_more_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Positions.record

    def generous(self: Positions, block: Block, page: Page) -> None:
        recorded(self, block, page)
        for vnode in page.reached:
            rows = self.by_vnode[vnode].rows
            self.by_vnode[vnode] = VnodePosition(vnode=Vnode(vnode), state=PositionState.COMPLETED, rows=rows)

    monkeypatch.setattr(Positions, "record", generous)
    assert found() is not None


def test_positions_that_are_not_reported_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Positions.take_changed

    def forgetful(self: Positions) -> tuple[VnodePosition, ...]:
        return taken(self)[1:]

    monkeypatch.setattr(Positions, "take_changed", forgetful)
    assert found() is not None


def test_a_bucket_that_recovers_full_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    built = ScanState.of

    def full(plan: HistoryScanPlan, *, now: float) -> ScanState:
        state = built(plan, now=now)
        for actor in state.actors:
            if actor.budget.limit:
                actor.budget = replace(actor.budget, tokens=max(1.0, actor.budget.limit * INTERVAL))
        return state

    monkeypatch.setattr(ScanState, "of", full)
    assert "I4" in (found() or "")


def test_a_bucket_that_saves_up_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def saving(self: Budget, now: float, *, interval_seconds: float) -> Budget:
        del interval_seconds
        return replace(self, at=now, tokens=self.tokens + (self.limit or 0) * (now - self.at))

    monkeypatch.setattr(Budget, "refilled", saving)
    assert "I4" in (found() or "")


def test_a_limit_that_a_recovery_forgets_is_found() -> None:
    class Forgets(World):
        def plan(self) -> TableScanPlan:
            return super().plan().model_copy(update={"rate_limit": None})

    assert "I4" in (found(world=Forgets) or "")


def test_a_place_in_the_order_that_a_recovery_forgets_is_found() -> None:
    class Forgets(World):
        def plan(self) -> TableScanPlan:
            created = self.newest == 1
            return super().plan().model_copy(update={} if created else {"waiting": False})

    assert "I4" in (found(world=Forgets) or "")


def test_a_scan_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(self: ScanState, *, paused: bool) -> bool:
        return not paused and not self.finished

    monkeypatch.setattr(ScanState, "may_read", eager)
    assert "I4" in (found() or "")


def test_the_walks_find_nothing_where_nothing_is_planted() -> None:
    assert found() is None
