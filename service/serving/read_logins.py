"""The logins for users' own tools (psql, BI tools, Spark). They may read what users may read, and write nothing.

Users open their sessions themselves, unlike the reader's. The timeouts are long enough for a dashboard, and every
transaction reads one epoch.

Postgres lets every login change its own password and settings. So each caller has a login of its own, and can only lock
out itself. The grants belong to a group, which is no login. The members of the group are the logins.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, LiteralString

from psycopg import errors, sql

from service.domain.sessions import SessionLimits
from service.ports.read_logins import ReadLogin
from service.serving.connections import Connection, Pool, translated
from service.serving.roles import configure, grant_catalog, grant_existing, make_login, make_role
from service.serving.sessions import until_ended

CONNECTIONS_MAX: Final = 16
READ_ROLE: Final = "tidefill_read"
"""The group's name on a server with a single tidefill database."""
_LOCK: Final = 0x7469646566696C6D
"""Its advisory locks serialise changes of each login."""
_END_MS: Final = 5_000
"""How long the sessions of a login may take to end, all together."""

_LIMITS: Final = SessionLimits()
_SETTINGS: Final = (
    ("default_transaction_read_only", "on"),
    # All statements of a transaction read the same epoch.
    ("default_transaction_isolation", "repeatable read"),
    # A session can change these two, so `read_sessions.py` keeps them, and the limit of a transaction.
    ("statement_timeout", f"{_LIMITS.statement.total_seconds():.0f}s"),
    ("idle_in_transaction_session_timeout", f"{_LIMITS.idle.total_seconds():.0f}s"),
    # The statement of a client that is gone ends.
    ("client_connection_check_interval", "5s"),
    # rw_catalog is not in the path, so `\d` lists only the user's relations, and no catalog view hides one of them.
    ("search_path", "public"),
)
_MEMBERS: Final = """
select r.rolname, nullif(r.rolvaliduntil, 'infinity') from pg_auth_members m join pg_roles r on r.oid = m.member
where m.roleid = to_regrole(%s) and r.rolname like %s order by 1
"""
_END: Final = "select pid, pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
_END_WRITING: Final = f"{_END} and backend_xid is not null"
"""A login can change itself in an open transaction, which holds the lock on its row."""
_SESSIONS: Final = "select count(*) from pg_stat_activity where usename = %s"


async def make_read_group(conn: Connection, group: str) -> None:
    """Create the group, and grant it the catalog and all present and future public views.

    An earlier release had a login of this name, which all callers shared.
    """
    role = sql.Identifier(group)
    if await (await conn.execute("select 1 from pg_roles where rolname = %s", [group])).fetchone() is None:
        await make_role(conn, group)
    await conn.execute(sql.SQL("alter role {} nologin password null").format(role))
    await conn.execute(_END, [group])
    await conn.execute(sql.SQL("grant usage on schema public to {}").format(role))
    if group == READ_ROLE:
        # The whole server is tidefill's. In its other databases a login could store what it likes.
        await conn.execute("revoke connect on database postgres, template1 from public")
    future = "alter default privileges in schema public grant select on tables to {}"
    await conn.execute(sql.SQL(future).format(role))
    await grant_existing(conn, group, "public", "select")
    await grant_catalog(conn, group)


class PostgresReadLogins:
    """See `service.ports.read_logins.ReadLogins`. `pool` is the owner's."""

    def __init__(self, pool: Pool, group: str) -> None:
        self._pool, self._group = pool, group

    def name(self, suffix: str) -> str:
        return f"{self._group}_{suffix}"

    async def open(self, login: ReadLogin, password: str) -> None:
        name = self.name(login.suffix)
        role = sql.Identifier(name)
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                await conn.execute("select pg_advisory_xact_lock(hashtextextended(%s, %s))", [name, _LOCK])
                await _end_sessions(conn, _END_WRITING, name)
                await make_login(conn, name, password, CONNECTIONS_MAX, group=self._group, until=login.until)
                # Settings that the login made for itself end here.
                await conn.execute(sql.SQL("alter role {} reset all").format(role))
                here = sql.Identifier(conn.info.dbname)
                await conn.execute(sql.SQL("alter role {} in database {} reset all").format(role, here))
                await configure(conn, name, _SETTINGS)
                # Without SET, the login cannot act as the group.
                options = sql.SQL(" with inherit true, set false" if conn.info.server_version >= 160_000 else "")
                grant = sql.SQL("grant {} to {}").format(sql.Identifier(self._group), role)
                await conn.execute(grant + options)

    async def all(self) -> Sequence[ReadLogin]:
        with translated():
            async with self._pool.connection() as conn:
                like = self.name("").replace("_", r"\_") + "%"
                found = await (await conn.execute(_MEMBERS, [f'"{self._group}"', like])).fetchall()
        return [ReadLogin(str(name).removeprefix(self.name("")), _instant(until)) for name, until in found]

    async def end(self, suffix: str) -> bool:
        name = self.name(suffix)
        role = sql.Identifier(name)
        with translated():
            async with self._pool.connection() as conn:
                try:
                    await _lock_out(conn, name)
                    if await (await conn.execute(_SESSIONS, [name])).fetchone() != (0,):
                        return False
                    await conn.execute(sql.SQL("drop owned by {}").format(role))
                    await conn.execute(sql.SQL("drop role {}").format(role))
                except errors.UndefinedObject:
                    pass  # Another leader has dropped it.
        return True


async def _lock_out(conn: Connection, name: str) -> None:
    """End a login's sessions, and let it open no new ones. Its sessions can hold the lock on its row."""
    lock = sql.SQL("alter role {} nologin password null").format(sql.Identifier(name))
    left: Collection[int] = ()
    for last in (False, False, True):
        left = await _end_sessions(conn, _END, name, given_up=left)
        try:
            await conn.execute(lock)
            break
        except (errors.LockNotAvailable, errors.InternalError_):
            # A session that was opened meanwhile holds the lock, or has changed the row.
            if last:
                raise
    await _end_sessions(conn, _END, name, given_up=left)


async def _end_sessions(
    conn: Connection, ending: LiteralString, name: str, *, given_up: Collection[int] = ()
) -> Collection[int]:
    """Tell a login's sessions to end, and wait for those that are not given up. Return all that are left."""
    told = {pid for pid, _ in await (await conn.execute(ending, [name])).fetchall()}
    left = await until_ended(conn, told.difference(given_up), _END_MS)
    return {*left, *told.intersection(given_up)}


def _instant(value: object) -> datetime | None:
    return value if isinstance(value, datetime) else None
