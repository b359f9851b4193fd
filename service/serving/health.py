"""How the state store's server is: what an adaptive limit looks at."""

import asyncio
from typing import Final

from service.domain.errors import Unavailable
from service.ports.health import StoreHealth
from service.serving.connections import Pool, translated

SECONDS: Final = 5.0
"""With the wait for a connection: a server that needs longer is not well."""
# Counted by database: the list of sessions shows others' only to those who may see it. A replica that is being made
# has replayed nothing yet, and no position.
_MEASURE: Final = """
select
    (select coalesce(sum(numbackends), 0)::bigint from pg_stat_database),
    current_setting('max_connections')::bigint,
    (select max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn))::bigint from pg_stat_replication)
"""


class PostgresGauge:
    """`StoreGauge` over the pool of the login that owns the state store."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def measure(self) -> StoreHealth:
        try:
            with translated():
                async with asyncio.timeout(SECONDS), self._pool.connection() as conn:
                    row = await (await conn.execute(_MEASURE)).fetchone()
        except TimeoutError:
            raise Unavailable(f"the state store did not answer within {SECONDS:.0f} s") from None
        assert row is not None
        connections, most, lag = row
        return StoreHealth(connections, most, None if lag is None else max(lag, 0))
