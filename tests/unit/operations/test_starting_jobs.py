"""What was asked of a job before it had a graph of its own is heard there."""

from dataclasses import replace

from service.operations import limits, queue
from service.operations.effects import apply_commands
from service.protocol.ids import DATABASE_GRAPH, Epoch
from service.protocol.mutation import Throttle
from service.protocol.plan import ScanType
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeTables, StateStore
from tests.support.http import world_of
from tests.support.meta_store import LEASE, NOW, add_created, new_table, new_view, scan_of


async def test_a_limit_follows_its_job_into_a_graph_of_its_own() -> None:
    """I4: that graph's worker is told; and what the database graph commits later takes back nothing."""
    stores, tables = FakeStores(lambda: NOW), FakeTables(StateStore())
    world = replace(world_of(stores), tables=tables)
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        new = new_view("m", table.relation)
        scans = tuple(replace(one, scan_type=one.scan_type and ScanType.SNAPSHOT_BACKFILL) for one in new.fragments)
        job = await tx.jobs.add(replace(new, fragments=scans), now=NOW)
        term = await tx.leases.gain("a", lease=LEASE)
    assert term is not None
    await tables.claim(term)
    scan = await scan_of(stores, job.id)
    asked = await limits.throttle_job(world, job.id, 7, asked_by="a user")
    assert await queue.start_jobs(world, term=term) == 1
    async with stores.begin() as tx:
        (graph,) = await tx.snapshots.graphs()
        (command,) = await tx.commands.waiting(graph)
        assert command.mutation == Throttle(fragments={scan.id: 7})
        for one, limit in ((graph, 9), (DATABASE_GRAPH, 7)):
            await tx.commands.add(one, Throttle(fragments={scan.id: limit}), asked_by="a user", now=NOW)
            await apply_commands(tx, one, await tx.commands.waiting(one), epoch=Epoch(20), now=NOW)
        answered = await tx.commands.get(asked)
        assert answered is not None
        assert answered.done
    assert (await scan_of(stores, job.id)).rate_limit == 9
