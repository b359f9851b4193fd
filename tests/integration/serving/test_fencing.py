"""I7: what a deposed leader or an old generation does in the state store comes to nothing, however late it commits."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

import psycopg
import pytest

from service.domain.errors import Deposed, Unavailable
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, Term
from service.serving import fencing
from service.serving.connections import Connection
from tests.support.state_store import Store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
ORDERS = relation(1, "orders")
HOLD = "select state.hold_generation(1, 5)"


@pytest.fixture(autouse=True)
async def _created(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.fences.fence(DATABASE_GRAPH, Generation(5), term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS])


@asynccontextmanager
async def _writer(url: str, name: str, key: int = 1) -> AsyncGenerator[Connection]:
    """A worker's session that has written a row and not committed."""
    conn = await psycopg.AsyncConnection.connect(url, application_name=name)
    try:
        await conn.execute("insert into state.t_1 values (0, %s, 'zombie', 11)", [key])
        yield conn
    finally:
        await conn.close()


async def _rows(store: Store) -> list[tuple[object, ...]]:
    return await store.rows("select v, _from from state.t_1")


async def _blocked(store: Store, waiting: "asyncio.Task[None]") -> None:
    """Return once some session waits for a lock. Fails when `waiting` ends first."""
    async with asyncio.timeout(10):
        while await store.rows("select 1 from pg_locks where not granted limit 1") == []:
            assert not waiting.done(), "it did not wait"


async def _computing(store: Store, running: "asyncio.Task[object]") -> None:
    """Return once the session of an old generation computes. Fails when it ends first."""
    async with asyncio.timeout(10):
        while not await store.rows("select from pg_stat_activity where query ~ '^select length' and state = 'active'"):
            assert not running.done(), "it computed nothing for long"


def _task(work: Awaitable[None]) -> "asyncio.Task[None]":
    async def run() -> None:
        await work

    return asyncio.create_task(run())


@pytest.mark.parametrize("login", ["owner", "writer"])
async def test_an_old_session_idle_in_its_transaction_is_ended(store: Store, login: str) -> None:
    url = store.url if login == "owner" else store.logins.writer_url
    async with _writer(url, "tidefill:1:5") as conn:
        await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
        with pytest.raises(psycopg.OperationalError):
            await conn.execute(HOLD)
    assert await _rows(store) == []


async def test_s4_a_session_of_a_reader_counts_as_no_old_one(store: Store) -> None:
    """A job fails when a session of an old generation does not end, and a read login names its sessions itself."""
    async with await psycopg.AsyncConnection.connect(store.logins.reader_url, application_name="tidefill:1:5") as conn:
        await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
        await conn.execute("select 1")


async def test_an_old_session_that_was_not_found_fails_its_check(store: Store) -> None:
    async with _writer(store.url, "tidefill-somebody") as conn:
        await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
        with pytest.raises(psycopg.Error, match="generation 5 of graph 1 is over") as refused:
            await conn.execute(HOLD)
        assert refused.value.sqlstate == "TF001"
        await conn.commit()
    assert await _rows(store) == []


async def test_a_present_generation_commits(store: Store) -> None:
    async with _writer(store.logins.writer_url, "tidefill:1:5") as conn:
        await conn.execute(HOLD)
        await conn.commit()
    assert await _rows(store) == [("zombie", 11)]


async def test_a_writer_between_check_and_commit_is_ended(store: Store) -> None:
    async with _writer(store.url, "tidefill:1:5") as conn:
        await conn.execute(HOLD)
        await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
        with pytest.raises(psycopg.OperationalError):
            await conn.commit()
    assert await _rows(store) == []


async def test_the_fence_does_not_pass_a_checked_writer_it_cannot_end(store: Store) -> None:
    async with _writer(store.url, "tidefill-somebody") as conn:
        await conn.execute(HOLD)
        with pytest.raises(Unavailable):
            await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
        await conn.commit()
    await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
    assert await _rows(store) == [("zombie", 11)]
    await store.tables.roll_back([ORDERS.id], DATABASE_GRAPH, Epoch(10), term=TERM)
    assert await _rows(store) == []


async def test_i13_a_session_that_cannot_be_ended_is_told_with_its_generation(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "END_SECONDS", 0.3)
    endless = "select length(ltrim(repeat('a', 100000), repeat('b', 20000) || 'a'))"
    async with _writer(store.url, "tidefill:1:5") as conn:
        running = asyncio.create_task(conn.execute(endless))
        await _computing(store, running)
        assert await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM) == {5}
        with pytest.raises(psycopg.OperationalError):
            await running
    assert not await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)


async def test_other_graphs_and_the_present_generation_live_on(store: Store) -> None:
    async with _writer(store.url, "tidefill:2:5") as other, _writer(store.url, "tidefill:1:6", 2) as present:
        await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
        for conn in (other, present):
            assert await (await conn.execute("select 1")).fetchone() == (1,)
            await conn.rollback()


async def test_a_leader_deposed_in_its_transaction_publishes_nothing(store: Store) -> None:
    async def write() -> None:
        async with fencing.writing(store.pool, TERM) as conn:
            await conn.execute("update state.published set epoch = 99")
            await store.fences.claim(Term(8))

    with pytest.raises(Deposed):
        await write()
    assert await store.rows("select epoch from state.published") == [(10,)]


async def test_a_claim_waits_for_the_commit_of_a_leader_that_was_checked(store: Store) -> None:
    async with store.pool.connection() as conn, conn.transaction():
        await conn.execute("update state.published set epoch = 11")
        await fencing.assert_term(conn, TERM)
        claiming = _task(store.fences.claim(Term(8)))
        await _blocked(store, claiming)
    await claiming
    assert await store.rows("select epoch from state.published") == [(11,)]


async def test_a_frozen_leader_is_ended_by_the_server(store: Store) -> None:
    """Its successor must not wait for it without bound."""
    assert await store.rows("show idle_in_transaction_session_timeout") == [("30s",)]
    assert await store.rows("show lock_timeout") == [("5s",)]
