"""A relation of a lake in the state store: the version at each epoch, and a view that has its columns and no rows."""

import psycopg
import pytest

from service.protocol.connector import Connector
from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId, Term
from service.serving.layout import IN_LAKE
from tests.support.state_store import Store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
SALES = relation(1, "sales").model_copy(
    update={"lake": Connector(name="deltalake", options={"location": "/lake/sales"})}
)


async def test_its_versions_are_rolled_back_and_vacuumed_as_rows_are(store: Store) -> None:
    await store.fences.claim(TERM)
    for _ in range(2):
        await store.tables.create(SALES, term=TERM)
    await store.run("insert into state.t_1 (_vnode, place, version, _from, _to) values (0, 0, 3, 10, 20)")
    await store.run("insert into state.t_1 (_vnode, place, version, _from, _to) values (0, 0, 4, 20, 30)")
    await store.run("insert into state.t_1 (_vnode, place, version, _from) values (0, 0, 5, 30)")
    await store.tables.roll_back([SALES.id], DATABASE_GRAPH, Epoch(25), term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(25), term=TERM, created=[SALES])
    alive = "select version, _to = 9223372036854775807 from state.t_1 order by 1"
    assert await store.rows(alive) == [(3, False), (4, True)]
    assert await store.tables.lake_versions([SALES.id]) == {SALES.id: (4, Epoch(20))}
    await store.tables.vacuum([SALES.id], DATABASE_GRAPH, Epoch(25), term=TERM)
    assert await store.rows(alive) == [(4, True)]
    await store.tables.drop(SALES.id, "sales", term=TERM)
    assert await store.rows("select to_regclass('state.t_1'), to_regclass('public.sales')") == [(None, None)]


async def test_tables_without_a_version_are_left_out(store: Store) -> None:
    folder = relation(3, "drops").model_copy(update={"lake": Connector(name="file", options={"location": "/drops"})})
    await store.fences.claim(TERM)
    for one in (SALES, folder):
        await store.tables.create(one, term=TERM)
    assert await store.tables.lake_versions([SALES.id, RelationId(2), folder.id]) == {}


async def test_its_view_has_types_and_refuses_to_be_read(store: Store) -> None:
    """Queries over it are planned by Postgres, and read by Spark."""
    await store.tables.create(SALES, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[SALES])
    columns = "select attname, atttypid::regtype::text from pg_attribute where attrelid = 'public.sales'::regclass"
    wanted = sorted((column.name, str(column.type)) for column in SALES.visible)
    assert sorted(await store.rows(columns)) == wanted
    connection = await psycopg.AsyncConnection.connect(store.logins.reader_url)
    async with connection:
        await connection.execute("explain select count(*) from public.sales")
        column = SALES.visible[0].name
        for query in ("select count(*) from public.sales", f"select 1 from public.sales where {column} = {column}"):
            with pytest.raises(psycopg.Error, match='cannot read "sales": its rows lie in a lake') as refused:
                await connection.execute(query.encode())
            assert refused.value.sqlstate == IN_LAKE
            await connection.rollback()
