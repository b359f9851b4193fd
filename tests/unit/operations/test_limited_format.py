"""A table format that can do less than Postgres: what users ask of it that it cannot do is refused at once."""

from typing import Self

import pytest

from service.domain.errors import Conflict, Invalid
from service.operations.rows import bulk
from service.operations.statements import dispatch
from service.operations.world import World
from service.ports.state_store import QueryResult
from service.protocol.ids import DATABASE_GRAPH, Epoch
from service.protocol.table_format import Capabilities
from tests.support.fake_meta_store import FakeStores
from tests.support.http import world_of
from tests.support.meta_store import A_TEST, NOW, add_created, new_table

REACHED = QueryResult((("reached", "text"),), (("the reader",),), truncated=False)


class Reached:
    """A reader that says so."""

    def of(self, _caller: str) -> Self:
        return self

    async def query(self, _sql: str, **_limits: object) -> QueryResult:
        return REACHED


async def world(capabilities: Capabilities) -> World:
    stores = FakeStores(lambda: NOW)
    async with stores.begin() as tx:
        await add_created(tx, new_table("t"))
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(0), now=NOW)
    return world_of(stores, reader=Reached(), table_format=capabilities)


@pytest.mark.parametrize(
    "text", ["insert into t values (1)", "insert into t select 1", "update t set v = 1", "delete from t"]
)
async def test_statements_are_refused_by_a_format_without_dml(text: str) -> None:
    able = Capabilities(sql_reader=True)
    with pytest.raises(Invalid, match='cannot change table "t": its table format takes no rows from users'):
        await dispatch.run(await world(able), text, session={}, asked_by=A_TEST)


async def test_loads_are_refused_by_a_format_without_dml() -> None:
    with pytest.raises(Conflict, match='table "t" takes no rows: its table format takes no rows from users'):
        await bulk.table_called(await world(Capabilities(sql_reader=True)), "t")
    assert (await bulk.table_called(await world(Capabilities(dml=True)), "t")).name == "t"


@pytest.mark.parametrize(
    ("text", "able", "answered"),
    [
        ("select * from t", Capabilities(dml=True), False),
        ("select 1", Capabilities(dml=True), False),
        ("select * from t", Capabilities(sql_reader=True), True),
        ("select * from rw_relations", Capabilities(dml=True), True),
        ("select * from rw_catalog.rw_relations", Capabilities(dml=True), True),
    ],
)
async def test_only_the_catalog_is_queried_without_a_reader_of_tables(
    text: str, able: Capabilities, *, answered: bool
) -> None:
    asked = dispatch.run(await world(able), text, session={}, asked_by=A_TEST)
    if answered:
        assert (await asked).rows == REACHED.rows
        return
    with pytest.raises(Invalid, match="only rw_ relations can be queried"):
        await asked
