"""What was made in an external database goes with what it was made for, also when that database is away (I9)."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from service.domain.errors import Conflict, Unavailable
from service.operations.sources import shown, upkeep
from service.operations.sources.registry import ABANDONED
from service.operations.statements import dispatch
from service.ports.source_records import NewSource, Password
from service.ports.sources import Address
from service.protocol.cdc import Lsn, Published
from service.sources.replication import PostgresReplication
from tests.support.external import PASSWORD, External, Following, external_database, following
from tests.support.http import changed
from tests.support.meta_store import A_TEST

pytestmark = pytest.mark.postgres


class DiedError(BaseException):
    """The service is gone: nothing that it would have done comes any more."""


@dataclass
class Faulty(PostgresReplication):
    """The real thing, whose server is `away` when that is said, or whose slot cannot be made."""

    away: bool = False
    slotless: bool = False
    deadly: bool = False
    removals: list[str] = field(default_factory=list[str])
    """The places in which something was to be removed, in order."""
    turn_of_other: asyncio.Event | None = None
    """The server of `pg` answers once it is the turn of the source `other`."""
    rival: External | None = None
    """Somebody who makes a slot of the same name just before."""

    async def create_slot(self, at: Address, name: str) -> Lsn:
        if self.slotless:
            raise Unavailable("transactions that run there do not end")
        if self.rival is not None:
            # It waits for every transaction that runs, of which the leader beside us may have one.
            made = f"select pg_create_logical_replication_slot('{name}', 'pgoutput')"
            await asyncio.to_thread(self.rival.run, made)
        return await super().create_slot(at, name)

    async def publish(self, at: Address, publication: str, schema: str, table: str) -> tuple[int, Published]:
        after = await super().publish(at, publication, schema, table)
        if self.deadly:
            raise DiedError
        return after

    async def unpublish(self, at: Address, publication: str, schema: str, table: str) -> None:
        await self._check(at)
        await super().unpublish(at, publication, schema, table)

    async def drop_publication(self, at: Address, name: str) -> None:
        await self._check(at)
        await super().drop_publication(at, name)

    async def drop_slot(self, at: Address, name: str) -> None:
        await self._check(at)
        await super().drop_slot(at, name)

    async def _check(self, at: Address) -> None:
        self.removals.append(at.name)
        if self.away:
            raise Unavailable("it is away")
        if self.turn_of_other is None:
            return
        if at.name == "other":
            self.turn_of_other.set()
        async with asyncio.timeout(20):
            await self.turn_of_other.wait()


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        one.run("create table orders (id bigint primary key)", "create table lines (id bigint primary key)")
        yield one


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


@pytest.fixture
async def here(database_url: str, external: External, faulty: Faulty) -> AsyncGenerator[Following]:
    async with following(database_url, external) as one:
        ports: dict[str, Any] = {"replication": faulty}
        one.leader.world = one.world = changed(one.world, **ports)
        yield one


def later(here: Following, span: timedelta) -> None:
    clock: Any = here.world.clock
    clock.wall += span


async def cleaned(here: Following) -> int:
    return await upkeep.clean_up(here.world, term=here.leader.term)


async def test_a_drop_does_not_wait_for_a_database_that_is_away(here: Following, faulty: Faulty) -> None:
    external = here.external
    await here.run(external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    faulty.away = True
    (notice,) = (await here.run("DROP TABLE t")).notices
    assert notice.startswith('the table "public.orders" is removed from the external database once that can be done')
    assert len(external.published()) == 1
    notices = (await here.run("DROP SOURCE pg")).notices
    assert len(notices) == 3
    await cleaned(here)
    listed = "select source_name, what, attempts > 0, error from rw_catalog.rw_source_cleanups order by what"
    assert here.stored(listed) == [("pg", what, True, "it is away") for what in ("publication", "slot", "table")]
    assert [one.what for one in await shown.cleanups(here.world)] == ["table", "slot", "publication"]
    # The name is free, and whoever takes it has nothing to do with what is left.
    faulty.away = False
    await here.run(external.create_source())
    later(here, timedelta(minutes=2))
    while await cleaned(here):
        pass
    assert here.stored(listed) == []
    (source,) = await shown.sources(here.world)
    assert external.slots() == [source.slot]
    assert external.publications() == [source.publication]
    assert here.stored(f"select count(*) from tidefill.secret where value = '{PASSWORD}'") == [(1,)]


async def test_a_drop_does_not_wait_for_what_others_left_at_a_server_that_is_away(
    here: Following, faulty: Faulty
) -> None:
    """I13."""
    await here.run(here.external.create_source())
    await here.run(here.external.create_source("other"))
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    await here.run("CREATE TABLE mine (id bigint primary key)")
    faulty.away = True
    assert len((await here.run("DROP TABLE t")).notices) == 1
    assert (await here.run("DROP TABLE mine")).notices == ()
    assert len((await here.run("DROP SOURCE other")).notices) == 2, "the slot and the publication of this one alone"
    faulty.away = False


async def test_a_server_that_is_away_is_tried_once_a_tick_and_delays_no_other(here: Following, faulty: Faulty) -> None:
    """I13."""
    await here.run(here.external.create_source())
    await here.run(here.external.create_source("other"))
    faulty.away = True
    await here.run("DROP SOURCE pg")
    await here.run("DROP SOURCE other")
    later(here, timedelta(minutes=2))
    faulty.removals.clear()
    assert await cleaned(here) == 0
    assert sorted(faulty.removals) == ["other", "pg"], "the slot and the publication of each are due"
    assert {one.error for one in await shown.cleanups(here.world)} == {"it is away"}
    later(here, timedelta(minutes=2))
    faulty.away, faulty.turn_of_other = False, asyncio.Event()
    assert await cleaned(here) == 4, "pg answers once it is the turn of the other one"


async def test_a_source_that_cannot_be_made_leaves_nothing(here: Following, faulty: Faulty) -> None:
    external = here.external
    faulty.slotless = True
    with pytest.raises(Unavailable, match="do not end"):
        await here.run(external.create_source())
    await cleaned(here)
    await cleaned(here)
    assert (external.slots(), external.publications()) == ([], [])
    assert here.stored("select count(*) from tidefill.source") == [(0,)]
    assert here.stored(f"select count(*) from tidefill.secret where value = '{PASSWORD}'") == [(0,)]
    faulty.slotless = False
    await here.run(external.create_source())


async def test_what_a_service_died_over_is_cleaned_up_after_a_while(here: Following) -> None:
    """Between what it wrote down and what it would have said next: publication and slot are there."""
    external = here.external
    options = external.options
    now = here.world.clock.now()
    async with here.world.stores.begin() as tx:
        new = NewSource("pg", "", options, Password(value=PASSWORD), None, None, owns_publication=True)
        source = await tx.sources.add(new, now=now, abandoned_at=now + ABANDONED)
    await here.world.external.replication.create_publication(external.address, source.publication)
    await here.world.external.replication.create_slot(external.address, source.slot)
    with pytest.raises(Conflict, match="still being created"):
        await here.run(external.create_source())
    assert await cleaned(here) == 0
    later(here, ABANDONED)
    assert await cleaned(here) == 2
    assert (external.slots(), external.publications()) == ([], [])
    await here.run(external.create_source())


async def test_a_table_that_came_to_nothing_is_not_published(here: Following, faulty: Faulty) -> None:
    external = here.external
    await here.run(external.create_source())
    faulty.deadly = True
    with pytest.raises(DiedError):
        await here.run("CREATE TABLE o (*) FROM pg TABLE 'orders'")
    faulty.deadly = False
    await here.run("CREATE TABLE l (*) FROM pg TABLE 'lines'")
    assert len(external.published()) == 2
    later(here, ABANDONED)
    await cleaned(here)
    assert [table for _, _, table in external.published()] == ["lines"]


async def test_a_table_stays_published_for_the_last_that_follows_it(here: Following) -> None:
    external = here.external
    await here.run(external.create_source())
    await here.run("CREATE TABLE one (*) FROM pg TABLE 'orders'")
    await here.run("CREATE TABLE two (*) FROM pg TABLE 'orders'")
    await here.run("DROP TABLE one")
    assert [table for _, _, table in external.published()] == ["orders"]
    await here.run("DROP TABLE two")
    assert external.published() == []


async def test_what_a_user_made_stays_his(here: Following) -> None:
    """A publication that was there before, and the table that it published before, are not ours to remove."""
    external = here.external
    external.run("create publication theirs for table orders")
    await here.run(external.create_source(publication__name="theirs"))
    await here.run("CREATE TABLE o (*) FROM pg TABLE 'orders'")
    await here.run("CREATE TABLE l (*) FROM pg TABLE 'lines'")
    assert [table for _, _, table in external.published()] == ["lines", "orders"]
    await here.run("DROP SOURCE pg CASCADE")
    assert external.published() == [("theirs", "public", "orders")]
    external.run(f"alter role {external.login} set statement_timeout = 0")
    slot = "select pg_create_logical_replication_slot('theirs', 'pgoutput')"
    external.run(slot)
    with pytest.raises(Conflict, match='replication slot "theirs" exists'):
        await here.run(external.create_source(slot__name="theirs"))
    await cleaned(here)
    assert external.slots() == ["theirs"]


async def test_a_slot_that_somebody_else_was_quicker_to_make_is_his(here: Following, faulty: Faulty) -> None:
    external = faulty.rival = here.external
    with pytest.raises(Conflict, match='replication slot "wanted" already exists'):
        await here.run(external.create_source(slot__name="wanted"))
    await cleaned(here)
    assert (external.slots(), external.publications()) == (["wanted"], [])
    assert here.stored("select count(*) from tidefill.source") == [(0,)]


async def test_if_not_exists_finds_the_source_that_another_call_was_quicker_to_create(here: Following) -> None:
    statement = here.external.create_source().replace("SOURCE pg", "SOURCE IF NOT EXISTS pg")
    made = await here.through(
        lambda: asyncio.gather(
            dispatch.run(here.world, statement, session={}, asked_by=A_TEST),
            dispatch.run(here.world, statement, session={}, asked_by=A_TEST),
        )
    )
    assert sorted(one.notices for one in made) == [(), ('source "pg" already exists, skipping',)]
    assert len(here.external.slots()) == len(here.external.publications()) == 1
    with pytest.raises(Conflict, match="exists"):
        await here.run(here.external.create_source())


async def test_a_slot_is_dropped_when_its_last_table_has_stopped(here: Following) -> None:
    external = here.external
    await here.run(external.create_source())
    await here.run("CREATE TABLE t (*) FROM pg TABLE 'orders'")
    with pytest.raises(Conflict, match="other objects depend on it: table t"):
        await here.run("DROP SOURCE pg")
    async with here.world.stores.begin() as tx:
        source = await tx.sources.named("pg")
        assert source is not None
        await tx.sources.remove(source.id, now=here.world.clock.now())
        assert await tx.source_cleanups.due(here.world.clock.now()) == []
    await here.run("DROP TABLE t")
    await cleaned(here)
    assert (external.slots(), external.publications()) == ([], [])


async def test_one_may_give_up_what_will_never_be_there_again(here: Following, faulty: Faulty) -> None:
    await here.run(here.external.create_source())
    faulty.away = True
    await here.run("DROP SOURCE pg")
    for one in await shown.cleanups(here.world):
        await shown.give_up(here.world, one.id, asked_by=A_TEST)
    assert await shown.cleanups(here.world) == []
    assert here.stored("select count(*) from tidefill.source") == [(0,)]
    faulty.away = False
