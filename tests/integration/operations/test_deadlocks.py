"""No two transactions wait for each other, and a call that Postgres ends as the victim of a deadlock is answered as if
there had been none.
"""

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from psycopg import AsyncConnection

from service.operations.jobs import lifecycle
from service.operations.upkeep.lookup_indexes import Builds, reconcile
from service.operations.world import World
from service.ports.indexes import IndexState, StoredIndex
from service.ports.state_store import IndexSize
from service.protocol.cdc import SourceReport
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import LookupIndex
from tests.integration.operations.test_interleavings import waited_for
from tests.support.external import External, Following, external_database, following
from tests.support.http import changed
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, add_created, new_table, new_view, report

pytestmark = pytest.mark.postgres


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as one:
        yield one


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        one.run("create table orders (id bigint primary key)")
        yield one


def deadlocks(world: World) -> float:
    (family,) = world.metrics.deadlocks.collect()
    return family.samples[0].value


async def test_f2_the_victim_of_a_deadlock_runs_again_and_its_caller_sees_nothing(
    leader: Leader, database_url: str
) -> None:
    """The cancel gets the job that the other one waits for. Each waits for the other from then on, and only the cancel
    looks for a deadlock.
    """
    async with leader.stores.begin() as tx:
        low, high = [(await tx.jobs.add(new_view(f"m{number}"), now=NOW)).id for number in range(2)]
    hold = "select from tidefill.job where id = %s for update"
    async with await AsyncConnection.connect(database_url) as other, AsyncExitStack() as waiting:
        await other.execute("set deadlock_timeout = '1h'")
        await other.execute(hold, [high])
        async with leader.stores.begin() as tx:
            await tx.jobs.hold(low)
            cancel = lifecycle.cancel(leader.world, [low, high], asked_by=A_TEST)
            cancelling = await waiting.enter_async_context(waited_for(database_url, cancel))
            both = waited_for(database_url, other.execute(hold, [low]), sessions=2)
            holding = await waiting.enter_async_context(both)
        await holding
        await other.commit()
    assert await cancelling == [low, high]
    assert deadlocks(leader.world) == 1
    async with leader.stores.begin() as tx:
        asked = [one.facts["job"] for one in await tx.events.since(0, limit=100) if one.kind == "job.cancelled"]
    assert asked == [low, high], "each once: nothing is left of the first try"


async def test_f2_a_a_drop_of_a_source_and_the_commit_of_its_offset_wait_in_one_order(
    database_url: str, external: External
) -> None:
    """The drop has the job, and its clean-up refers to the source. The commit has the source, and stores progress."""
    async with following(database_url, external) as here:
        source, job = await _followed(here)
        async with here.world.stores.begin() as dropping:
            await dropping.jobs.hold(job)
            async with waited_for(database_url, here.barrier()) as committing:
                await dropping.sources.remove(source, now=NOW)
        await committing
        assert deadlocks(here.world) == 0


async def _followed(here: Following) -> tuple[Any, Any]:
    """Follow a table with history left, and return its source and its job."""
    here.external.run("insert into orders select generate_series(1, 10)")
    await here.run(here.external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'public.orders'")
    async with here.world.stores.begin() as tx:
        source, table = await tx.sources.named("pg"), await tx.catalog.named("t")
        assert source is not None
        assert table is not None
        (plan,) = await tx.plans.of([table.job])
    assert plan.source_scan is not None
    here.reports = [SourceReport(source=source.id, offset="1/2")]
    here.actors = [report(actor.id, plan.source_scan.id, 3) for actor in plan.source_scan.actors]
    return source.id, table.job


class BuiltLookups:
    """A state store in which every index is built."""

    def __init__(self, *indexes: LookupIndex) -> None:
        self.indexes = indexes

    async def stored(self) -> Mapping[str, IndexSize]:
        return {str(one): IndexSize(complete=True, bytes=1) for one in self.indexes}

    def name(self, index: LookupIndex) -> str:
        return str(index)

    async def missing(self, wanted: Collection[LookupIndex]) -> frozenset[LookupIndex]:
        del wanted
        return frozenset()

    async def drop(self, names: Collection[str], **_: object) -> frozenset[str]:
        return frozenset(names)


async def test_f2_b_a_drop_of_an_index_and_the_loop_that_shows_it_wait_in_one_order(
    leader: Leader, database_url: str
) -> None:
    """The drop has the relation of the index and goes on to the stored index."""
    async with leader.stores.begin() as tx:
        table = (await add_created(tx, new_table("t"))).relation
        entry = await tx.catalog.get(table)
        assert entry is not None
        first = entry.relation.columns[:1]
        key = (entry.relation.key[0].model_copy(update={"name": first[0].name}),)
        made = Relation(id=table, name="i", kind=RelationKind.INDEX, columns=first, key=key, vnode_count=1)
        index = await tx.indexes.add(made, table, "CREATE INDEX i")
        (named,) = await tx.indexes.all()
        await tx.stored_indexes.put(StoredIndex(named.stored_as, IndexState.CREATING, named=(index,)), now=NOW)
    world = changed(leader.world, lookups=BuiltLookups(named.stored_as))
    async with leader.stores.begin() as dropping:
        await dropping.indexes.show(index)  # its row is locked, as by the beginning of the drop
        reconciling = reconcile(world, Builds(lambda: None), term=leader.term)
        async with waited_for(database_url, reconciling) as loop:
            await dropping.indexes.remove(index)
    await loop
    assert deadlocks(world) == 0
