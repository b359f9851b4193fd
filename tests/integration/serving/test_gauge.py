"""The state store's server as it is measured."""

import psycopg
import pytest

from service.domain.errors import Unavailable
from service.serving.connections import open_pool
from service.serving.health import PostgresGauge
from tests.support.state_store import Store

pytestmark = pytest.mark.postgres


async def test_connections_are_counted_as_they_come_and_go(store: Store) -> None:
    gauge = PostgresGauge(store.pool)
    before = await gauge.measure()
    assert before.connections_max == 200
    assert before.lag_bytes is None, "there is no replica"
    opened = [await psycopg.AsyncConnection.connect(store.url) for _ in range(3)]
    try:
        assert (await gauge.measure()).connections >= before.connections + 2
    finally:
        for one in opened:
            await one.close()


async def test_a_server_that_is_away_is_unavailable() -> None:
    async with open_pool("postgresql://nobody:secret@127.0.0.1:1/nowhere", name="test") as pool:
        with pytest.raises(Unavailable) as error:
            await PostgresGauge(pool).measure()
    assert "secret" not in str(error.value)
