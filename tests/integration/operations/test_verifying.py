"""A view is compared with its query at the epoch that its positions are of, also before that is published."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from service.domain.barrier import Commit, Publish
from service.operations.verify.worker_rpc import verify
from service.ports.signals import Topic
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId
from service.protocol.request import Verified, Verify
from tests.support.http import UnheardSignals
from tests.support.leading import Leader, leading
from tests.support.meta_store import NOW, WORKER, at, report, scan_of

pytestmark = pytest.mark.postgres


@dataclass
class Answering(UnheardSignals):
    """A worker that finds everything equal; and pins that hold whatever they are told to."""

    leader: Leader
    asked: list[Verify] = field(default_factory=list[Verify])

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del timeout_seconds, topic, since
        async with self.leader.stores.begin() as tx:
            question = await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW)
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
    assert (await verify(replace(leader.world, signals=worker, pins=worker), job)).equal
    assert isinstance(await leader.look(), Publish), "it was not published yet"
    (question,) = worker.asked
    assert (question.epoch, question.relation_epoch) == (barrier.curr, barrier.curr)
    assert [position.key for position in question.scans[0].positions or ()] == [("7",)]
