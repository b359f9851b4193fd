"""Enforce authority in the state store: the leader's term and the graph's generation (I7).

Every write of the leader ends with a check of its term that also locks it. A successor's claim waits for that commit. A
late predecessor finds another term and rolls back. A check without the lock, before the write, would not be a fence.
"""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Final

from psycopg import errors, sql

from service.domain.errors import Deposed, Stale
from service.protocol.ids import Generation, GraphId, Term
from service.serving.connections import Connection, Pool, translated
from service.telemetry.log import logger

log = logger("fences")

END_SECONDS: Final = 2.0
"""The longest wait for old sessions to end. They only have to receive the signal and roll back, and can commit nothing
in any case.
"""
LOOK_SECONDS: Final = (0.002, 0.1)
"""The first and the longest pause between two checks of these sessions. `pg_terminate_backend` with a timeout polls
only every 0.1 s.
"""

FENCE_LOCK: Final = "200ms"
"""The longest wait for an old writer between its check and its commit. After it the writer's session is ended. Nothing
is lost, because its graph is being recovered.
"""

_END_OLD_SESSIONS: Final = """
select split_part(application_name, ':', 3)::bigint, pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
  -- A read login may call itself what it likes.
  and (usename = current_user or starts_with(usename, 'tidefill_writer_'))
  and case when application_name ~ ('^tidefill:' || %(graph)s || ':[0-9]{1,18}$')
           then split_part(application_name, ':', 3)::bigint < %(generation)s else false end
"""


@asynccontextmanager
async def writing(pool: Pool, term: Term) -> AsyncGenerator[Connection]:
    """Open a transaction that commits only under `term`. Raises Deposed, Unavailable, Conflict."""
    with translated():
        async with pool.connection() as conn, conn.transaction():
            yield conn
            await assert_term(conn, term)


async def assert_term(conn: Connection, term: Term) -> None:
    """Check and lock `term` until the transaction ends. This has to be its last statement. Raises Deposed."""
    cursor = await conn.execute("select 1 from state.leader where term = %s for share", [term])
    if await cursor.fetchone() is None:
        raise Deposed(term)


class PostgresFences:
    """`Fences` over a pool of the state store's owner."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def claim(self, term: Term) -> None:
        with translated():
            async with self._pool.connection() as conn:
                cursor = await conn.execute("update state.leader set term = %s where term <= %s", [term, term])
                if cursor.rowcount == 0:
                    raise Deposed(term)

    async def fence(self, graph: GraphId, generation: Generation, *, term: Term) -> Collection[Generation]:
        """Refuse older generations, then end their sessions, so that later statements do not wait for their locks.

        An old writer between its check and its commit locks the graph's row. Then its session is ended first.
        """
        with translated():
            try:
                await _bump(self._pool, graph, generation, term)
            except errors.LockNotAvailable:
                await _end_sessions(self._pool, graph, generation)
                await _bump(self._pool, graph, generation, term)
            return await _end_sessions(self._pool, graph, generation)

    async def retire(self, graph: GraphId, generation: Generation, *, term: Term) -> None:
        await self.fence(graph, generation, term=term)
        async with writing(self._pool, term) as conn:
            for table in ("fence", "published", "horizon", "pin"):
                forget = sql.SQL("delete from {} where graph = {}")
                await conn.execute(forget.format(sql.Identifier("state", table), graph))


async def _bump(pool: Pool, graph: GraphId, generation: Generation, term: Term) -> None:
    async with pool.connection() as conn, conn.transaction():
        await conn.execute(f"set local lock_timeout = '{FENCE_LOCK}'")
        cursor = await conn.execute(
            "insert into state.fence as f values (%s, %s) on conflict (graph) do update"
            " set generation = excluded.generation where f.generation <= excluded.generation",
            [graph, generation],
        )
        if cursor.rowcount == 0:
            raise Stale(generation)
        await assert_term(conn, term)


async def _end_sessions(pool: Pool, graph: GraphId, generation: Generation) -> Collection[Generation]:
    wanted = {"graph": str(graph), "generation": generation}
    (pause, longest), waited = LOOK_SECONDS, 0.0
    async with pool.connection() as conn:
        while left := await (await conn.execute(_END_OLD_SESSIONS, wanted)).fetchall():
            if waited >= END_SECONDS:
                # Some functions of Postgres cannot be interrupted. Such a session can commit nothing any more, and
                # nobody waits for the rows that it holds, except writers of the same rows.
                log.warning("fence.sessions_left", graph=graph, generation=generation, sessions=len(left))
                break
            await conn.execute("select pg_sleep(%s)", [pause])
            waited, pause = waited + pause, min(pause * 2, longest)
    return {Generation(one) for one, _ in left}
