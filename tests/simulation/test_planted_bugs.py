"""The simulation bites: each mechanism, broken, is found within so many schedules.

Seeds are fixed, so that a planted bug is found at the same one every time; a check that got weaker shows here first.
Each test begins `near` the first schedule that found its bug.
Six are asked for by name: a skipped roll back, `<` for `<=`, buffered rows that are forgotten at a forced finish, a
vnode that a rescale loses, a scan that is released one actor early, an answer of an old generation. Next:
`tests.simulation.test_planted_bugs_of_graphs`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from service.domain.graph import GraphStatus, GraphView
from service.domain.job import Job
from service.domain.progress import ScanProgress
from service.operations.barriers import advance, recovery
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.protocol.dml import NOTHING_UNFINISHED, StatementResult, Unfinished
from service.protocol.ids import Epoch, GraphId, JobId, RelationId, Term
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.report import ActorReport, Collected, Failed
from service.protocol.vnodes import vnodes_of
from tests.simulation import simulation
from tests.simulation.faults import DEPOSED, ZOMBIES
from tests.simulation.finding import found
from tests.simulation.simulation import Simulation
from tests.support.fake_meta_jobs import FakeFragments, FakeRescaling
from tests.support.fake_meta_statements import FakeStatements
from tests.support.fake_meta_store import FakeBarriers, FakeGraphs, FakeStores
from tests.support.fake_meta_tables import FragmentRow
from tests.support.fake_state_store import FakeTables, StateStore, Writing
from tests.support.model import Arrangement, Key
from tests.support.planted import (
    ForgetsBufferedRowsAtAForcedFinish,
    ForgetsTheLastPage,
    MarksStrictly,
    ReadsAtPrev,
    loses_a_position,
    loses_a_vnode,
)
from workers.backfill.budget import Budget
from workers.backfill.positions import ONE_VNODE
from workers.backfill.scan import ScanState


def ends_soon(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule that does not come to rest takes long to say so. Without the bug this one does, in this time."""
    monkeypatch.setattr(simulation, "ENDS_WITHIN", 60.0)
    Simulation(seed).run()


class MarksStrictlyBesideItsUpstream(MarksStrictly):
    """As its parent, in NoShuffle scans only."""

    def visible(self, position: VnodePosition | None, key: Key) -> bool:
        beside = self.scan.block_vnodes == ONE_VNODE
        return super().visible(position, key) if beside else Arrangement.visible(self, position, key)


@pytest.mark.parametrize(
    ("arrangement", "near"),
    [
        (MarksStrictly, 73),
        pytest.param(MarksStrictlyBesideItsUpstream, 0, marks=pytest.mark.soak),
        (ForgetsBufferedRowsAtAForcedFinish, 3),
        (ForgetsTheLastPage, 3),
        (ReadsAtPrev, 26),
    ],
)
def test_a_broken_scan_is_found(arrangement: type[Arrangement], near: int) -> None:
    """I1."""
    assert "I1" in found(arrangement=arrangement, near=near)


def test_a_skipped_roll_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3."""

    async def skipped(world: World, view: GraphView, *, term: Term) -> None:
        await world.state_store.fences.fence(view.graph, view.generation, term=term)
        async with world.stores.begin(term) as tx:
            await tx.graphs.set_status(view.graph, GraphStatus.WAITING, now=world.clock.now())

    monkeypatch.setattr(recovery, "roll_back", skipped)
    found(near=13)


def test_an_answer_of_an_old_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I7."""
    answered = FakeBarriers.answer

    async def accepted(self: FakeBarriers, answer: Collected | Failed, *, now: datetime) -> bool:
        key = (answer.graph, answer.epoch)
        row = self.tables.history.get(key)
        if row is not None and row.state == "ABANDONED":
            self.tables.history.take(key)
            self.tables.barriers.put(key, replace(row, state="INJECTED"))
        return await answered(self, answer, now=now)

    monkeypatch.setattr(FakeBarriers, "answer", accepted)
    found(among=ZOMBIES, near=48)


def test_a_zombie_that_is_not_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I7."""

    def held(self: Writing) -> bool:
        del self
        return True

    monkeypatch.setattr(Writing, "held", held)
    found(among=ZOMBIES, near=129)


def test_a_deposed_leader_that_is_not_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I7."""

    def trusted(self: StateStore, term: Term) -> None:
        del self, term

    entered = FakeStores.enter

    async def enter(self: FakeStores, term: Term | None) -> object:
        del term
        return await entered(self, None)

    monkeypatch.setattr(StateStore, "assert_term", trusted)
    monkeypatch.setattr(FakeStores, "enter", enter)
    found(among=DEPOSED, near=38)


@pytest.mark.parametrize(("broken", "near"), [(loses_a_vnode, 57), (loses_a_position, 57)])
def test_a_broken_rescale_is_found(broken: object, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11."""
    monkeypatch.setattr("workers.backfill.scan.redistributed", broken)
    found(near=near)


def test_actors_of_no_shuffle_with_several_positions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1."""
    monkeypatch.setattr("workers.backfill.scan.ONE_VNODE", 2)
    assert "I1: actor" in found()


def test_tied_actors_that_are_rescaled_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: those of a NoShuffle scan are beside those of its upstream."""

    async def untied(self: FakeRescaling, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[Job]]:
        del self
        return dict.fromkeys(jobs, ())

    monkeypatch.setattr(FakeRescaling, "tied", untied)
    assert "I11" in found(near=55)


def test_a_view_that_is_created_one_actor_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6."""

    def early(self: ScanState) -> bool:
        return sum(not actor.positions.completed for actor in self.actors) <= (len(self.actors) > 1)

    monkeypatch.setattr(ScanState, "finished", property(early))
    found()


def test_a_scan_that_is_released_one_actor_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: the backfill order waits for all actors of all that comes before."""
    scans = FakeFragments._scans  # pyright: ignore[reportPrivateUsage]

    def through(self: FakeFragments, row: FragmentRow) -> bool:
        """Whether no more than one actor of a scan still reads."""
        positions = self.tables.positions.get(row.id, {})
        complete = {one for one, position in positions.items() if position.state is PositionState.COMPLETED}
        reading = [one for one in self.tables.of_fragment(row.id) if not complete.issuperset(vnodes_of(one.runs))]
        return len(reading) <= 1

    def early(self: FakeFragments, job: JobId) -> list[ScanProgress]:
        rows = {row.id: row for row in self.tables.of_job(job)}
        open_ = {
            self.tables.relations[row.upstream].relation.name
            for row in rows.values()
            if row.upstream is not None and not through(self, row)
        }
        return [replace(scan, awaits=tuple(one for one in scan.awaits if one in open_)) for scan in scans(self, job)]

    monkeypatch.setattr(FakeFragments, "_scans", early)
    found(near=4)


def test_a_pause_that_is_not_heeded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def heedless(self: ScanState, *, paused: bool) -> bool:
        del paused
        return not (self.waiting or self.finished)

    monkeypatch.setattr(ScanState, "may_read", heedless)
    assert "I4" in found()


def test_a_bucket_that_saves_up_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def saving(self: Budget, now: float, *, interval_seconds: float) -> Budget:
        del interval_seconds
        return replace(self, at=now, tokens=self.tokens + (self.limit or 0) * (now - self.at))

    monkeypatch.setattr(Budget, "refilled", saving)
    assert "I4" in found(near=6)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_pause_that_a_recovery_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgotten(self: FakeGraphs, graph: GraphId, **_: object) -> None:
        del self, graph

    ends_soon(3, monkeypatch)
    monkeypatch.setattr(FakeGraphs, "set_paused", forgotten)
    assert "it does not come to rest" in found(near=3)


def test_a_commit_that_forgets_an_actor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I6: what it read is downstream, and its position is not stored."""
    recorded = FakeFragments.record

    async def forgetful(self: FakeFragments, answers: Iterable[Collected], *, now: datetime) -> None:
        kept = [answer.model_copy(update={"reports": answer.of(ActorReport)[:-1]}) for answer in answers]
        await recorded(self, kept, now=now)

    monkeypatch.setattr(FakeFragments, "record", forgetful)
    found()


def test_statements_that_are_not_put_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: what an abandoned epoch carried is run again."""

    def forgotten(self: FakeGraphs, graph: GraphId, reason: str | None) -> None:
        del reason
        for key in [key for key in self.tables.barriers if key[0] == graph]:
            self.tables.barriers.take(key)

    ends_soon(1, monkeypatch)
    monkeypatch.setattr(FakeGraphs, "_forget", forgotten)
    found(near=1)


def test_a_statement_that_comes_back_after_its_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3."""
    finished = FakeStatements.finish

    async def finish(
        self: FakeStatements,
        results: Sequence[StatementResult],
        *,
        epoch: Epoch,
        now: datetime,
        unfinished: Unfinished = NOTHING_UNFINISHED,
    ) -> None:
        if epoch % 7:
            await finished(self, results, epoch=epoch, now=now, unfinished=unfinished)
            return
        for result in results:
            row = self.tables.statements[result.id]
            self.tables.statements.put(result.id, replace(row, carried_by=None))

    monkeypatch.setattr(FakeStatements, "finish", finish)
    assert "I3" in found()


def test_a_table_that_is_not_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def kept(self: FakeTables, relation: RelationId, name: str, *, term: Term) -> None:
        del self, relation, name, term

    monkeypatch.setattr(FakeTables, "drop", kept)
    assert "I9" in found()


def test_a_vacuum_that_heeds_no_pin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2."""

    def heedless(self: FakeTables, graph: GraphId, epoch: Epoch) -> Epoch:
        return min(epoch, self.store.published.get(graph, epoch))

    monkeypatch.setattr(FakeTables, "_advance", heedless)
    assert "I2" in found(near=81)


def test_an_epoch_that_is_shown_before_it_is_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2."""
    injected = advance._inject  # pyright: ignore[reportPrivateUsage]

    async def hasty(world: World, tx: Transaction, view: GraphView, *args: Any, **named: Any) -> None:
        await injected(world, tx, view, *args, **named)
        newest = (await tx.graphs.view(view.graph, now=named["now"], lease=timedelta())).newest
        await tx.visibility.publish(view.graph, newest, now=named["now"])

    monkeypatch.setattr(advance, "_inject", hasty)
    found(near=5)
