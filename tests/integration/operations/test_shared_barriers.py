"""What a barrier carries when several commands wait: one mutation, which may add several jobs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from service.domain.command_turns import ADDED_TOGETHER
from service.domain.graph import Wait
from service.operations.commands.limits import check_scans, scans_of
from service.ports.meta_store import Transaction
from service.protocol.barrier import Barrier
from service.protocol.ids import JobId
from service.protocol.mutation import Add, Pause, Resume, Throttle
from service.protocol.report import ActorReport
from tests.support.leading import Leader, leading

pytestmark = pytest.mark.postgres


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


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
    (scan,) = barrier.mutation.jobs[0].table_scans
    last = [ActorReport(actor=actor.id, fragment=scan.id, rows=1, completed=True) for actor in scan.actors]
    await leader.queue(None)
    await leader.barrier(*last)
    assert await leader.state_of(job) == "Creating"
    await leader.barrier(*(report.model_copy(update={"completed": False, "finished": True}) for report in last))
    assert await leader.state_of(job) == "Created"
    assert isinstance(await leader.look(), Wait)


async def test_i13_a_flood_of_limits_delays_the_views_of_others_by_one_barrier(leader: Leader) -> None:
    (slow,), _ = await leader.add_views(1, named="slow")
    added_first = await leader.barrier()
    assert isinstance(added_first.mutation, Add)
    scan = added_first.mutation.jobs[0].table_scans[0].id
    floods = [await leader.queue(Throttle(fragments={scan: limit}), by="flood") for limit in range(1, 7)]
    jobs, _ = await leader.add_views(1, named="other")
    barriers = [await leader.barrier() for _ in range(2)]
    assert slow not in jobs
    assert jobs in [added(one) for one in barriers if isinstance(one.mutation, Add)]
    (limited,) = [one for one in barriers if isinstance(one.mutation, Throttle)]
    assert limited.mutation == Throttle(fragments={scan: 6}), "the last one counts"
    assert {await leader.epoch_of(command) for command in floods} == {limited.curr}
    assert isinstance(await leader.look(), Wait)


async def test_i13_a_flood_of_pauses_delays_the_views_of_others_by_one_barrier(leader: Leader) -> None:
    """I4, I13: equal ones share a barrier, and a Resume comes after the Pauses before it."""
    floods = [await leader.queue(one, by="flood") for one in (Pause(), Pause(), Resume(), Pause())]
    jobs, _ = await leader.add_views(1, named="other")
    barriers = [await leader.barrier() for _ in range(4)]
    assert jobs in [added(one) for one in barriers[:2] if isinstance(one.mutation, Add)]
    paused = [one for one in barriers if not isinstance(one.mutation, Add)]
    assert [one.mutation for one in paused] == [Pause(), Resume(), Pause()]
    epochs = [await leader.epoch_of(command) for command in floods]
    assert epochs == [paused[0].curr, paused[0].curr, paused[1].curr, paused[2].curr]


async def test_i13_changes_of_limits_come_one_after_the_other(leader: Leader) -> None:
    """Under shared locks that overlap without end, the commit of a barrier, which needs the row alone, would starve."""
    (job,), _ = await leader.add_views(1, named="m")
    first = (await leader.barrier()).mutation
    assert isinstance(first, Add)
    scan = first.jobs[0].table_scans[0].id
    looks: list[Callable[[Transaction], Awaitable[object]]] = [
        lambda tx: scans_of(tx, job),
        lambda tx: check_scans(tx, [scan]),
    ]

    async def looked(look: Callable[[Transaction], Awaitable[object]]) -> None:
        async with leader.stores.begin() as tx:
            await look(tx)

    for look in looks:
        async with leader.stores.begin() as tx:
            await look(tx)
            later = asyncio.create_task(looked(look))
            done, _ = await asyncio.wait({later}, timeout=0.3)
            assert not done
        await later
