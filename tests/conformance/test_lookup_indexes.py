"""The examination of `LookupIndexes`: indexes by which stages find rows."""

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import pytest

from service.domain.errors import Deposed
from service.domain.fan_out import ColumnStatistics
from service.protocol.ids import RelationId, Term
from service.protocol.stage import LookupIndex, lookup_index
from service.serving.lookups import PostgresLookups, index_name
from tests.conformance.conftest import Examined
from tests.support.state_store import Store, prepared_store, relation

TERM = Term(7)
ORDERS = relation(1, "orders", {"id": "bigint", "a b": "integer", "v": "text"})
BOTH = LookupIndex(relation=ORDERS.id, columns=("a b", "v"))
ONE = LookupIndex(relation=ORDERS.id, columns=("v",))
NOWHERE = LookupIndex(relation=RelationId(9), columns=("v",))


@pytest.fixture
async def store(examined: Examined) -> Examined:
    await examined.fences.claim(TERM)
    await examined.tables.create(ORDERS, term=TERM)
    return examined


@pytest.fixture
async def postgres(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        await prepared.fences.claim(TERM)
        await prepared.tables.create(ORDERS, term=TERM)
        yield prepared


async def test_an_index_is_built_once_and_dropped_when_nobody_needs_it(store: Examined) -> None:
    """I9."""
    lookups = store.lookups
    assert await lookups.missing([BOTH, ONE, NOWHERE]) == {BOTH, ONE}
    for _ in range(2):
        await lookups.build(BOTH, term=TERM)
    assert await lookups.missing([BOTH, ONE]) == {ONE}
    await lookups.build(ONE, term=TERM)
    assert {one for one in (BOTH, ONE) if lookups.name(one) in await lookups.stored()} == {BOTH, ONE}
    for _ in range(2):
        assert await lookups.drop([lookups.name(ONE)], term=TERM) == {lookups.name(ONE)}
    assert await lookups.missing([BOTH, ONE]) == {ONE}
    (left,) = (await lookups.stored()).items()
    assert (left[0], left[1].complete, left[1].bytes > 0) == (lookups.name(BOTH), True, True)


async def test_a_hidden_relation_has_its_indexes_at_once(store: Examined) -> None:
    hidden = relation(2, "__m_1")
    needed = LookupIndex(relation=hidden.id, columns=("v",))
    for _ in range(2):
        await store.tables.create(hidden, term=TERM, lookups=[needed])
    assert await store.lookups.missing([needed]) == frozenset()


async def test_a_deposed_leader_builds_and_drops_nothing(store: Examined) -> None:
    """I7."""
    await store.lookups.build(ONE, term=TERM)
    await store.fences.claim(Term(8))
    with pytest.raises(Deposed):
        await store.lookups.build(BOTH, term=TERM)
    with pytest.raises(Deposed):
        await store.lookups.drop([store.lookups.name(ONE)], term=TERM)
    assert await store.lookups.missing([BOTH, ONE]) == {BOTH}


@pytest.mark.postgres
async def test_what_an_interrupted_build_left_is_built_again(postgres: Store) -> None:
    lookups = PostgresLookups(postgres.pool)
    await lookups.build(ONE, term=TERM)
    name = index_name(ONE)
    await postgres.run(f"update pg_index set indisvalid = false where indexrelid = 'state.{name}'::regclass")
    assert await lookups.missing([ONE]) == {ONE}
    await lookups.build(ONE, term=TERM)
    assert await lookups.missing([ONE]) == frozenset()


@pytest.mark.postgres
async def test_writers_go_on_while_an_index_waits_to_be_built(postgres: Store) -> None:
    """I13. The build waits for the older transaction; a later one does not wait for the build."""
    lookups, insert = PostgresLookups(postgres.pool), "insert into state.t_1 (_vnode, id, _from) values (0, {}, 1)"
    watched = "select 1 from pg_stat_progress_create_index where phase like 'waiting for%'"
    async with await psycopg.AsyncConnection.connect(postgres.url, application_name="tidefill-test") as writer:
        await writer.execute(insert.format(1).encode())
        building = asyncio.create_task(lookups.build(ONE, term=TERM))
        async with asyncio.timeout(20):
            while not await postgres.rows(watched):
                assert not building.done()
        # The owner's lock timeout is 5 s.
        await postgres.run(insert.format(2))
        assert not building.done()
        await writer.commit()
        await building
    assert await lookups.missing([ONE]) == frozenset()
    settings = await postgres.rows("show lock_timeout")
    assert settings == [("5s",)], "the connection has its own settings again"


@pytest.mark.postgres
async def test_no_index_refuses_a_long_value(postgres: Store) -> None:
    """I13. A view that looks up rows by a text must not make the INSERT of another fail."""
    lookups = PostgresLookups(postgres.pool)
    by_text, by_number = lookup_index(ORDERS, ["v"]), lookup_index(ORDERS, ["v", "id"])
    assert (by_text.hashed, by_number) == (True, LookupIndex(ORDERS.id, ("id",)))
    await lookups.build(by_text, term=TERM)
    assert await lookups.missing([by_text]) == frozenset()
    # Random letters, because Postgres compresses others.
    long = "(select string_agg(md5(g::text), '') from generate_series(1, 300) g)"
    await postgres.run(f"insert into state.t_1 (_vnode, id, v, _from) values (0, 1, {long}, 1)")
    assert await postgres.rows("select length(v) from state.t_1") == [(9600,)]


@pytest.mark.postgres
async def test_statistics_are_those_of_the_planner_and_come_with_an_index(postgres: Store) -> None:
    lookups = PostgresLookups(postgres.pool)
    await postgres.run("alter table state.t_1 set (autovacuum_enabled = off)")
    insert = 'insert into state.t_1 (_vnode, id, "a b", v, _from) select 0, {0} + g, {0} + g % 50, null, 1'
    insert += " from generate_series(1, 10000) g"
    await postgres.run(insert.format(0))
    assert await lookups.statistics([ORDERS.id, RelationId(9)]) == {}
    await lookups.build(LookupIndex(ORDERS.id, ("a b",)), term=TERM)
    known = (await lookups.statistics([ORDERS.id]))[ORDERS.id]
    assert known.rows == 10_000
    assert known.columns["a b"] == ColumnStatistics(distinct=50, nulls=0, width=4)
    # A share of the rows, in Postgres.
    assert known.columns["id"].distinct == 10_000
    # All of them NULL: no number of different values.
    assert "v" not in known.columns
    await postgres.run(insert.format(10_000))
    grown = (await lookups.statistics([ORDERS.id]))[ORDERS.id]
    assert grown.rows == pytest.approx(20_000, rel=0.05)
