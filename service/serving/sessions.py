"""Name the sessions of the state store for which others wait, without the text of their statements."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from service.protocol.ids import RelationId
from service.serving.connections import Connection, trusted
from service.telemetry.log import logger

READERS: Final = "^tidefill_read(er)?(_|$)"
"""The logins that only read."""
END_MS: Final = 2000
"""How long a session may take to end. It only has to receive the signal."""
_COMMANDS: Final = (
    "SELECT|WITH|TABLE|VALUES|INSERT|UPDATE|DELETE|MERGE|COPY|FETCH|DECLARE|BEGIN|START|SET|SHOW|LOCK|VACUUM"
)
_COMMANDS_OF_DDL: Final = "ANALYZE|CREATE|ALTER|DROP|REINDEX|CLUSTER|REFRESH|TRUNCATE|GRANT|REVOKE|EXPLAIN"
# Postgres shows state, begin and query only of sessions that the login may inspect.
_SHOWN: Final = (
    "a.pid, a.usename::text, a.state, coalesce(a.xact_start, a.backend_start), upper(substring("
    rf"a.query from '(?i)^[\s(]*({_COMMANDS}|{_COMMANDS_OF_DDL})\M'))"
)
_BLOCKING: Final = f"""
select w.pid, {_SHOWN}
from unnest(%s::int[]) w(pid), unnest(pg_blocking_pids(w.pid)) b(pid) left join pg_stat_activity a on a.pid = b.pid
order by a.xact_start desc nulls first
"""
_HELD: Final = """
from pg_locks l join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'relation' and l.granted and l.pid <> pg_backend_pid()
    and l.database = (select oid from pg_database where datname = current_database())
    and l.relation = any (select to_regclass(name) from unnest(%s::text[]) name)
"""
_HOLDING: Final = f"""
select distinct {_SHOWN}, a.xact_start {_HELD}
    and l.mode = any (%s) and coalesce(a.xact_start, '-infinity') <= clock_timestamp() - %s::interval
order by a.xact_start nulls first
"""
_END_READERS: Final = f"""
select pid, usename, pg_terminate_backend(pid, {END_MS})
from (select distinct a.pid, a.usename::text {_HELD} and a.usename ~ '{READERS}') reader
"""
log = logger("sessions")

_ANY: Final = (
    "AccessShareLock",
    "RowShareLock",
    "RowExclusiveLock",
)
_NO_BUILD: Final = (
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
)
"""The locks on a table beside which Postgres builds no index without blocking writers."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session of the state store. `since` is the begin of its transaction; `command` the kind of its statement."""

    pid: int
    login: str | None
    state: str | None
    since: datetime | None
    command: str | None

    def __str__(self) -> str:
        whose = "" if self.login is None else f" of login {self.login}"
        since = "" if self.since is None else f", open since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        command = "a statement" if self.command is None else f"a {self.command}"
        match self.state:
            case "active":
                doing = f", running {command}"
            case None:
                doing = ""
            case _:
                doing = f", idle after {command}"
        return f"the transaction of session {self.pid}{whose}{since}{doing}"


async def blocking(conn: Connection, pids: Collection[int]) -> Mapping[int, str]:
    """Return the sessions among `pids` that wait for a lock, each with the oldest session that it waits for."""
    rows = await (await conn.execute(_BLOCKING, [sorted(pids)])).fetchall()
    return {waiter: _said(*shown) for waiter, *shown in rows}


async def builders(conn: Connection, relation: RelationId) -> Sequence[str]:
    """Return the other sessions whose locks on a relation's table permit no build of an index."""
    return await _holding(conn, _NO_BUILD, [f"state.t_{relation}"])


async def users(conn: Connection, names: Collection[str], *, older: str = "0s") -> Sequence[str]:
    """Return the other sessions that hold any lock on the relations with these qualified names, the oldest first.

    Those whose transactions are not `older` are left out.
    """
    return await _holding(conn, (*_ANY, *_NO_BUILD), names, older=older)


async def end_readers(conn: Connection, names: Collection[str]) -> None:
    """End the sessions of reading logins that hold a lock on one of these relations."""
    for pid, login, ended in await (await conn.execute(trusted(_END_READERS), [list(names)])).fetchall():
        why = f"it reads a dropped relation whose name is used again: {', '.join(names)}"
        log.warning("session.ended", pid=pid, login=login, ended=ended, why=why)


async def _holding(
    conn: Connection, modes: Collection[str], names: Collection[str], *, older: str = "0s"
) -> Sequence[str]:
    rows = await (await conn.execute(_HOLDING, [list(names), list(modes), older])).fetchall()
    return [_said(*shown) for *shown, _ in rows]


def _said(pid: int | None, login: str | None, state: str | None, since: datetime | None, command: str | None) -> str:
    return "a prepared transaction" if pid is None else str(Session(pid, login, state, since, command))
