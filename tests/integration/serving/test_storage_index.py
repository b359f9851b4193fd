"""The index of storage order, built after its table was loaded."""

import pytest

from service.domain.errors import Invalid
from service.protocol.ids import Term
from service.serving.connections import open_pool
from service.serving.tables import PostgresTables
from tests.support.state_store import Store, relation

pytestmark = pytest.mark.postgres
TERM = Term(7)


async def test_it_takes_longer_than_the_login_s_statements_may(store: Store) -> None:
    loaded = relation(1, "loaded")
    await store.tables.create(loaded, term=TERM, loading=True)
    await store.run("insert into state.t_1 (_vnode, id, v, _from) select 0, n, 'a', 1 from generate_series(1, 20000) n")
    await store.run(
        "do $$ begin execute format('alter database %I set statement_timeout = 5', current_database()); end $$"
    )
    async with open_pool(store.url, name="limited") as pool:
        await PostgresTables(pool).end_load(loaded, term=TERM)
    assert await store.rows(
        "select count(*) from pg_indexes where schemaname = 'state' and indexdef like '%_vnode, id%'"
    )


async def test_a_key_that_is_too_long_is_refused(store: Store) -> None:
    loaded = relation(1, "loaded", {"id": "text"}, "id")
    await store.tables.create(loaded, term=TERM, loading=True)
    random = "(select string_agg(md5(n::text), '') from generate_series(1, 1000) n)"
    await store.run(f"insert into state.t_1 (_vnode, id, _from) select 0, {random}, 1")
    with pytest.raises(Invalid, match="index row"):
        await store.tables.end_load(loaded, term=TERM)
