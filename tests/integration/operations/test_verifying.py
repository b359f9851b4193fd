"""A view is compared with its query at the epoch that its positions are of, also before that is published."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from service.domain.errors import Unavailable
from service.domain.graph import Commit, Publish
from service.operations.asking import computing
from service.operations.barriers import worker_calls
from service.operations.verify.worker_rpc import verify
from service.ports.signals import Topic
from service.ports.workers import REQUEST_TRIES_MAX
from service.protocol.connector import Connector
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, RequestId, WorkerId
from service.protocol.request import DescribeTable, Rejected, Verified, Verify
from tests.support.http import StillClock, UnheardSignals, changed
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, WORKER, at, registration, report, scan_of

pytestmark = pytest.mark.postgres


@dataclass
class Answering(UnheardSignals):
    """A worker that finds everything equal; and pins that hold whatever they are told to."""

    leader: Leader
    asked: list[Verify] = field(default_factory=list[Verify])

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del timeout_seconds, topic, since
        async with self.leader.stores.begin() as tx:
            question = await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=timedelta(seconds=9))
            assert isinstance(question, Verify)
            self.asked.append(question)
            counted = {"rows": 1, "expected_rows": 1, "digest": "0", "expected_digest": "0"}
            await tx.requests.answer(
                Verified.model_validate({"id": question.id, "epoch": question.epoch, "equal": True, **counted})
            )

    @asynccontextmanager
    async def pin(self, _graph: GraphId, _epoch: Epoch, *, holder: str) -> AsyncGenerator[None]:
        del holder
        yield


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


async def test_positions_belong_to_what_is_committed_and_not_to_what_is_published(leader: Leader) -> None:
    """I1."""
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    scan = await scan_of(leader.stores, job)
    await leader.queue(None)
    barrier = await leader.injected(report(scan.actors[0].id, scan.id, 1, at(0, "7", rows=1)))
    assert isinstance(await leader.look(), Commit)
    worker = Answering(leader)
    assert (await verify(changed(leader.world, signals=worker, pins=worker), job, asked_by=A_TEST)).equal
    assert isinstance(await leader.look(), Publish), "it was not published yet"
    (question,) = worker.asked
    assert (question.epoch, question.relation_epoch) == (barrier.curr, barrier.curr)
    assert [position.key for position in question.stages[0].positions or ()] == [("7",)]


@dataclass
class Leaving(Answering):
    """A worker that is told, while it compares, that the caller has left, and stops."""

    left: asyncio.Event = field(default_factory=asyncio.Event)
    turns: list[bool] = field(default_factory=list[bool])
    """Whether the caller had its turn when the worker looked."""

    async def gone(self) -> None:
        await self.left.wait()

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del timeout_seconds, topic, since
        stores = self.leader.stores
        async with stores.begin() as tx:
            question = await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=timedelta(seconds=9))
        assert question is not None
        self.left.set()

        async def withdrawn() -> bool:
            async with stores.begin() as tx:
                return not await tx.requests.wanted(question.id)

        while not await withdrawn():
            pass
        self.turns.append(await _has_a_turn(self.leader))
        async with stores.begin() as tx:
            await tx.requests.answer(Rejected(id=question.id, error="canceled"))


async def _has_a_turn(leader: Leader) -> bool:
    """Whether the caller has a turn: another one of its own would come at once otherwise."""
    try:
        async with asyncio.timeout(0), leader.world.calls.verifications.turn(A_TEST.actor):
            return False
    except (TimeoutError, Unavailable):
        return True


async def test_i13_a_verification_whose_caller_has_left_keeps_its_turn_until_the_worker_has_stopped(
    leader: Leader,
) -> None:
    """A caller that left had the next turn at once, and so held all processes that compute queries."""
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    worker = Leaving(leader)
    world = changed(leader.world, signals=worker, pins=worker)
    with pytest.raises(Unavailable, match="the caller has left"):
        await verify(world, job, asked_by=A_TEST, gone=worker.gone)
    assert worker.turns == [True]


@dataclass
class Busy(Answering):
    """A worker that answers many other questions."""

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del timeout_seconds, topic, since
        async with self.leader.stores.begin() as tx:
            asked = await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=timedelta(seconds=9))
            assert asked is not None
            await tx.requests.answer(Rejected(id=asked.id, error="try again later", again=True))


async def test_i13_a_question_to_a_busy_worker_can_be_asked_again(leader: Leader) -> None:
    """A SELECT over a lake was answered 500."""
    await leader.barrier()
    question = DescribeTable(id=RequestId(0), connector=Connector(name="deltalake", options={}))
    async with computing(changed(leader.world, signals=Busy(leader)), A_TEST) as turn:
        with pytest.raises(Unavailable, match="try again later"):
            await turn.ask(question, limit=timedelta(minutes=1))


@dataclass
class Vanishing(Answering):
    """Workers that take the question and go silent, one after the other."""

    taken: int = 0

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del timeout_seconds, topic, since
        clock = self.leader.world.clock
        assert isinstance(clock, StillClock)
        clock.wall += self.leader.world.workers.lease
        clock.seconds += self.leader.world.workers.lease.total_seconds()
        worker = WorkerId(f"{WORKER}-{self.taken}")
        async with self.leader.stores.begin() as tx:
            await tx.workers.register(registration(worker), now=clock.wall)
        self.taken += await worker_calls.next_request(self.leader.world, worker, DATABASE_GRAPH) is not None


async def test_a_verification_with_which_workers_go_silent_is_answered(leader: Leader) -> None:
    """I13: one was waited for until 30 minutes were over, and two of them ended all verifications of a service."""
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    workers = Vanishing(leader)
    with pytest.raises(Unavailable, match="went silent"):
        await verify(changed(leader.world, signals=workers, pins=workers), job, asked_by=A_TEST)
    assert workers.taken == REQUEST_TRIES_MAX
