"""I13: sessions that Postgres cannot end are waited for together, so a caller with many of them holds up nobody."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.errors import Diagnostic
from structlog.testing import capture_logs

from service.domain.errors import InUse
from service.domain.sessions import SessionLimits
from service.protocol.ids import RelationId
from service.serving import marks, read_logins, read_sessions, sessions
from service.serving.connections import Connection, open_pool
from service.serving.read_logins import PostgresReadLogins
from tests.support.state_store import Store

pytestmark = pytest.mark.postgres

END_MS = 200
LONG_MS = 600_000
DAY = timedelta(days=1)


@contextmanager
def stuck(pids: Sequence[int]) -> Generator[None]:
    """These sessions do not react, as in a function that Postgres cannot interrupt."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def connected(url: str, number: int) -> AsyncGenerator[list[Connection]]:
    """Open sessions, each in a transaction. They are in the order in which the server lists them."""
    opened = [await psycopg.AsyncConnection.connect(url) for _ in range(number)]
    try:
        listed = await opened[0].execute("select pid from pg_stat_get_activity(null)")
        order = [pid for (pid,) in await listed.fetchall()]
        for conn in opened:
            await conn.execute("select 1")
        yield sorted(opened, key=lambda conn: order.index(conn.info.backend_pid))
    finally:
        for conn in opened:
            await conn.close()


async def gone(store: Store, pid: int) -> None:
    async with asyncio.timeout(60):
        while await store.rows(f"select from pg_stat_get_activity({pid})"):
            pass


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The milliseconds of each wait of the server for sessions, while the owner ends them."""
    made: list[float] = []
    execute = psycopg.AsyncConnection[Any].execute

    async def recorded(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
        if "pg_sleep" in str(query):
            made.append(params[0] * 1000)
        return await execute(self, query, params, **options)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", recorded)
    return made


async def test_i13_a_login_s_stuck_sessions_are_waited_for_together(
    store: Store, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_logins, "_END_MS", END_MS)

    def note(said: Diagnostic) -> None:
        if "did not terminate" in str(said.message_primary):
            waits.append(END_MS)

    async def listen(conn: Connection) -> None:
        conn.add_notice_handler(note)

    async with (
        connected(await store.read_url("t1"), 6) as opened,
        open_pool(store.url, name="test", configure=listen) as pool,
    ):
        reads = PostgresReadLogins(pool, store.logins.read)
        pids = [conn.info.backend_pid for conn in opened]
        with stuck(pids):
            assert not await reads.end("t1"), "its sessions are left"
            assert sum(waits) < 2 * END_MS
        for pid in pids:
            await gone(store, pid)
        assert await reads.end("t1")
        assert await reads.all() == []


async def test_i13_an_overdue_session_ends_while_another_is_stuck(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_sessions, "END_MS", LONG_MS)
    limits = SessionLimits(statement=DAY, idle=timedelta(0), transaction=DAY)
    async with (
        connected(await store.read_url(), 2) as (first, second),
        read_sessions.open_read_sessions(store.url, store.logins.read, limits) as overdue,
    ):
        with stuck([first.info.backend_pid]):
            looking = asyncio.create_task(overdue.end_overdue())
            await gone(store, second.info.backend_pid)
        assert {one.pid for one in await looking} == {conn.info.backend_pid for conn in (first, second)}


async def test_i13_a_session_that_is_stuck_for_long_is_not_said_to_have_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_sessions, "END_MS", END_MS)
    limits = SessionLimits(statement=DAY, idle=timedelta(0), transaction=DAY)
    async with (
        connected(await store.read_url(), 2) as (first, second),
        read_sessions.open_read_sessions(store.url, store.logins.read, limits) as overdue,
    ):
        with stuck([first.info.backend_pid]):
            assert [one.pid for one in await overdue.end_overdue()] == [second.info.backend_pid]


async def test_i13_readers_of_a_dropped_relation_end_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "END_MS", LONG_MS)
    await store.run("create view public.gone as select 1 as one")
    await store.run(f"grant select on public.gone to {store.logins.read}")
    async with (
        connected(await store.read_url(), 2) as opened,
        await psycopg.AsyncConnection.connect(store.url) as owner,
    ):
        # The one with the lowest pid is told first.
        first, second = sorted(opened, key=lambda conn: conn.info.backend_pid)
        for conn in (first, second):
            await conn.execute("select * from gone")
        with stuck([first.info.backend_pid]):
            ending = asyncio.create_task(sessions.end_readers(owner, ["public.gone"]))
            await gone(store, second.info.backend_pid)
        with capture_logs() as lines:
            await ending
        assert {line["pid"]: line["ended"] for line in lines} == {
            conn.info.backend_pid: True for conn in (first, second)
        }


async def test_i13_a_session_that_is_stuck_is_waited_for_once(
    store: Store, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the names of 16 dropped tables, which were made again: jobs of others waited for half a minute."""
    monkeypatch.setattr(sessions, "END_MS", END_MS)
    names = [f"gone{number}" for number in range(3)]
    async with connected(await store.read_url(), 1) as (reader,), open_pool(store.url, name="test") as pool:
        for number, name in enumerate(names):
            await store.run(f"create view public.{name} as select 1 as one")
            await store.run(f"comment on view public.{name} is '{marks.view_mark(RelationId(number))}'")
            await store.run(f"grant select on public.{name} to {store.logins.read}")
            await reader.execute(f"select * from {name}".encode())

        async def wanted(name: str) -> bool:
            async with pool.connection() as conn, conn.transaction():
                return await marks.to_be_made(conn, "public", name, RelationId(9))

        pid = reader.info.backend_pid
        with stuck([pid]):
            for name in names:
                with pytest.raises(InUse, match=f"session {pid} "):
                    await wanted(name)
            assert sum(waits) < 2 * END_MS
        await gone(store, pid)
        assert all([await wanted(name) for name in names])
