"""The launches of workers in a cluster: what the next leader knows of them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from service.domain.errors import Stale
from service.domain.graph import GraphStatus
from service.domain.launching import End, Hold, Launch
from service.ports.meta_store import Stores
from service.protocol.ids import DATABASE_GRAPH, GraphId, WorkerId
from tests.support.meta_store import NOW, registration

FIRST = Launch(WorkerId("w-1"), DATABASE_GRAPH, 1, NOW)
SECOND = timedelta(seconds=1)


async def test_how_far_a_launch_has_come_is_remembered(stores: Stores) -> None:
    posted = replace(FIRST, posted_at=NOW + SECOND)
    held = replace(posted, held=Hold("quota", "exceeded\0quota", NOW + SECOND))
    ended = replace(posted, end=End(NOW + SECOND, "exit code\0 3", 2, NOW + 2 * SECOND))
    for launch in (FIRST, posted, held, posted, ended):
        async with stores.begin() as tx:
            await tx.launches.put(launch)
        async with stores.begin() as tx:
            (found,) = await tx.launches.all()
        hold, end = launch.held, launch.end
        assert found == replace(
            launch,
            held=hold and replace(hold, text="exceeded\N{REPLACEMENT CHARACTER}quota"),
            end=end and replace(end, reason="exit code\N{REPLACEMENT CHARACTER} 3"),
        )


async def test_those_of_a_graph_come_in_their_order_whatever_the_clocks_of_leaders_said(stores: Stores) -> None:
    end = End(NOW, "exit code 3", 1, NOW)
    earlier = Launch(WorkerId("w-2"), DATABASE_GRAPH, 2, NOW - SECOND)
    other = Launch(WorkerId("a"), GraphId(7), 1, NOW, end=end)
    async with stores.begin() as tx:
        for launch in (other, replace(FIRST, end=end), earlier):
            await tx.launches.put(launch)
        assert [one.worker for one in await tx.launches.all()] == ["w-1", "w-2", "a"]
        await tx.launches.forget([FIRST.worker, other.worker])
        assert await tx.launches.all() == [earlier]


async def test_a_worker_whose_launch_has_ended_cannot_register(stores: Stores) -> None:
    async with stores.begin() as tx:
        await tx.launches.put(replace(FIRST, end=End(NOW, "it did not start", 1, NOW)))
    with pytest.raises(Stale):
        async with stores.begin() as tx:
            await tx.workers.register(registration(FIRST.worker), now=NOW)
    second = Launch(WorkerId("w-2"), DATABASE_GRAPH, 2, NOW)
    async with stores.begin() as tx:
        await tx.launches.put(second)
        await tx.workers.register(registration(second.worker), now=NOW)


async def test_two_leaders_cannot_both_begin_the_same_launch(stores: Stores) -> None:
    async with stores.begin() as tx:
        await tx.launches.put(FIRST)
        # The successor of a worker that has not ended yet.
        await tx.launches.put(Launch(WorkerId("w-2"), DATABASE_GRAPH, 2, NOW))
    with pytest.raises(Exception, match=r"attempt.of.a.graph.is.one"):
        async with stores.begin() as tx:
            await tx.launches.put(Launch(WorkerId("w-3"), DATABASE_GRAPH, 2, NOW))


async def test_a_worker_says_once_that_it_leaves(stores: Stores) -> None:
    async with stores.begin() as tx:
        for worker in ("w-1", "w-2"):
            await tx.workers.register(registration(WorkerId(worker)), now=NOW)
        assert await tx.workers.leave(FIRST.worker)
        assert not await tx.workers.leave(FIRST.worker)
        assert not await tx.workers.leave(WorkerId("nobody"))
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RUNNING, now=NOW, worker=WorkerId("w-2"))
    async with stores.begin() as tx:
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=SECOND)
        assert (view.alive, view.leaving) == ({"w-1", "w-2"}, {"w-1"})
        later = await tx.graphs.view(DATABASE_GRAPH, now=NOW + 2 * SECOND, lease=SECOND)
        assert later.leaving == frozenset()
        found = {one.worker: (one.leaving, one.serving) for one in await tx.workers.all(now=NOW, lease=SECOND)}
    assert found == {"w-1": (True, False), "w-2": (False, True)}
