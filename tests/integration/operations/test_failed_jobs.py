"""A created view that has failed stays as it was, and goes no sooner than what reads it; what is gone is removed."""

from collections.abc import AsyncGenerator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from service.domain.graph import Abandon, Inject, RollBack
from service.domain.job import JobEvent, JobState
from service.operations.barriers import recovery
from service.operations.jobs import lifecycle
from service.operations.status.staleness import notices_of
from service.protocol.barrier import BarrierKind
from service.protocol.ids import DATABASE_GRAPH, JobId
from service.protocol.mutation import Add, Stop
from service.protocol.relation import RelationKind
from service.protocol.report import Failed, JobFailure
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, WORKER, add_created, add_creating, new_table, new_view

pytestmark = pytest.mark.postgres


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


async def failed_and_reader(leader: Leader) -> tuple[JobId, JobId]:
    """Store a view that has failed and one over it that has not, and start a generation."""
    async with leader.stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        failed = await add_created(tx, new_view("v", table.relation))
        reader = await add_created(tx, new_view("m", failed.relation))
        await tx.jobs.move(failed.id, JobEvent.FAILED, now=NOW, error="a bad row")
    await leader.queue(None)
    await leader.barrier()
    return failed.id, reader.id


async def drop(leader: Leader) -> None:
    """Ask for the drop of both; to wait until they are gone takes no time here."""
    await lifecycle.drop(leader.world, "v", RelationKind.MATERIALIZED_VIEW, cascade=True, asked_by=A_TEST)


async def test_it_leaves_with_the_barrier_that_stops_what_reads_it(leader: Leader) -> None:
    """I9."""
    failed, reader = await failed_and_reader(leader)
    await drop(leader)
    async with leader.stores.begin() as tx:
        assert await tx.catalog.named("v") is not None
        assert await tx.cleanups.all() == []
    barrier = await leader.barrier()
    assert barrier.mutation == Stop(jobs=(failed, reader))
    assert [await leader.state_of(one) for one in (failed, reader)] == [JobState.DROPPED] * 2


async def test_a_create_that_failed_costs_no_later_select(leader: Leader) -> None:
    """Its job stays in the history for ever; nobody reads the catalog for it."""
    async with leader.stores.begin() as tx:
        failed = await add_creating(tx, new_table("bad"))
        await tx.jobs.move(failed.id, JobEvent.FAILED, now=NOW, error="refused")
        await tx.catalog.remove(failed.relation)
        await add_created(tx, new_table("good"))
        tx.catalog.all = AsyncMock()
        assert await notices_of(tx, ["good"]) == ()
    tx.catalog.all.assert_not_called()


async def test_no_generation_starts_it_again(leader: Leader) -> None:
    """Also one whose first barrier was decided upon before the drop was asked for."""
    failed, reader = await failed_and_reader(leader)
    await leader.recover()
    async with leader.stores.begin() as tx:
        await tx.jobs.move(failed, JobEvent.DROP_ASKED, now=NOW)
    barrier = await leader.barrier()
    assert barrier.kind is BarrierKind.INITIAL
    assert barrier.graph == DATABASE_GRAPH
    assert isinstance(barrier.mutation, Add)
    added = [plan.id for plan in barrier.mutation.jobs]
    assert reader in added
    assert failed not in added


async def fails(leader: Leader, **how: Any) -> None:
    """Answer the barrier in flight with a failure."""
    async with leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
        assert barrier is not None
        of = {"worker": WORKER, "graph": DATABASE_GRAPH, "generation": barrier.generation, "epoch": barrier.curr}
        assert await tx.barriers.answer(Failed(**of, **how), now=NOW)


async def test_jobs_that_fail_in_one_epoch_cost_one_recovery(leader: Leader) -> None:
    """I13."""
    async with leader.stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        created = [(await add_created(tx, new_view(f"v{n}", table.relation))).id for n in range(3)]
        sound = (await add_created(tx, new_view("sound", table.relation))).id
    await leader.queue(None)
    started = await leader.barrier()
    await leader.queue(None)
    assert isinstance(await leader.look(), Inject)
    others = tuple(JobFailure(job=job, error=f"no {n}") for n, job in enumerate(created[1:], 1))
    await fails(leader, error="no 0", job=created[0], deterministic=True, others=others)
    looks = [type(await leader.look()) for _ in range(3)]
    assert looks == [Abandon, RollBack, Inject]
    again = await leader.answered()
    assert again.generation == started.generation + 1
    async with leader.stores.begin() as tx:
        ended = [await tx.jobs.get(job) for job in created]
        assert [(job.state, job.error) for job in ended if job] == [(JobState.FAILED, f"no {n}") for n in range(3)]
    assert await leader.state_of(sound) == JobState.CREATED


async def test_a_long_list_of_failed_jobs_costs_what_the_jobs_of_the_graph_cost(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: a hundred thousand jobs that are none were looked up one by one, by the transaction that all waited for."""
    async with leader.stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        view = (await add_created(tx, new_view("v", table.relation))).id
    await leader.queue(None)
    await leader.barrier()
    await leader.queue(None)
    assert isinstance(await leader.look(), Inject)
    listed = [JobId(1_000_000 + n) for n in range(100)] + [view] * 100
    await fails(leader, error="bad rows", others=tuple(JobFailure(job=job, error="a bad row") for job in listed))
    fail = AsyncMock(wraps=recovery.fail)
    monkeypatch.setattr(recovery, "fail", fail)
    assert isinstance(await leader.look(), Abandon)
    assert [call.args[1] for call in fail.await_args_list] == [view]
    assert await leader.state_of(view) == JobState.FAILED


async def test_what_was_dropped_is_removed_while_a_barrier_is_in_flight(leader: Leader) -> None:
    """I9."""
    await failed_and_reader(leader)
    await drop(leader)
    await leader.barrier()
    async with leader.stores.begin() as tx:
        assert len(await tx.cleanups.all()) == 2
    await leader.queue(None)
    assert isinstance(await leader.look(), Inject)
    assert await recovery.clean_up(leader.world, term=leader.term)
    async with leader.stores.begin() as tx:
        assert await tx.cleanups.all() == []
