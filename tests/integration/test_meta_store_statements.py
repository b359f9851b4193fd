"""The meta store keeps the results of statements, and their texts only until they end."""

import psycopg
import pytest

from service.protocol.dml import Delete, StatementResult
from service.protocol.ids import Epoch
from tests.support.meta_store import NOW, relation, stores_on

pytestmark = pytest.mark.postgres


async def test_i13_the_text_of_a_finished_statement_is_not_kept(database_url: str) -> None:
    """Results are kept for ten minutes. The texts of one caller were 4 MB more each second."""
    async with stores_on(database_url) as (stores, _), stores.begin() as tx:
        ids = [await tx.statements.reserve() for _ in range(2)]
        for one in ids:
            await tx.statements.add(Delete(id=one, relation=relation("t"), predicate=f"name = '{'x' * 9000}'"), now=NOW)
        await tx.statements.finish([StatementResult(id=ids[0], affected=3)], epoch=Epoch(2), now=NOW)
    with psycopg.connect(database_url) as connection:
        found = connection.execute("select length(body::text) > 9000, affected from statement order by id").fetchall()
    assert found == [(False, 3), (True, 0)]
