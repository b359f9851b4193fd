"""N8: a view that grows without end is ended by itself, and no generation ends with it (I13)."""

from datetime import timedelta

from service.domain.job import JobEvent, JobState
from service.operations.upkeep.growth import limit_growth
from service.protocol.ids import DATABASE_GRAPH
from service.protocol.mutation import Stop
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeTables, StateStore
from tests.support.http import world_of
from tests.support.meta_store import NOW, collected, running, table_and_view


async def test_n8_a_created_view_with_too_many_rows_fails_and_a_barrier_stops_it() -> None:
    stores = FakeStores(lambda: NOW)
    table, view = await table_and_view(stores)
    await running(stores)
    world = world_of(stores, tables=FakeTables(StateStore()))
    async with stores.begin() as tx:
        term = await tx.leases.gain("a", lease=timedelta(seconds=6))
        assert term is not None
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
        await tx.fragments.record([collected(10, keys={table.relation: 100, view.relation: 7})], now=NOW)
        before = await tx.graphs.state(DATABASE_GRAPH)
        # The bound while it is created counts no longer.
        await tx.parameters.set("creating_rows_max", "1")
        await tx.parameters.set("view_rows_max", "7")
    await limit_growth(world, term=term)
    async with stores.begin() as tx:
        assert [job.state for job in await tx.jobs.where(ids=[table.id, view.id])] == [JobState.CREATED] * 2
        await tx.parameters.set("view_rows_max", "6")
    for _ in range(2):
        await limit_growth(world, term=term)
    async with stores.begin() as tx:
        made, failed = await tx.jobs.where(ids=[table.id, view.id])
        assert (made.state, failed.state) == (JobState.CREATED, JobState.FAILED)
        assert "it has stored 7 rows, and view_rows_max is 6" in str(failed.error)
        assert await tx.catalog.get(view.relation) is not None, "it can be read"
        assert [one.mutation for one in await tx.commands.waiting(DATABASE_GRAPH)] == [Stop(jobs=(view.id,))]
        assert await tx.graphs.state(DATABASE_GRAPH) == before
