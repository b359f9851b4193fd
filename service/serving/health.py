"""Measure the load of the state store's server for adaptive limits."""

import asyncio
from typing import Final

from service.domain.errors import Unavailable
from service.ports.health import StoreHealth
from service.serving.connections import Pool, translated

SECONDS: Final = 5.0
"""The timeout of a measurement, including the wait for a connection. A slower server counts as overloaded."""
# Connections are counted by database, because the list of sessions needs a privilege. A replica that is being created
# has no replay position yet.
_MEASURE: Final = """
select
    (select coalesce(sum(numbackends), 0)::bigint from pg_stat_database),
    current_setting('max_connections')::bigint,
    (select max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn))::bigint from pg_stat_replication)
"""


class PostgresGauge:
    """`StoreGauge` over the pool of the state store's owner."""

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
