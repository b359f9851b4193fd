"""Vacuuming many tables when one of them cannot be."""

import pytest

from service.protocol.ids import DATABASE_GRAPH, Epoch, Term
from tests.support.state_store import prepared_store, relation

pytestmark = pytest.mark.postgres
TERM = Term(7)
TABLES = [relation(number, f"r{number}") for number in range(1, 4)]


@pytest.mark.parametrize(
    "hold",
    [
        "lock table state.t_1 in access exclusive mode",
        "lock table state.t_1 in share row exclusive mode",
        "select from state.t_1 for update",
    ],
)
async def test_a_table_that_is_locked_stops_no_other(database_url: str, hold: str) -> None:
    """I13. As under VACUUM FULL, and by a session that reads it or writes its rows."""
    async with prepared_store(database_url) as store:
        await store.fences.claim(TERM)
        for table in TABLES:
            await store.tables.create(table, term=TERM)
            await store.run(f"insert into state.t_{table.id} (_vnode, id, v, _from, _to) values (0, 1, 'a', 10, 20)")
        await store.tables.publish(DATABASE_GRAPH, Epoch(30), term=TERM, created=[])
        ids = [table.id for table in TABLES]
        async with store.pool.connection() as held, held.transaction():
            await held.execute(hold.encode())
            assert await store.tables.vacuum(ids, DATABASE_GRAPH, Epoch(30), term=TERM) == 2
        assert await store.tables.vacuum(ids, DATABASE_GRAPH, Epoch(30), term=TERM) == 1
