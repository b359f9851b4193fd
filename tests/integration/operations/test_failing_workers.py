"""A graph starts although the worker that is chosen first fails every barrier (I13)."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from service.domain.graph import Abandon, Inject, RollBack
from service.operations.barriers import worker_calls
from service.protocol.api import Gone
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import Epoch, GraphId, WorkerId
from service.protocol.report import Failed
from tests.support.http import StillClock
from tests.support.leading import Leader, leading
from tests.support.meta_store import NOW, WORKER, registration

pytestmark = pytest.mark.postgres

HEALTHY = WorkerId(f"{WORKER}-2")
"""After `WORKER` in order."""


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


def waited(leader: Leader) -> None:
    """The back-off is over."""
    assert isinstance(leader.world.clock, StillClock)
    leader.world.clock.wall += timedelta(seconds=1)


async def test_another_worker_is_asked_after_one_that_failed_the_first_barrier(leader: Leader) -> None:
    async with leader.stores.begin() as tx:
        await tx.workers.register(registration(HEALTHY), now=NOW)
    await leader.recover()
    waited(leader)
    assert await leader.look() == Inject(BarrierKind.INITIAL, WORKER)
    barrier = await worker_calls.next_barrier(leader.world, WORKER, {})
    assert isinstance(barrier, Barrier)
    gone = await worker_calls.next_barrier(leader.world, WORKER, {barrier.graph: barrier.curr, GraphId(77): Epoch(1)})
    assert gone == Gone(gone=(GraphId(77),)), "nothing that it computes for another graph is wanted"
    failed = Failed(
        worker=WORKER, graph=barrier.graph, generation=barrier.generation, epoch=barrier.curr, error="no disk"
    )
    await worker_calls.answer(leader.world, failed)
    assert await leader.look() == Abandon("no disk", failed)
    assert isinstance(await leader.look(), RollBack)
    waited(leader)
    assert await leader.look() == Inject(BarrierKind.INITIAL, HEALTHY)
    await leader.answered(worker=HEALTHY)
