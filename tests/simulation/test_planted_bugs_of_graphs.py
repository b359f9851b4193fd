"""The simulation bites, as in `test_planted_bugs`: what is broken here are graphs that run side by side (I10), and jobs
that go from one to the other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from service.domain.graph import Abandon, Effect, GraphView, Wait
from service.domain.job import HOLDS_PERMIT
from service.operations.barriers import advance, effects, recovery
from service.operations.jobs import queue
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.records import Command
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId, RelationId, Term
from service.protocol.mutation import Mutation
from service.protocol.plan import JobPlan
from service.protocol.relation import Relation
from tests.simulation.faults import STUCK
from tests.simulation.finding import found
from tests.simulation.kernel import Kernel
from tests.simulation.worker_process import StopEvent, TaskStore, Turn
from tests.support.fake_meta_snapshots import FakeSnapshots
from tests.support.fake_meta_store import FakeGraphs
from tests.support.fake_state_store import FakeFences
from workers.agent import Agent, Executor
from workers.backfill.reading import Reading, Replay, interleaved


def test_a_vacuum_that_heeds_no_snapshot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what a snapshot job has yet to read is gone."""

    async def heedless(self: FakeSnapshots) -> None:
        del self

    monkeypatch.setattr(FakeSnapshots, "pinned", heedless)
    found()


def test_a_recovery_that_takes_a_merged_job_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: what its own graph has committed is durable."""

    async def forgotten(self: FakeSnapshots) -> Mapping[RelationId, Epoch]:
        del self
        return {}

    monkeypatch.setattr(FakeSnapshots, "settled", forgotten)
    found(near=184)


def test_a_merge_that_loses_what_is_left_of_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the first epoch in the database graph reads the changes since the last replayed one."""

    def since_the_last_barrier(*, since: Epoch, curr: Epoch) -> Reading:
        return (
            interleaved(since=max(since, Epoch(curr - 1)), curr=curr)
            if since < curr
            else interleaved(since=since, curr=curr)
        )

    monkeypatch.setattr("workers.runners.stage_scan.interleaved", since_the_last_barrier)
    assert "I1" in found(near=52)


def test_a_span_that_is_replayed_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stays(self: Replay, reading: Reading, upto: Epoch) -> None:
        del self, reading, upto

    monkeypatch.setattr(Replay, "replayed", stays)
    found()


def test_a_look_that_sees_only_what_began_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what was only deleted, while a job followed the log from afar, is a change as well."""

    def began(self: TaskStore, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        return any(after < version.start <= upto for version in self.table(relation.id).versions)

    monkeypatch.setattr(TaskStore, "changed", began)
    assert "I1" in found(near=163)


def test_a_graph_that_is_not_retired_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: the state store forgets it as well."""

    async def kept(self: FakeFences, graph: GraphId, generation: Generation, *, term: Term) -> None:
        await self.fence(graph, generation, term=term)

    monkeypatch.setattr(FakeFences, "retire", kept)
    assert "I9" in found()


def test_a_limit_that_does_not_follow_its_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: it was asked for in the database graph, before the job had one of its own."""

    async def stays(tx: Transaction, plan: JobPlan, graph: GraphId, *, now: datetime) -> None:
        del tx, plan, graph, now

    monkeypatch.setattr(queue, "follow", stays)
    assert "I4" in found(near=81)


def test_a_limit_that_followed_its_job_and_is_taken_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: the database graph carries it later than what was asked for since."""

    async def whole(tx: Transaction, commands: Collection[Command]) -> Sequence[Mutation | None]:
        del tx
        return [command.mutation for command in commands]

    monkeypatch.setattr(effects, "shares_of", whole)
    assert "I4" in found(near=351)


def test_an_epoch_that_comes_after_another_graphs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: with checkpoints that cover several barriers. Where what is controlled follows the epoch before it, I4 is
    seen to be broken first.
    """
    seen = FakeGraphs.view

    async def of_all(self: FakeGraphs, graph: GraphId, *, now: datetime, lease: timedelta) -> GraphView:
        view = await seen(self, graph, now=now, lease=lease)
        return view if view.attached is None else replace(view, attached=view.newest)

    monkeypatch.setattr(FakeGraphs, "view", of_all)
    said = found(near=8)
    assert "I3" in said or "I4" in said


# --- side by side -------------------------------------------------------------------------------------------------


def test_a_worker_that_runs_one_epoch_at_a_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: the database graph's lane waits for no other."""
    ran = Agent._run_barrier  # pyright: ignore[reportPrivateUsage]
    turns: dict[tuple[Kernel, str], Turn] = {}

    def in_turn(self: Agent, executor: Executor, barrier: Barrier) -> None:
        assert isinstance(self.stop, StopEvent)
        kernel = self.stop.place.kernel
        with turns.setdefault((kernel, self.registration.worker), Turn(kernel)):
            ran(self, executor, barrier)

    monkeypatch.setattr(Agent, "_run_barrier", in_turn)
    assert "I10" in found(among=STUCK, near=345)


def test_a_leader_that_looks_at_one_graph_at_a_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10."""
    proceeded = advance.proceed
    looking: set[int] = set()

    async def in_turn(world: World, graph: GraphId, *, term: Term) -> Sequence[Effect]:
        process = id(world)
        if process in looking:
            return [Wait(world.clock.now() + timedelta(milliseconds=50), "another graph is looked at")]
        looking.add(process)
        try:
            return await proceeded(world, graph, term=term)
        finally:
            looking.discard(process)

    monkeypatch.setattr(advance, "proceed", in_turn)
    assert "I10" in found(among=STUCK)


def test_a_worker_that_is_given_up_for_a_stuck_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: it may well run the epochs of the database graph."""
    abandoned = recovery.abandon

    async def given_up(world: World, tx: Transaction, view: GraphView, effect: Abandon, *, now: datetime) -> None:
        await abandoned(world, tx, view, effect, now=now)
        if view.worker is not None and not view.policy.shared and effect.failure is None:
            await tx.workers.give_up(view.worker)

    monkeypatch.setattr(advance.recovery, "abandon", given_up)
    assert "I10" in found(among=STUCK, near=457)


def test_a_job_that_shares_a_worker_although_it_has_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(self: FakeGraphs, graph: GraphId) -> GraphId:
        del self, graph
        return DATABASE_GRAPH

    monkeypatch.setattr(FakeGraphs, "_serving", shared)
    assert "I10" in found()


def test_s2_a_vacuum_that_heeds_no_job_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what a job in a graph of its own has yet to read is gone."""

    async def pinned(self: FakeSnapshots) -> Epoch | None:
        jobs = {one.job: self.tables.jobs[one.job].job.state for one in self.tables.snapshots.values()}
        rows = [one for one in self.tables.snapshots.values() if jobs[one.job] in HOLDS_PERMIT]
        return min([one.epoch if one.consumed is None else one.consumed for one in rows], default=None)

    monkeypatch.setattr(FakeSnapshots, "pinned", pinned)
    found(near=34)
