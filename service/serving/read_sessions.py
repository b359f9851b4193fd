"""End sessions of users' own tools that exceed the limits of their login.

The login's settings end most of them. But a session can change its settings, and only the server's side cannot be
changed: an open transaction keeps the tables of dropped relations, and holds up the builds of indexes.
"""

from collections.abc import Sequence
from typing import Final

from service.domain.sessions import Ended, SessionLimits
from service.serving.connections import Pool, translated, trusted
from service.serving.sessions import END_MS

_READ: Final = "^tidefill_read(_|$)"
_END: Final = f"""
select pid, login, why, pg_terminate_backend(pid, {END_MS})
from (
    select pid, usename::text as login, case
        when state !~ '^idle' and query_start < clock_timestamp() - %(statement)s then 'its statement'
        when state ~ '^idle' and state_change < clock_timestamp() - %(idle)s then 'idle, its transaction'
        when xact_start < clock_timestamp() - %(transaction)s then 'its transaction'
    end as why
    from pg_stat_activity
    where datname = current_database() and usename ~ '{_READ}' and xact_start is not null
) session
where why is not null
"""


class PostgresReadSessions:
    """`ReadSessions` over a pool of the state store's owner."""

    def __init__(self, pool: Pool, limits: SessionLimits) -> None:
        self._pool, self._limits = pool, limits

    async def end_overdue(self) -> Sequence[Ended]:
        limits = self._limits
        taken = {"its statement": limits.statement, "idle, its transaction": limits.idle}
        wanted = {"statement": limits.statement, "idle": limits.idle, "transaction": limits.transaction}
        with translated():
            async with self._pool.connection() as conn:
                rows = await (await conn.execute(trusted(_END), wanted)).fetchall()
        return [
            Ended(pid, login, f"{why} was open for more than {taken.get(why, limits.transaction)}")
            for pid, login, why, ended in rows
            if ended
        ]
