"""An open transaction of the read login delays nobody else (I13): neither builds of indexes nor drops."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import TransactionStatus

from service.domain.backoff import SetAside
from service.domain.job import Job, JobState
from service.operations.barriers import recovery
from service.operations.jobs import queue
from service.operations.upkeep.lookup_indexes import Builds, reconcile, watch
from service.ports.records import Cleanup, NewDml, NewJob
from service.protocol.ids import RelationId
from service.serving import lookups
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from tests.support.both_stores import BothStores
from tests.support.meta_store import NOW
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.postgres

Connection = psycopg.AsyncConnection[tuple[object, ...]]
TABLES = (
    "create table facts (id bigint primary key, a bigint, b bigint)",
    "create table n1 (id bigint primary key, k bigint)",
    "create table n2 (id bigint primary key, k bigint)",
)
JOINED = "create materialized view {} as select n1.id, n2.id as yid from n1 join n2 on n1.k = n2.k"
STAR = (
    "create materialized view star as select facts.id, x.k as xk, y.k as yk"
    " from facts join n1 x on facts.a = x.id join n2 y on facts.b = y.id"
)


@dataclass
class Here(BothStores):
    """Both stores with tables, and the leader's builds of indexes."""

    builds: Builds = field(default_factory=lambda: Builds(lambda: None))
    aside: SetAside[RelationId] = field(default_factory=SetAside[RelationId])

    async def look(self) -> None:
        """Run the leader's chores once: what waits long does so beside them."""
        await queue.start_jobs(self.world, term=self.term)
        self.builds.aside.keep(())
        await reconcile(self.world, self.builds, term=self.term)
        await watch(self.world, self.builds, term=self.term)

    async def until(self, reached: Callable[[], Awaitable[object]]) -> None:
        async with asyncio.timeout(PATIENCE - 50):
            while not await reached():
                await self.look()
                await asyncio.wait(
                    self.builds.tasks.values() or [asyncio.create_task(asyncio.to_thread(int))], timeout=0.05
                )

    async def job(self, name: str) -> Job:
        async with self.stores.begin() as tx:
            (found,) = [job for job in await tx.jobs.where(set(JobState)) if job.name == name]
        return found

    async def waiting(self, name: str) -> str:
        return (await self.job(name)).preparing or ""

    async def table(self, text: str) -> RelationId:
        statement = parse(text)
        assert isinstance(statement, CreateTable)
        dml = NewDml((((0, 255),),))
        return await self.created(NewJob(table_relation(statement), text, background=False, fragments=(dml,)))

    async def dropped(self, relation: RelationId) -> Cleanup:
        """Drop a relation, as a barrier does, and clean up until somebody is named who keeps it."""
        async with self.stores.begin() as tx:
            await tx.catalog.remove(relation)
        while True:
            await self.clean_up()
            async with self.stores.begin() as tx:
                (left,) = [one for one in await tx.cleanups.all() if one.relation == relation]
            if left.held is not None:
                return left

    async def clean_up(self) -> bool:
        self.aside.items = {one: (failures, NOW) for one, (failures, _) in self.aside.items.items()}
        return await recovery.clean_up(self.world, term=self.term, aside=self.aside)

    async def there(self, relation: RelationId) -> bool:
        return await self.store.rows(f"select to_regclass('state.t_{relation}') is not null") == [(True,)]

    async def started(self, *names: str) -> bool:
        return all([(await self.job(name)).state is JobState.CREATING for name in names])


@pytest.fixture
async def here(laid_out_url: str) -> AsyncGenerator[Here]:
    async with Here.on(laid_out_url) as made:
        for text in TABLES:
            await made.table(text)
        yield made
        await made.builds.stop()


@pytest.fixture
async def reader(here: Here) -> AsyncGenerator[Connection]:
    """The read login, in a transaction that has read n1."""
    connection = await psycopg.AsyncConnection.connect(await here.store.read_url())
    await connection.execute("select count(*) from n1")
    yield connection
    await connection.close()


async def test_i13_an_index_of_a_small_table_waits_for_no_reader(here: Here, reader: Connection) -> None:
    """A function of Postgres that cannot be interrupted keeps the transaction of its reader open for days."""
    creating = asyncio.create_task(here.run(JOINED.format("b2"), background_ddl="true"))

    async def returned() -> bool:
        return creating.done()

    await here.until(returned)
    await here.until(lambda: here.started("b2"))

    async def built() -> bool:
        return not here.builds.tasks

    await here.until(built)
    assert reader.info.transaction_status is TransactionStatus.INTRANS


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all tables taken for large ones."""
    monkeypatch.setattr(lookups, "PLAIN_BYTES", -1)


@pytest.mark.usefixtures("large")
async def test_f3_a_background_create_returns_while_a_readers_transaction_holds_its_index(
    here: Here, reader: Connection
) -> None:
    creating = asyncio.create_task(here.run(JOINED.format("b2"), background_ddl="true"))

    async def returned() -> bool:
        return creating.done()

    await here.until(returned)
    assert any("an index of n1 (k)" in notice for notice in creating.result().notices)

    async def named() -> bool:
        return "waits for" in await here.waiting("b2")

    await here.until(named)
    said, whose = await here.waiting("b2"), f"session {reader.info.backend_pid} of login {reader.info.user}"
    assert "an index of n" in said
    assert f"waits for the transaction of {whose}, open since 20" in said
    assert said.endswith(", idle after a SELECT")
    await reader.rollback()
    await here.until(lambda: here.started("b2"))


@pytest.mark.usefixtures("large")
async def test_f3_builds_that_a_reader_holds_leave_their_places_and_keep_what_they_did(
    here: Here, reader: Connection
) -> None:
    """There are two places. The builds of one view wait, and one of the other view gets as far as that too."""
    for one in (JOINED.format("b2"), STAR):
        asyncio.create_task(here.run(one, background_ddl="true")).add_done_callback(lambda _: None)

    async def all_held() -> bool:
        return len(here.builds.held) == 3

    await here.until(all_held)
    assert {index.relation for index in here.builds.held} == {index.relation for index in here.builds.needed}
    builds = dict(here.builds.tasks)
    await here.look()
    assert dict(here.builds.tasks) == builds, "no build began anew"
    await reader.rollback()

    async def queued() -> bool:
        """There is one permit, and either view may have it."""
        started = [one for one in ("b2", "star") if await here.started(one)]
        return (
            len(started) == 1
            and not here.builds.tasks
            and [await here.waiting(one) for one in ("b2", "star")] == ["", ""]
        )

    await here.until(queued)


@pytest.mark.usefixtures("large")
async def test_f3_a_build_that_nobody_needs_any_more_ends_at_once(here: Here, reader: Connection) -> None:
    """I9: so it does not keep the table of a DROP TABLE."""
    creating = asyncio.create_task(here.run(JOINED.format("b2"), background_ddl="true"))

    async def held() -> bool:
        return creating.done() and len(here.builds.held) == 2

    await here.until(held)
    cancelling = asyncio.create_task(here.run("drop materialized view b2"))

    async def over() -> bool:
        return not here.builds.tasks

    await here.until(over)
    assert not reader.closed
    cancelling.cancel()


async def test_f5_two_indexes_of_one_table_are_built_one_after_the_other(here: Here) -> None:
    """Postgres reports a deadlock of two builds of a table as soon as the first one waits for the other's snapshot."""
    await here.store.run("insert into state.t_1 select g % 256, g, g % 7, g % 11, 1 from generate_series(1, 200000) g")
    both = "create materialized view star as select facts.id, x.k, y.k as l from n1 x join facts on facts.a = x.k"
    creating = asyncio.create_task(here.run(f"{both} join n2 y on facts.b = y.k", background_ddl="true"))
    seen: list[str] = []

    async def started() -> bool:
        of_facts = [one for one in here.builds.tasks if one.relation == 1]
        assert len(of_facts) <= 1
        seen.append(await here.waiting("star") if creating.done() else "")
        return creating.done() and await here.started("star")

    await here.until(started)
    assert [one for one in seen if "deadlock" in one or "did not answer" in one] == []
    built = await here.store.rows("select count(*) from pg_indexes where tablename = 't_1' and indexname ~ '_by_'")
    assert built == [(2,)]


N1 = RelationId(2)


async def test_f3_a_dropped_relation_is_hidden_while_a_reader_keeps_it(here: Here, reader: Connection) -> None:
    """I9: the transaction is named, nobody reads the relation any more, and it is gone after the transaction."""
    left = await here.dropped(N1)
    whose = f"session {reader.info.backend_pid} of login {reader.info.user}"
    assert left.held is not None
    assert left.held.startswith(f"the transaction of {whose}, open since 20")
    async with await psycopg.AsyncConnection.connect(await here.store.read_url("other")) as other:
        with pytest.raises(errors.InsufficientPrivilege):
            await other.execute("select count(*) from n1")
    async with here.stores.begin() as tx:
        told = [one.facts for one in await tx.events.since(0, limit=100) if one.kind == "relation.not_removed"]
    assert told == [{"relation": N1, "name": "n1", "error": left.held}]
    assert await here.there(N1)
    await reader.rollback()
    assert await here.clean_up()
    assert not await here.there(N1)


async def test_f3_a_short_transaction_is_waited_for(here: Here, reader: Connection) -> None:
    """DROP returns with everything gone, unless somebody keeps it for long."""
    async with here.stores.begin() as tx:
        await tx.catalog.remove(N1)
    assert not await here.clean_up()
    async with here.stores.begin() as tx:
        assert [one.held for one in await tx.cleanups.all()] == [None]
    await reader.rollback()
    assert await here.clean_up()


async def test_f3_a_name_that_a_reader_keeps_is_given_to_the_next_relation(here: Here, reader: Connection) -> None:
    """Its session is ended, because it alone stands in the way of everybody else."""
    await here.dropped(N1)
    new = await here.table("create table n1 (id bigint primary key, other text)")
    async with await psycopg.AsyncConnection.connect(await here.store.read_url("other")) as other:
        cursor = await other.execute("select other from n1")
        assert await cursor.fetchall() == []
    assert await here.clean_up()
    assert not await here.there(N1)
    assert await here.there(new)
    with pytest.raises(psycopg.OperationalError):
        await reader.execute("select 1")


async def test_f3_a_name_that_an_administrator_keeps_waits_for_the_named_session(here: Here) -> None:
    """A session that is not a reader's is not ended."""
    async with await psycopg.AsyncConnection.connect(here.store.url) as keeper:
        await keeper.execute("select count(*) from n1")
        await here.dropped(N1)
        creating = asyncio.create_task(here.run("create table n1 (id bigint primary key, other text)"))

        async def named() -> bool:
            async with here.stores.begin() as tx:
                found = await tx.jobs.where({JobState.INITIAL})
            return any(f"session {keeper.info.backend_pid} of login" in (job.preparing or "") for job in found)

        await here.until(named)
        creating.cancel()
