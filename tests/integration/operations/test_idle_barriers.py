"""What a barrier costs that nobody has asked anything of: an idle service makes one a second."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from service.domain.barrier import Commit, Inject, Publish, Wait
from service.operations.barriers.advance import proceed
from service.operations.status import history
from service.protocol.ids import DATABASE_GRAPH, Epoch
from service.protocol.mutation import Pause
from tests.support.http import StillClock
from tests.support.leading import Leader
from tests.support.meta_store import LEASE, NOW, WORKER, collected, running, stores_on

pytestmark = pytest.mark.postgres

SECOND = timedelta(seconds=1)


@dataclass
class Idle:
    """A leader whose clock only a test moves, and the statements that its meta store runs."""

    leader: Leader
    clock: StillClock
    statements: list[str] = field(default_factory=list[str])

    async def look(self) -> list[object]:
        return list(await proceed(self.leader.world, DATABASE_GRAPH, term=self.leader.term))

    async def answer(self) -> Epoch:
        async with self.leader.stores.begin() as tx:
            barrier = await tx.barriers.for_worker(WORKER)
            assert barrier is not None
            await tx.barriers.answer(collected(barrier.curr, generation=barrier.generation), now=self.clock.wall)
        return barrier.curr

    async def injected(self) -> None:
        self.clock.wall += SECOND
        (effect,) = await self.look()
        assert isinstance(effect, Inject)


@pytest.fixture
async def idle(database_url: str) -> AsyncGenerator[Idle]:
    """A graph that has started, with nothing in it."""
    async with stores_on(database_url) as (stores, engine):
        await running(stores)
        async with stores.begin() as tx:
            term = await tx.leases.gain("a test", lease=LEASE + timedelta(minutes=5))
        assert term is not None
        leader, clock = Leader(stores, term), StillClock(NOW)
        leader.world = replace(leader.world, clock=clock, worker_lease=timedelta(hours=1))
        idle = Idle(leader, clock)
        await idle.injected()
        await idle.answer()
        await idle.look()

        def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            idle.statements.append(statement)

        event.listen(engine.sync_engine, "before_cursor_execute", count)
        yield idle


async def test_an_idle_barrier_takes_two_looks_and_few_statements(idle: Idle) -> None:
    await idle.injected()
    injected = idle.clock.wall
    at_injection = len(idle.statements)
    epoch = await idle.answer()
    before = len(idle.statements)
    assert await idle.look() == [Commit(epoch), Publish(epoch), Wait(injected + SECOND, "barrier interval")]
    assert at_injection <= 5, idle.statements[:at_injection]
    assert len(idle.statements) - before <= 15, idle.statements[before:]


async def test_an_idle_epoch_does_not_change_the_estimate_for_those_with_scans(idle: Idle) -> None:
    estimated = idle.leader.world.overhead.seconds
    await idle.injected()
    await idle.answer()
    await idle.look()
    assert idle.leader.world.overhead.seconds == estimated
    await idle.leader.queue(Pause())
    await idle.injected()
    await idle.answer()
    await idle.look()
    assert idle.leader.world.overhead.seconds != estimated


async def test_a_command_that_came_meanwhile_is_looked_for_at_once(idle: Idle) -> None:
    await idle.injected()
    epoch = await idle.answer()
    await idle.leader.queue(Pause())
    assert await idle.look() == [Commit(epoch), Publish(epoch)]
    (effect,) = await idle.look()
    assert isinstance(effect, Inject)


async def test_what_was_committed_and_not_published_is_published_by_the_next_look(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    await idle.injected()
    epoch = await idle.answer()

    async def away(*_: object, **__: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as broken:
        broken.setattr(idle.leader.world.tables, "publish", away)
        with pytest.raises(ConnectionError):
            await idle.look()
    assert await idle.look() == [Publish(epoch)]


async def test_pages_of_barriers_are_read_one_at_a_time(idle: Idle) -> None:
    """I13: forty readers of a thousand barriers each kept the event loop for ten seconds."""
    world = idle.leader.world
    async with world.barrier_pages.turn():
        pages = {asyncio.create_task(history.barriers(world, limit=1000, before=None)) for _ in range(3)}
        _, waiting = await asyncio.wait(pages, timeout=0.3)
        assert waiting == pages
    done, _ = await asyncio.wait(pages)
    assert {len(page.result().items) for page in done} == {1}
