"""S5, N1 and N3: the limits of people's own tools hold, whatever their sessions set, and nobody waits for them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest
from psycopg import errors

from service.domain.sessions import Ended, SessionLimits
from service.serving.read_sessions import open_read_sessions
from tests.support.state_store import Store

pytestmark = pytest.mark.postgres

Connection = psycopg.AsyncConnection[tuple[object, ...]]
MOMENT, DAY = timedelta(milliseconds=50), timedelta(days=1)
ENDLESS = "select count(*) from generate_series(1, 1000000000) a, generate_series(1, 1000000000) b"


@pytest.fixture
async def lifted(store: Store) -> AsyncGenerator[Connection]:
    """A session of the read login that has lifted its own limits, in a transaction."""
    connection = await psycopg.AsyncConnection.connect(await store.read_url())
    for name in ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"):
        await connection.execute(f"set {name} = 0".encode())
    await connection.execute("select 1")
    yield connection
    await connection.close()


async def ended(store: Store, limits: SessionLimits) -> Ended:
    async with open_read_sessions(store.url, store.logins.read, limits) as sessions, asyncio.timeout(60):
        while not (found := await sessions.end_overdue()):
            pass
    (one,) = found
    return one


async def test_s5_an_idle_transaction_ends_though_the_session_has_lifted_the_limit(
    store: Store, lifted: Connection
) -> None:
    pid, login = lifted.info.backend_pid, lifted.info.user
    one = await ended(store, SessionLimits(statement=DAY, idle=MOMENT, transaction=DAY))
    assert (one.pid, one.login) == (pid, login)
    assert one.reason == "idle, its transaction was open for more than 0:00:00.050000"
    with pytest.raises(psycopg.OperationalError):
        await lifted.execute("select 1")


async def test_s5_a_transaction_ends_however_busy_it_is(store: Store, lifted: Connection) -> None:
    one = await ended(store, SessionLimits(statement=DAY, idle=DAY, transaction=MOMENT))
    assert one.reason == "its transaction was open for more than 0:00:00.050000"
    with pytest.raises(psycopg.OperationalError):
        await lifted.execute("select 1")


async def test_s5_a_statement_ends_though_the_session_has_lifted_the_limit(store: Store, lifted: Connection) -> None:
    running = asyncio.create_task(lifted.execute(ENDLESS))
    one = await ended(store, SessionLimits(statement=MOMENT, idle=DAY, transaction=DAY))
    assert one.reason == "its statement was open for more than 0:00:00.050000"
    with pytest.raises(psycopg.OperationalError):
        await running


@pytest.mark.parametrize("statement", ["delete from {}", "insert into {} values (1)", "update {} set id = 1"])
async def test_i13_a_session_ends_that_has_a_lock_for_which_others_wait(
    store: Store, lifted: Connection, statement: str
) -> None:
    """No right is needed to prepare what changes rows, and indexes were not built until the transaction ended."""
    await store.run("create table public.theirs(id int)")
    await lifted.execute("set default_transaction_read_only = off")
    await lifted.execute(f"prepare p as {statement.format('public.theirs')}".encode())
    one = await ended(store, SessionLimits(statement=DAY, idle=DAY, transaction=DAY))
    assert one.pid == lifted.info.backend_pid
    assert one.barred


async def test_a_session_that_only_reads_goes_on_however_it_is_isolated(store: Store, lifted: Connection) -> None:
    await store.run("create table public.read_by_all(id int)")
    await store.run("grant select on public.read_by_all to public")
    await lifted.rollback()
    await lifted.execute("begin isolation level serializable read write")
    await lifted.execute("select from public.read_by_all")
    async with open_read_sessions(store.url, store.logins.read, SessionLimits()) as sessions:
        assert await sessions.end_overdue() == []
    await lifted.execute("select 1")


async def test_s5_sessions_within_their_limits_and_those_of_others_go_on(store: Store, lifted: Connection) -> None:
    async with await psycopg.AsyncConnection.connect(store.url) as owner, owner.transaction():
        await owner.execute("select 1")
        async with open_read_sessions(store.url, store.logins.read, SessionLimits()) as sessions:
            assert await sessions.end_overdue() == []
        none = SessionLimits(timedelta(0), timedelta(0), timedelta(0))
        async with open_read_sessions(store.url, store.logins.read, none) as sessions:
            assert [one.pid for one in await sessions.end_overdue()] == [lifted.info.backend_pid]
        await owner.execute("select 1")


async def fill_lock_table(conn: Connection, savepoints: int) -> None:
    """Give each of many nested transactions a number, and so a lock, until no lock is left."""
    nested = ";".join(f"savepoint s{number}" for number in range(savepoints))
    with pytest.raises(errors.OutOfMemory):
        await conn.execute(f"{nested};alter role current_user set work_mem = '5MB'".encode())


async def test_n1_sessions_that_fill_the_lock_table_end_at_the_next_look(store: Store) -> None:
    opened = [await psycopg.AsyncConnection.connect(await store.read_url(f"t{number}")) for number in range(4)]
    async with open_read_sessions(store.url, store.logins.read, SessionLimits()) as sessions:
        assert await sessions.end_overdue() == []
        # Whatever the catalogs' caches knew is forgotten.
        await store.read_url("other")
        for conn, savepoints in zip(opened, (60_000, 2_000, 200, 50), strict=True):
            await conn.execute("set transaction read write")
            await fill_lock_table(conn, savepoints)
        with pytest.raises(errors.OutOfMemory):
            await store.rows("select count(*) from pg_roles, pg_shdescription, pg_tablespace, pg_shseclabel")
        found = await sessions.end_overdue()
        assert {one.pid for one in found} == {conn.info.backend_pid for conn in opened}
        assert {one.reason for one in found} == {"it wrote, and others wait for its locks"}
        assert await store.rows("select count(*) > 0 from pg_roles, pg_tablespace") == [(True,)]
        assert await sessions.end_overdue() == []
    for conn in opened:
        await conn.close()


async def read_all(conn: Connection, names: list[tuple[object, ...]]) -> None:
    """Lock relations and their indexes, as tools do that list them, until no lock is left."""
    with suppress(errors.OutOfMemory):
        await conn.execute(";savepoint s;".join(f"select from {name} limit 0" for (name,) in names).encode())


async def test_a2_sessions_that_fill_the_lock_table_by_reading_end_at_the_next_look(store: Store) -> None:
    opened = [await psycopg.AsyncConnection.connect(await store.read_url(f"t{number}")) for number in range(9)]
    small, *reading = opened
    readable = "relkind in ('r', 'v') and has_table_privilege(oid, 'select') and relname <> 'pg_locks'"
    found_names = await small.execute(f"select oid::regclass::text from pg_class where {readable}".encode())
    names = await found_names.fetchall()
    async with (
        open_read_sessions(store.url, store.logins.read, SessionLimits()) as sessions,
        await psycopg.AsyncConnection.connect(store.url) as owner,
    ):
        assert await sessions.end_overdue() == []
        await fill_lock_table(owner, 80_000)
        ((held,),) = await store.rows(f"select count(*) from pg_locks where pid = {owner.info.backend_pid}")
        # Room for some readers is left.
        await owner.execute(f"rollback to savepoint s{int(str(held)) - 1500}".encode())
        for conn in reading:
            await read_all(conn, names)
        found = await sessions.end_overdue()
        assert len(found) >= 2
        assert {one.pid for one in found} < {conn.info.backend_pid for conn in reading}
        assert {one.reason for one in found} == {
            "the lock table was full, and it held more locks than max_locks_per_transaction"
        }
        assert await sessions.end_overdue() == []
        await small.execute("select 1")
    for conn in opened:
        await conn.close()


async def test_n3_a_session_that_holds_back_notifications_ends(store: Store) -> None:
    url = await store.read_url()
    # One is looked at before the session that listens, and one after it.
    early = await psycopg.AsyncConnection.connect(url)
    listening = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with (
        early,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as idle,
        await psycopg.AsyncConnection.connect(url) as late,
        open_read_sessions(store.url, store.logins.read, SessionLimits()) as sessions,
    ):
        await listening.execute("listen foo")
        await listening.execute("begin")
        await listening.execute("select 1")
        await early.execute("select 1")
        await late.execute("select 1")
        assert await sessions.end_overdue() == []
        await idle.execute("set default_transaction_read_only = off")
        notify = "execute format('notify foo, %L', i || repeat('x', 7000))"
        await idle.execute(f"do $$ begin for i in 1 .. 12000 loop {notify}; end loop; end $$".encode())
        assert await store.rows("select pg_notification_queue_usage() > 0") == [(True,)]
        (one,) = await sessions.end_overdue()
        assert one.pid == listening.info.backend_pid
        assert one.reason == "its transaction held back the notifications of all others"
        assert await store.rows("select pg_notification_queue_usage()") == [(0,)]
        await idle.execute("select 1")
        await early.execute("select 1")
        await late.execute("select 1")
    await listening.close()
