"""What a real server says of itself and of its tables, and what is changed there."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from service.domain.errors import Conflict, Invalid, Unavailable
from service.domain.external import ExternalIndex, ExternalTable, Identity
from service.ports.sources import Address, SourceLoad
from service.protocol.cdc import lsn_of
from service.sources import replication
from service.sources.replication import PostgresReplication
from service.sources.servers import PostgresExternalServers
from service.sources.tables import PostgresExternalTables
from tests.support.external import External, external_database
from tests.support.waiting import until

pytestmark = pytest.mark.postgres

SERVERS, TABLES = PostgresExternalServers(), PostgresExternalTables()
REPLICATION = PostgresReplication()


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        yield one


async def table(external: External, name: str, schema: str = "public") -> ExternalTable:
    found = await TABLES.table(external.address, schema, name)
    assert found is not None
    return found


async def test_types_are_told_with_what_domains_are_over(external: External) -> None:
    external.run(
        "create domain short as varchar(9) not null",
        "create domain shorter as short check (length(value) < 5)",
        "create type mood as enum ('ok')",
        'create table "Odd ""one" (a shorter, b numeric(5,2)[], c timestamp(3), d mood, "F" int)',
        'alter table "Odd ""one" drop column b',
    )
    found = await table(external, 'Odd "one')
    told = [(one.name, one.type, one.base, one.nullable, one.ordered) for one in found.columns]
    assert told == [
        ("a", "public.shorter", "character varying(9)", True, True),
        ("c", "timestamp(3) without time zone", "timestamp(3) without time zone", True, True),
        ("d", "public.mood", "public.mood", True, True),
        ("F", "integer", "integer", True, True),
    ]
    assert (found.indexes, found.identity, found.rows) == ((), Identity.DEFAULT, 0)
    assert await TABLES.table(external.address, "public", "nowhere") is None


async def test_only_indexes_that_are_keys_are_told(external: External) -> None:
    external.run(
        "create table t (a int not null, b int not null, c int, d int not null, primary key (b, a))",
        "create unique index on t (d) include (c)",
        "create unique index on t (c)",
        "create unique index on t (d desc)",
        "create unique index on t (a) where a > 0",
        "create unique index on t ((a + 1))",
        "create index on t (a, d)",
        "alter table t add constraint late unique (d, b) deferrable",
        "alter table t replica identity using index t_d_c_idx",
    )
    found = await table(external, "t")
    assert found.indexes == (ExternalIndex(("b", "a"), primary=True), ExternalIndex(("d",), identity=True))
    assert found.identity is Identity.INDEX


async def test_a_partitioned_table_is_as_its_partitions_are(external: External) -> None:
    external.run(
        "create table p (id int primary key, n int) partition by range (id)",
        "create table p1 partition of p for values from (0) to (100)",
        "create table p2 partition of p for values from (100) to (200)",
        "insert into p select n, n from generate_series(0, 199) n",
        "analyze p",
    )
    found = await table(external, "p")
    assert (found.partitioned, found.identity, found.rows) == (True, Identity.DEFAULT, 200)
    external.run("alter table p1 replica identity full")
    assert (await table(external, "p")).identity is Identity.DEFAULT
    external.run("alter table p2 replica identity nothing")
    assert (await table(external, "p")).identity is Identity.NOTHING
    assert await TABLES.extent(external.address, found, "id") == (0, 199)
    sample = await TABLES.sample(external.address, found, "id")
    assert sorted(map(int, sample)) == list(map(int, sample))


async def test_rows_are_estimated_and_sampled_without_statistics(external: External) -> None:
    external.run('create table t (id text collate "C" primary key) with (autovacuum_enabled = false)')
    assert (await table(external, "t")).rows == 0
    external.run("insert into t select 'k' || lpad(n::text, 4, '0') from generate_series(1, 2000) n")
    found = await table(external, "t")
    assert found.rows is not None
    assert 200 < found.rows < 20_000
    sample = await TABLES.sample(external.address, found, "id")
    assert list(sample) == sorted(sample)
    assert len(sample) > 100
    assert await TABLES.extent(external.address, await empty(external), "id") is None


async def empty(external: External) -> ExternalTable:
    external.run("create table nothing (id int primary key)")
    return await table(external, "nothing")


async def test_what_a_login_may_not_is_told(external: External) -> None:
    external.run(
        "create table theirs (id int primary key)",
        "create schema closed",
        "create table closed.t (id int)",
        superuser=True,
    )
    found = await table(external, "theirs")
    assert (found.selectable, found.owned, found.rows) == (False, False, None)
    assert not (await table(external, "t", "closed")).selectable
    external.run(f"grant select on theirs to {external.login}", superuser=True)
    found = await table(external, "theirs")
    assert (found.selectable, found.owned) == (True, False)
    await REPLICATION.create_publication(external.address, "p")
    with pytest.raises(Invalid, match="must be owner"):
        await REPLICATION.publish(external.address, "p", "public", "theirs")


async def test_a_publication_is_told_with_what_it_leaves_out(external: External) -> None:
    external.run(
        "create table a (id int primary key, x int)",
        "create table b (id int primary key, x int)",
        "create table c (id int primary key, g int generated always as (id + 1) stored)",
        "create publication few for table a (id), b where (id > 5), c with (publish = 'insert, update')",
    )
    found = await TABLES.publication(external.address, "few")
    assert found is not None
    assert found.tables == {("public", "a"), ("public", "b"), ("public", "c")}
    assert found.partial == {("public", "a"), ("public", "b")}
    assert (found.lacks, found.via_root, found.generated) == (("delete", "truncate"), False, False)
    await REPLICATION.create_publication(external.address, "ours")
    ours = await TABLES.publication(external.address, "ours")
    assert ours is not None
    assert (ours.tables, ours.lacks, ours.via_root, ours.generated) == (frozenset(), (), True, True)
    with pytest.raises(Conflict, match="already exists"):
        await REPLICATION.create_publication(external.address, "ours")
    assert await TABLES.publication(external.address, "none") is None


async def test_every_transaction_that_wrote_before_a_table_was_published_is_older(external: External) -> None:
    """A snapshot's `xmax` would be too early: transactions that run have ids beyond it."""
    external.run("create table t (id int primary key)")
    await REPLICATION.create_publication(external.address, "p")
    first, _ = await REPLICATION.publish(external.address, "p", "public", "t")
    with psycopg.connect(external.url) as running:
        running.execute("insert into t values (1)")
        row = running.execute("select pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        again, _ = await REPLICATION.publish(external.address, "p", "public", "t")
    assert first < row[0] < again
    await REPLICATION.unpublish(external.address, "p", "public", "t")
    await REPLICATION.unpublish(external.address, "p", "public", "t")
    await REPLICATION.drop_publication(external.address, "p")
    await REPLICATION.drop_publication(external.address, "p")


async def test_a_slot_is_made_skipped_told_and_dropped(external: External) -> None:
    external.run("create table t (id int primary key)")
    await REPLICATION.create_publication(external.address, "p")
    made = await REPLICATION.create_slot(external.address, "s")
    with pytest.raises(Conflict, match="already exists"):
        await REPLICATION.create_slot(external.address, "s")
    facts = await SERVERS.slot(external.address, "s")
    assert facts is not None
    assert (facts.confirmed, facts.active, facts.why_lost) == (made, False, None)
    external.run("insert into t values (1)")
    skipped, after = await REPLICATION.skip(external.address, "s")
    assert skipped != made
    assert after > 0
    facts = await SERVERS.slot(external.address, "s")
    assert facts is not None
    assert facts.confirmed == skipped
    assert facts.retained_bytes is not None
    external.run("select pg_create_physical_replication_slot('physical')")
    other = await SERVERS.slot(external.address, "physical")
    external.run("select pg_drop_replication_slot('physical')")
    assert other is not None
    assert other.why_lost == 'slot "physical" is physical'
    await REPLICATION.drop_slot(external.address, "s")
    await REPLICATION.drop_slot(external.address, "s")
    assert await SERVERS.slot(external.address, "s") is None


async def test_a_slot_far_behind_is_skipped_step_by_step(external: External, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that is cancelled moves nothing, so that none may have too much to read."""
    monkeypatch.setattr(replication, "STEP_BYTES", 1 << 20)
    external.run("create table t (id int)")
    at = [lsn_of(await REPLICATION.create_slot(external.address, "s"))]
    external.run("insert into t select generate_series(1, 40000)")
    ((end,),) = external.rows("select pg_current_wal_flush_lsn()::text")
    while at[-1] < lsn_of(end):
        at.append(lsn_of((await REPLICATION.skip(external.address, "s"))[0]))
        assert at[-2] < at[-1] < at[-2] + (2 << 20)
    assert len(at) > 3
    await REPLICATION.drop_slot(external.address, "s")


async def test_a_server_is_told_as_it_is(external: External) -> None:
    facts = await SERVERS.server(external.address)
    assert (facts.wal_level, facts.in_recovery, facts.replication, facts.creates) == ("logical", False, True, True)
    assert facts.version_number >= 140000
    assert facts.slots_max > facts.slots


async def test_who_is_not_let_in_is_told_in_the_servers_words(external: External) -> None:
    at = external.address
    wrong = Address("pg", at.place, at.conninfo.replace("password='", "password='not "))
    with pytest.raises(Invalid, match="password authentication failed") as error:
        await SERVERS.server(wrong)
    assert error.value.__cause__ is None
    nowhere = Address("pg", "nowhere", f"{at.conninfo} port=1")
    with pytest.raises(Unavailable, match="cannot be reached") as away:
        await SERVERS.server(nowhere)
    for one in (error, away):
        assert "that nobody is shown" not in one.value.message


async def test_the_load_is_of_others_and_of_replicas_for_who_may_see_it(external: External) -> None:
    assert await SERVERS.load(external.address) == SourceLoad(lag_bytes=None, active=None)
    assert not (await SERVERS.server(external.address)).monitors
    external.run(f"grant pg_read_all_stats to {external.login}", superuser=True)
    assert (await SERVERS.server(external.address)).monitors
    assert (await SERVERS.load(external.address)).active == 0
    shop = await psycopg.AsyncConnection.connect(external.url, application_name="a shop")
    reader = await psycopg.AsyncConnection.connect(external.url, application_name="tidefill:cdc:slot")
    with psycopg.connect(external.url, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(1)")
        async with shop, reader, asyncio.TaskGroup() as tasks:
            for one in (shop, reader):
                tasks.create_task(one.execute("select pg_advisory_xact_lock_shared(1)"))
            waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            await asyncio.to_thread(until, lambda: holder.execute(waiting).fetchone() == (2,), what="both wait")
            assert (await SERVERS.load(external.address)).active == 1, "the shop's, and not ours"
            holder.execute("select pg_advisory_unlock(1)")
