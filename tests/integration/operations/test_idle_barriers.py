"""What a barrier costs that nobody has asked anything of: an idle service makes one a second."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from service.domain.errors import Unavailable
from service.domain.graph import Commit, GraphStatus, Inject, Publish, Wait
from service.domain.job import JobEvent
from service.domain.parallelism import Adaptive
from service.domain.trace import Span, parse_traceparent
from service.operations.barriers.advance import proceed
from service.operations.status import history
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId
from service.protocol.mutation import Pause
from service.telemetry.traces import Traces
from service.turns import CALLER
from tests.support.http import StillClock, changed
from tests.support.leading import Leader
from tests.support.meta_store import LEASE, NOW, WORKER, add_creating, collected, new_view, running, stores_on

pytestmark = pytest.mark.postgres

SECOND = timedelta(seconds=1)


@dataclass
class Idle:
    """A leader whose clock only a test moves, and the statements that its meta store runs."""

    leader: Leader
    clock: StillClock
    statements: list[str] = field(default_factory=list[str])
    graph: GraphId = DATABASE_GRAPH

    async def look(self) -> list[object]:
        return list(await proceed(self.leader.world, self.graph, term=self.leader.term))

    async def answer(self, *, consumed: Epoch | None = None) -> Epoch:
        async with self.leader.stores.begin() as tx:
            barrier = await tx.barriers.for_worker(WORKER)
            assert barrier is not None
            answer = collected(barrier.curr, generation=barrier.generation)
            answer = answer.model_copy(update={"graph": self.graph, "consumed": consumed})
            await tx.barriers.answer(answer, now=self.clock.wall)
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
        leader.world = changed(leader.world, clock=clock, lease=timedelta(hours=1))
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


async def test_an_idle_barrier_of_a_graph_of_its_own_costs_as_little(idle: Idle) -> None:
    """It records how far it has read, and nothing else."""
    async with idle.leader.stores.begin() as tx:
        view = await add_creating(tx, replace(new_view("v"), own_graph="it was asked"))
        idle.graph = (await tx.partial_graphs.begin(view.id, indexed=True)).graph
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
        await tx.visibility.publish(idle.graph, Epoch(0), now=NOW, created=True)
        await tx.graphs.set_status(idle.graph, GraphStatus.RUNNING, now=NOW, worker=WORKER)
    await idle.injected()
    injected = idle.clock.wall
    epoch = await idle.answer(consumed=Epoch(7))
    before = len(idle.statements)
    assert await idle.look() == [Commit(epoch), Publish(epoch), Wait(injected + SECOND, "barrier interval")]
    assert len(idle.statements) - before <= 16, idle.statements[before:]
    async with idle.leader.stores.begin() as tx:
        snapshot = await tx.snapshots.of_graph(idle.graph)
        assert snapshot is not None
        assert snapshot.consumed == 7
        await tx.rescaling.set_parallelism(view.id, Adaptive(), None)
    await idle.injected()
    epoch = await idle.answer(consumed=Epoch(8))
    assert await idle.look() == [Commit(epoch)], "a job that may want other actors is looked at"


async def test_an_idle_epoch_does_not_change_the_estimate_for_those_with_scans(idle: Idle) -> None:
    estimated = idle.leader.world.leading.overhead.seconds
    await idle.injected()
    await idle.answer()
    await idle.look()
    assert idle.leader.world.leading.overhead.seconds == estimated
    await idle.leader.queue(Pause())
    await idle.injected()
    await idle.answer()
    await idle.look()
    assert idle.leader.world.leading.overhead.seconds != estimated


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
        broken.setattr(idle.leader.world.state_store.tables, "publish", away)
        with pytest.raises(ConnectionError):
            await idle.look()
    assert await idle.look() == [Publish(epoch)]


async def test_pages_of_barriers_are_read_one_at_a_time(idle: Idle) -> None:
    """I13: forty readers of a thousand barriers each kept the event loop for ten seconds."""
    world = idle.leader.world
    async with world.calls.long_pages.turn():
        pages = {asyncio.create_task(history.barriers(world, limit=1000, before=None)) for _ in range(3)}
        events = asyncio.create_task(history.events(world, str, after=0, limit=1000, discreet=True))
        _, waiting = await asyncio.wait({*pages, events}, timeout=0.3)
        assert waiting == {*pages, events}
    done, _ = await asyncio.wait(pages)
    assert {len(page.result().items) for page in done} == {1}
    assert await events == ([], None)


async def test_i13_many_readers_of_long_pages_keep_nobody_else_from_them(idle: Idle) -> None:
    """All that read events on a page were one caller: 70 connections of a viewer had those of others refused."""
    world = idle.leader.world

    async def read(by: str) -> object:
        CALLER.set(by)
        return await history.events(world, str, after=0, limit=1000, discreet=True)

    async with world.calls.long_pages.turn(""):
        many = [asyncio.create_task(read("eve")) for _ in range(70)]
        await asyncio.wait(many, timeout=0.1)
        hers = asyncio.create_task(read("vera"))
    assert await hers == ([], None)
    refused = [one for one in await asyncio.gather(*many, return_exceptions=True) if isinstance(one, Unavailable)]
    assert 0 < len(refused) < len(many)


async def test_traces_cost_an_idle_barrier_two_statements_and_send_nothing(idle: Idle) -> None:
    sent: list[Span] = []
    traces = Traces("here", 0, sent.extend, lambda: "id")
    idle.leader.world = changed(idle.leader.world, traces=traces)
    await idle.injected()
    await idle.answer()
    before = len(idle.statements)
    await idle.look()
    assert len(idle.statements) - before <= 17, idle.statements[before:]
    assert sent == []


async def test_a_slow_epoch_is_traced_with_the_context_that_its_barrier_had(idle: Idle) -> None:
    sent: list[Span] = []
    idle.leader.world = changed(idle.leader.world, traces=Traces("here", 0, sent.extend, lambda: "id"))
    await idle.injected()
    async with idle.leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
    assert barrier is not None
    context = parse_traceparent(barrier.traceparent or "")
    assert context is not None
    assert not context.sampled
    idle.clock.wall += 3 * SECOND
    await idle.answer()
    await idle.look()
    (top,) = (span for span in sent if span.parent is None)
    assert (top.name, top.context) == (f"epoch {barrier.curr}", replace(context, sampled=True))
    assert top.ended - top.began == 3 * SECOND


async def test_an_epoch_that_is_abandoned_is_traced(idle: Idle) -> None:
    sent: list[Span] = []
    idle.leader.world = changed(idle.leader.world, traces=Traces("here", 0, sent.extend, lambda: "id"))
    await idle.injected()
    async with idle.leader.stores.begin() as tx:
        await tx.graphs.ask_recovery(DATABASE_GRAPH, "a secret reason")
    await idle.look()
    (top,) = (span for span in sent if span.parent is None)
    assert top.failed
    assert "secret" not in str(sent)
