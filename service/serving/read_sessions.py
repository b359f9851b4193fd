"""End sessions of users' own tools that exceed the limits of their login, or that others wait for.

The login's settings end most of them. But a session can change its settings, and only the server's side cannot be
changed: an open transaction keeps the tables of dropped relations, and holds up the builds of indexes. A session can
also change its own login. Such a write holds locks for which others wait, and can fill the server's lock table. And
Postgres takes the lock for a DELETE that is only prepared, whose right nobody checks before it runs.
"""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import psycopg
from psycopg import errors

from service.domain.sessions import Ended, SessionLimits
from service.protocol.answering import is_crowded
from service.serving.connections import OWNER_SETTINGS, Connection, translated, trusted, with_settings
from service.serving.sessions import END_MS, until_ended

_QUEUE_FULL: Final = 0.01
"""The used share of the server's queue of notifications from which the oldest transaction is ended, one at each look.
Postgres does not show which session holds the queue back.
"""
_HOLD: Final = "select from pg_roles, pg_auth_members, pg_database, pg_locks, pg_class limit 0"
"""Takes locks on all catalogs that `_END` needs. They are kept until the transaction ends."""
_OPEN: Final = "usename ~ %(logins)s and xact_start is not null"
_FRESH: Final = "select pg_stat_clear_snapshot()"
_PREPARE: Final = (
    "set plan_cache_mode = force_generic_plan",
    """prepare open_sessions(oid[]) as
    select pid, usesysid from pg_stat_get_activity(null) where usesysid = any($1) and xact_start is not null""",
    "prepare ended(int) as select pg_terminate_backend($1)",
)
"""These statements run without a buffer once they were planned: they read no catalog, and caches have the functions."""
_BUFFERS: Final = "its transaction was open while all buffers of the server were held"
_READERS: Final = "select oid, pg_get_userbyid(oid)::text from pg_roles where rolname ~ %(logins)s"
"""Puts each login into the connection's cache too: to end a session, Postgres looks whose it is."""
_END: Final = f"""
select pid, login, why, pg_terminate_backend(pid)
from (
    select pid, usename::text as login, case
        when backend_xid is not null or claims then 'write'
        when state !~ '^idle' and query_start < clock_timestamp() - %(statement)s then 'statement'
        when state ~ '^idle' and state_change < clock_timestamp() - %(idle)s then 'idle'
        when xact_start < clock_timestamp() - %(transaction)s then 'transaction'
        when xact_start = min(xact_start) over () and pg_notification_queue_usage() > {_QUEUE_FULL} then 'queue'
        when %(full)s and locks > current_setting('max_locks_per_transaction')::int then 'locks'
    end as why
    from pg_stat_activity
    left join (
        select pid, count(*) as locks,
            bool_or(mode not in ('AccessShareLock', 'SIReadLock') and relpersistence <> 't') as claims
        from pg_locks left join pg_class on oid = relation and database is not null
        where exists (select from pg_stat_activity where {_OPEN}) group by pid
    ) held using (pid)
    where {_OPEN}
) session
where why is not null
"""


class PostgresReadSessions:
    """`ReadSessions` of the logins in a group, over connections of the state store's owner.

    A full lock table refuses every new lock on a shared catalog. So one of the two connections always holds them in an
    open transaction. They change places at each look: nobody who locks a catalog waits for longer than that.

    A transaction keeps a page of each open scan in the server's buffers. Postgres tells nobody who holds them, and with
    all of them held answers nobody. So the transactions of one login after the other end, those of the login with the
    most first, until there are buffers. A login is to blame only if no other one had a transaction.
    """

    def __init__(self, url: str, group: str, limits: SessionLimits) -> None:
        self._url = with_settings(url, OWNER_SETTINGS, application_name="tidefill-sessions")
        self._wanted = {
            "logins": f"^{re.escape(group)}(_|$)",
            "statement": limits.statement,
            "idle": limits.idle,
            "transaction": limits.transaction,
        }
        self._reasons = {
            "write": "it wrote, and others wait for its locks",
            "statement": f"its statement was open for more than {limits.statement}",
            "idle": f"idle, its transaction was open for more than {limits.idle}",
            "transaction": f"its transaction was open for more than {limits.transaction}",
            "locks": "the lock table was full, and it held more locks than max_locks_per_transaction",
            "queue": "its transaction held back the notifications of all others",
        }
        self._connections: list[Connection] = []
        self._readers: Mapping[int, str] = {}
        self._suspects: set[str] = set()
        """The logins that were ended since there are no buffers."""

    async def end_overdue(self) -> Sequence[Ended]:
        with translated():
            try:
                rows = await self._look()
            except psycopg.Error as error:
                if is_crowded(error.sqlstate, str(error)) and len(self._connections) == 2:
                    return await self._end_next()
                await self.close()
                raise
        self._suspects.clear()
        return [
            Ended(pid, login, self._reasons[why], barred=why == "write") for pid, login, why, ended in rows if ended
        ]

    async def close(self) -> None:
        """Close the connections. The next look opens new ones."""
        while self._connections:
            await self._connections.pop().close()

    async def _look(self) -> Sequence[tuple[int, str, str, bool]]:
        while len(self._connections) < 2:
            opened = await psycopg.AsyncConnection.connect(self._url, prepare_threshold=None)
            self._connections.append(opened)
            for setting in _PREPARE:
                await opened.execute(trusted(setting))
            await opened.commit()
        holding, other = self._connections
        await other.rollback()
        try:
            await other.execute(_HOLD)
        except errors.OutOfMemory:
            await holding.execute(_FRESH)
            return await self._end(holding, full=True)
        self._readers = dict(await (await other.execute(_READERS, self._wanted)).fetchall())
        await self._open(other)
        await other.execute("execute ended(null)")
        await holding.rollback()
        self._connections.reverse()
        return await self._end(other, full=False)

    async def _end_next(self) -> Sequence[Ended]:
        """End the transactions of the login that has the most, and was not ended before."""
        conn = self._connections[0]
        await conn.rollback()
        found = await self._open(conn)
        counted = Counter(login for _, login in found)
        most = max(counted, key=lambda one: (one not in self._suspects, counted[one]), default="")
        alone = len(counted) == 1 and not self._suspects
        self._suspects.add(most)
        ended = [Ended(pid, login, _BUFFERS, barred=alone) for pid, login in found if login == most]
        for one in ended:
            await conn.execute(trusted(f"execute ended({one.pid})"))
        return ended

    async def _open(self, conn: Connection) -> Sequence[tuple[int, str]]:
        """Return the sessions of readers that are in a transaction, and their logins."""
        among = ",".join(map(str, self._readers))
        found = await (await conn.execute(trusted(f"execute open_sessions('{{{among}}}')"))).fetchall()
        return [(pid, self._readers[login]) for pid, login in found]

    async def _end(self, conn: Connection, *, full: bool) -> Sequence[tuple[int, str, str, bool]]:
        cursor = await conn.execute(trusted(_END), {**self._wanted, "full": full})
        found = await cursor.fetchall()
        left = await until_ended(conn, [pid for pid, *_ in found], END_MS)
        return [(pid, login, why, told and pid not in left) for pid, login, why, told in found]


@asynccontextmanager
async def open_read_sessions(url: str, group: str, limits: SessionLimits) -> AsyncGenerator[PostgresReadSessions]:
    """Connections are opened by the first look, and closed at the end."""
    sessions = PostgresReadSessions(url, group, limits)
    try:
        yield sessions
    finally:
        await sessions.close()
