"""What a barrier carries when several commands wait: one mutation, which may add several jobs."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from service.domain.barrier import Commit, Inject, Publish, Wait
from service.domain.leadership import LEASE
from service.meta_store.stores import PostgresStores
from service.operations.barriers import ADDED_TOGETHER, advance
from service.operations.world import World
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, CommandId, JobId, Term
from service.protocol.mutation import Add, Mutation, Pause, Resume
from service.protocol.plan import FragmentKind
from service.protocol.report import ActorReport
from tests.support.http import world_of
from tests.support.meta_store import (
    NOW,
    WORKER,
    add_created,
    add_creating,
    collected,
    migrated,
    new_table,
    new_view,
    running,
)

pytestmark = pytest.mark.postgres


class Shown:
    """A state store that shows whatever it is told to: the barriers under test write nothing."""

    async def publish(self, *_: object, **__: object) -> None:
        return


class Leader:
    """Advances the graph and answers for its worker."""

    def __init__(self, stores: PostgresStores, term: Term) -> None:
        self.stores, self.term = stores, term
        ports: dict[str, Any] = {"tables": Shown()}
        self.world: World = world_of(stores, **ports)

    async def queue(self, mutation: Mutation | None) -> CommandId:
        async with self.stores.begin() as tx:
            return await tx.commands.add(DATABASE_GRAPH, mutation, asked_by="a test", now=NOW)

    async def add_views(self, count: int, *, named: str) -> tuple[list[JobId], list[CommandId]]:
        """Store creating views and queue the command that adds each."""
        async with self.stores.begin() as tx:
            table = await tx.catalog.named("t")
            upstream = (await add_created(tx, new_table("t"))).relation if table is None else table.relation.id
            jobs = [(await add_creating(tx, new_view(f"{named}{n}", upstream))).id for n in range(count)]
            plans = {plan.id: plan for plan in await tx.jobs.plans(jobs)}
        return jobs, [await self.queue(Add(jobs=(plans[job],))) for job in jobs]

    async def barrier(self, *actors: ActorReport) -> Barrier:
        """Have the next barrier injected, collected, committed and published; return it."""
        assert isinstance(await self.look(), Inject)
        async with self.stores.begin() as tx:
            barrier = await tx.barriers.for_worker(WORKER, DATABASE_GRAPH)
            assert barrier is not None
            assert await tx.barriers.answer(collected(barrier.curr, *actors), now=NOW)
        assert isinstance(await self.look(), Commit)
        assert isinstance(await self.look(), Publish)
        return barrier

    async def epoch_of(self, command: CommandId) -> int | None:
        async with self.stores.begin() as tx:
            found = await tx.commands.get(command)
        assert found is not None
        return found.epoch if found.done else None

    async def state_of(self, job: JobId) -> str:
        async with self.stores.begin() as tx:
            found = await tx.jobs.get(job)
        assert found is not None
        return found.state

    async def look(self) -> object:
        return await advance(self.world, DATABASE_GRAPH, term=self.term)


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with migrated(database_url) as (stores, _):
        await running(stores)
        async with stores.begin() as tx:
            term = await tx.leases.gain("a test", lease=max(LEASE, timedelta(minutes=5)))
        assert term is not None
        yield Leader(stores, term)


def added(barrier: Barrier) -> list[JobId]:
    assert isinstance(barrier.mutation, Add)
    return [plan.id for plan in barrier.mutation.jobs]


async def test_adds_that_wait_share_a_barrier_and_each_is_answered_with_it(leader: Leader) -> None:
    """I4: every command learns the epoch at which it took effect."""
    jobs, commands = await leader.add_views(3, named="m")
    flush = await leader.queue(None)
    barrier = await leader.barrier()
    assert added(barrier) == jobs
    assert {await leader.epoch_of(command) for command in (*commands, flush)} == {barrier.curr}


async def test_an_add_overtakes_no_other_mutation(leader: Leader) -> None:
    before, _ = await leader.add_views(2, named="before")
    pause = await leader.queue(Pause())
    after, _ = await leader.add_views(2, named="after")
    resume = await leader.queue(Resume())
    first, second, third, fourth = [await leader.barrier() for _ in range(4)]
    assert added(first) == before
    assert isinstance(second.mutation, Pause)
    assert added(third) == after
    assert isinstance(fourth.mutation, Resume)
    assert [await leader.epoch_of(pause), await leader.epoch_of(resume)] == [second.curr, fourth.curr]


async def test_a_barrier_adds_only_so_many(leader: Leader) -> None:
    jobs, _ = await leader.add_views(ADDED_TOGETHER + 1, named="m")
    first, second = [await leader.barrier() for _ in range(2)]
    assert (added(first), added(second)) == (jobs[:-1], jobs[-1:])


async def test_the_end_of_a_backfill_needs_no_interval_to_be_finished(leader: Leader) -> None:
    """I6: the finish is a checkpoint of its own, and it comes at once."""
    (job,), _ = await leader.add_views(1, named="m")
    barrier = await leader.barrier()
    assert isinstance(barrier.mutation, Add)
    (scan,) = [part for part in barrier.mutation.jobs[0].fragments if part.kind is FragmentKind.STREAM_SCAN]
    last = [ActorReport(actor=actor.id, fragment=scan.id, rows=1, completed=True) for actor in scan.actors]
    await leader.queue(None)
    await leader.barrier(*last)
    assert await leader.state_of(job) == "Creating"
    await leader.barrier(*(report.model_copy(update={"completed": False, "finished": True}) for report in last))
    assert await leader.state_of(job) == "Created"
    assert isinstance(await leader.look(), Wait)
