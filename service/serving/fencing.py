"""Authority inside the state store: the leader's term, the graph's generation (I7).

Every write of the leader ends with a look at its term that also locks it: a successor's claim waits for that commit,
and a predecessor that comes late finds its term gone and rolls back. A plain check before the write would be no fence.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from psycopg import errors

from service.domain.errors import Deposed, Stale, Unavailable
from service.protocol.ids import Generation, GraphId, Term
from service.serving.connections import Connection, Pool, translated

END_SECONDS: Final = 10.0
"""How long to wait for old sessions to be gone: they only have to notice the signal, then roll back."""
LOOK_SECONDS: Final = (0.002, 0.1)
"""The first pause between two looks at them, and the longest. The server's own waiting takes 0.1 s for each."""

FENCE_LOCK: Final = "200ms"
"""How long a bump waits for an old writer between its check and its commit before that writer's session is ended: its
graph is being recovered, so that nothing is lost with it."""

_END_OLD_SESSIONS: Final = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
  and case when application_name ~ ('^tidefill:' || %(graph)s || ':[0-9]{1,18}$')
           then split_part(application_name, ':', 3)::bigint < %(generation)s else false end
"""


@asynccontextmanager
async def writing(pool: Pool, term: Term) -> AsyncGenerator[Connection]:
    """One transaction that commits only under `term`. Raises Deposed, Unavailable, Conflict."""
    with translated():
        async with pool.connection() as conn, conn.transaction():
            yield conn
            await assert_term(conn, term)


async def assert_term(conn: Connection, term: Term) -> None:
    """Hold `term` until the transaction ends; it has to be its last statement. Raises Deposed."""
    cursor = await conn.execute("select 1 from state.leader where term = %s for share", [term])
    if await cursor.fetchone() is None:
        raise Deposed(term)


async def claim(pool: Pool, term: Term) -> None:
    """Make `term` the one that counts. Raises Deposed when a newer one does."""
    with translated():
        async with pool.connection() as conn:
            cursor = await conn.execute("update state.leader set term = %s where term <= %s", [term, term])
            if cursor.rowcount == 0:
                raise Deposed(term)


async def fence(pool: Pool, graph: GraphId, generation: Generation, term: Term) -> None:
    """Refuse older generations, then end their sessions, so that what follows waits for none of their locks.

    An old writer between its check and its commit holds the row to be changed: then its session is ended first.
    """
    with translated():
        try:
            await _bump(pool, graph, generation, term)
        except errors.LockNotAvailable:
            await _end_sessions(pool, graph, generation)
            await _bump(pool, graph, generation, term)
        await _end_sessions(pool, graph, generation)


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


async def _end_sessions(pool: Pool, graph: GraphId, generation: Generation) -> None:
    wanted = {"graph": str(graph), "generation": generation}
    (pause, longest), waited = LOOK_SECONDS, 0.0
    async with pool.connection() as conn:
        while left := await (await conn.execute(_END_OLD_SESSIONS, wanted)).fetchall():
            # A session that would not end may hold locks for as long as it likes: come again.
            if waited >= END_SECONDS:
                raise Unavailable(f"{len(left)} sessions of generations before {generation} would not end")
            await conn.execute("select pg_sleep(%s)", [pause])
            waited, pause = waited + pause, min(pause * 2, longest)
