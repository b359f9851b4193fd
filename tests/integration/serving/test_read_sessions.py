"""S5: the limits of people's own tools hold, whatever their sessions set."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import psycopg
import pytest

from service.domain.sessions import Ended, SessionLimits
from service.serving.read_sessions import PostgresReadSessions
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
    sessions = PostgresReadSessions(store.pool, limits)
    async with asyncio.timeout(60):
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


async def test_s5_sessions_within_their_limits_and_those_of_others_go_on(store: Store, lifted: Connection) -> None:
    async with await psycopg.AsyncConnection.connect(store.url) as owner, owner.transaction():
        await owner.execute("select 1")
        assert await PostgresReadSessions(store.pool, SessionLimits()).end_overdue() == []
        none = SessionLimits(timedelta(0), timedelta(0), timedelta(0))
        assert [one.pid for one in await PostgresReadSessions(store.pool, none).end_overdue()] == [
            lifted.info.backend_pid
        ]
        await owner.execute("select 1")
