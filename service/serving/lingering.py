"""Bound the sessions of users' queries, also of those that Postgres cannot stop (I13).

Some functions heed neither a timeout nor the end of their session. Each such query holds a session of a login whose
sessions are bounded, so its caller keeps the place that the query had until the session has ended.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import psycopg

from service.serving.connections import Pool
from service.serving.user_query import Left
from service.turns import Turns

LINGER_SECONDS: Final = 2.0
_RUNS: Final = (
    "select 1 from pg_stat_activity"
    " where pid = {:d} and pid <> pg_backend_pid() and state = 'active' and usename = current_user"
)


class Places:
    """The places of queries."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.lingering = set[asyncio.Task[None]]()
        """Each keeps a place of a query that could not be stopped."""

    @asynccontextmanager
    async def place(self, pool: Pool, caller: str | None = None) -> AsyncGenerator[Left]:
        """Wait for a caller's turn, and keep it while a query runs in a session of `pool`.

        Without a `caller`, it is the one in whose call this runs. Raises Unavailable as `Turns.turn` does.
        """
        sessions: list[int] = []
        async with AsyncExitStack() as place:
            await place.enter_async_context(self._turns.turn(caller))
            try:
                yield sessions.append
            finally:
                if sessions and await _runs(pool, sessions[0]):
                    lingering = asyncio.create_task(_linger(pool, sessions[0], place.pop_all()))
                    self.lingering.add(lingering)
                    lingering.add_done_callback(self.lingering.discard)


async def _linger(pool: Pool, pid: int, place: AsyncExitStack) -> None:
    """Keep a place until a session has ended."""
    async with place:
        while await _runs(pool, pid):
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), LINGER_SECONDS)


async def _runs(pool: Pool, pid: int) -> bool:
    """Whether a session of the reader's login runs a query. It does not if Postgres is away."""
    with suppress(psycopg.OperationalError):
        async with pool.connection() as conn:
            return await (await conn.execute(_RUNS.format(pid).encode())).fetchone() is not None
    return False
