"""Name the sessions of the state store for which others wait, without the text of their statements, and end some."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from service.protocol.ids import RelationId
from service.serving.connections import Connection, trusted
from service.telemetry.log import logger

READERS: Final = "^tidefill_read(er)?(_|$)"
"""The logins that only read."""
OPEN_FOR: Final = "10s"
"""For so long the transactions of people's own tools may hold up a view that leaves the database graph."""
_OWN_TOOLS: Final = "^tidefill_read(_|$)"
END_MS: Final = 2000
"""How long sessions may take to end. They only have to receive the signal."""
LOOK_SECONDS: Final = (0.005, 0.1)
"""The first and the longest pause between two looks at sessions that end."""
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
select pid, backend_start, usename, pg_terminate_backend(pid)
from (
    select distinct a.pid, a.backend_start, a.usename::text {_HELD}
        and a.usename ~ %s and a.xact_start <= clock_timestamp() - %s::interval
) reader
"""
_UNENDING: Final = f"""
select distinct {_SHOWN}, a.xact_start, a.backend_start {_HELD} and a.pid = any (%s)
"""
_unending: Final = dict[int, datetime]()
"""The sessions that were told to end and have not, with their begin: Postgres cannot interrupt some functions. They
are waited for once.
"""
# The view `pg_stat_activity` would need locks on shared catalogs, and there may be none left.
_PRESENT: Final = "select pid from pg_stat_get_activity(null) where pid = any (%s)"
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
    why = f"it reads a dropped relation whose name is used again: {', '.join(names)}"
    await _end(conn, [list(names), READERS, "0s"], why)


async def end_tools(conn: Connection, name: str) -> None:
    """End the sessions of people's own tools that hold a view in transactions of more than `OPEN_FOR`."""
    await _end(conn, [[name], _OWN_TOOLS, OPEN_FOR], f"it holds {name}, which leaves the database graph")


async def _end(conn: Connection, whose: Sequence[object], why: str) -> None:
    found = await (await conn.execute(trusted(_END_READERS), whose)).fetchall()
    told_now = [pid for pid, since, *_ in found if _unending.get(pid) != since]
    left = {*await until_ended(conn, told_now, END_MS), *(pid for pid, *_ in found if pid not in told_now)}
    _unending.update({pid: since for pid, since, *_ in found if pid in left})
    for pid, _, login, told in found:
        log.warning("session.ended", pid=pid, login=login, ended=told and pid not in left, why=why)


async def unending(conn: Connection, names: Collection[str]) -> Sequence[str]:
    """Return the sessions that hold a lock on one of these relations, and that were told to end in vain."""
    for pid in set(_unending) - set(await _present(conn, _unending)):
        _unending.pop(pid, None)
    if not _unending:
        return []
    rows = await (await conn.execute(trusted(_UNENDING), [list(names), list(_unending)])).fetchall()
    return [_said(*shown) for *shown, _, since in rows if _unending.get(shown[0]) == since]


async def until_ended(conn: Connection, told: Collection[int], within_ms: int) -> Collection[int]:
    """Wait for sessions that were told to end, for all of them together. Return those that have not ended in time.

    Postgres cannot interrupt some functions. `pg_terminate_backend` with a timeout waits for each session in turn. So
    a caller with many of them would hold up all others.
    """
    (pause, longest), waited = LOOK_SECONDS, 0.0
    while (left := await _present(conn, told)) and waited * 1000 < within_ms:
        await conn.execute("select pg_sleep(%s)", [pause])
        waited, pause = waited + pause, min(pause * 2, longest)
    return left


async def _present(conn: Connection, pids: Collection[int]) -> Collection[int]:
    if not pids:
        return ()
    # In a transaction, each look would find what the first one found.
    await conn.execute("select pg_stat_clear_snapshot()")
    return {pid for (pid,) in await (await conn.execute(_PRESENT, [list(pids)])).fetchall()}


async def _holding(
    conn: Connection, modes: Collection[str], names: Collection[str], *, older: str = "0s"
) -> Sequence[str]:
    rows = await (await conn.execute(_HOLDING, [list(names), list(modes), older])).fetchall()
    return [_said(*shown) for *shown, _ in rows]


def _said(pid: int | None, login: str | None, state: str | None, since: datetime | None, command: str | None) -> str:
    return "a prepared transaction" if pid is None else str(Session(pid, login, state, since, command))
