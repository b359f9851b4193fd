"""What was asked of a job before it had a graph of its own is heard there."""

from dataclasses import replace

from service.operations.barriers import advance
from service.operations.barriers.effects import apply_commands
from service.operations.commands import limits
from service.operations.commands.fan_out import throttles
from service.operations.jobs import queue
from service.ports.audit import itself
from service.protocol.ids import DATABASE_GRAPH, Epoch
from service.protocol.mutation import Throttle
from service.protocol.plan import ScanType
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeTables, StateStore
from tests.support.http import changed, world_of
from tests.support.meta_store import LEASE, NOW, WORKER, add_created, new_table, new_view, running, scan_of


async def test_a_limit_follows_its_job_into_a_graph_of_its_own() -> None:
    """I4: that graph's worker is told; and what the database graph commits later takes back nothing, wherever the job
    is by then.
    """
    stores, tables = FakeStores(lambda: NOW), FakeTables(StateStore())
    world = changed(world_of(stores), tables=tables, fences=FakeFences(tables.store))
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        new = new_view("m", table.relation)
        scans = tuple(replace(one, scan_type=ScanType.SNAPSHOT_BACKFILL) for one in new.table_scans)
        job = await tx.jobs.add(replace(new, fragments=scans), now=NOW)
        term = await tx.leases.gain("a", lease=LEASE)
    assert term is not None
    await world.state_store.fences.claim(term)
    scan = await scan_of(stores, job.id)
    asked = await limits.throttle_job(world, job.id, 7, asked_by=itself("a user"))
    assert await queue.start_jobs(world, term=term) == 1
    await limits.throttle_job(world, job.id, 9, asked_by=itself("a user"))
    async with stores.begin() as tx:
        (graph,) = await tx.partial_graphs.all()
        told = await tx.commands.waiting(graph)
        assert [one.mutation for one in told] == [Throttle(fragments={scan.id: limit}) for limit in (7, 9)]
        await apply_commands(tx, graph, told, epoch=Epoch(20), now=NOW)
        assert await throttles(tx) == [], "nothing is asked of the scan any more"
        await tx.partial_graphs.merge(graph)
    await running(stores)
    await advance.advance(world, DATABASE_GRAPH, term=term)
    async with stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
        assert barrier is not None
        assert barrier.mutation is None, "nor told to a worker that has the scan by now"
        assert [command.id for command in await tx.commands.carried(DATABASE_GRAPH, barrier.curr)] == [asked]
        await apply_commands(
            tx, DATABASE_GRAPH, await tx.commands.carried(DATABASE_GRAPH, barrier.curr), epoch=barrier.curr, now=NOW
        )
        answered = await tx.commands.get(asked)
        assert answered is not None
        assert answered.done
    assert (await scan_of(stores, job.id)).rate_limit == 9
