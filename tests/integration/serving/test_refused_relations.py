"""A relation that Postgres refuses to create or to show holds up no epoch and no other relation (I13)."""

from collections.abc import AsyncGenerator

import pytest

from service.domain.errors import Invalid
from service.protocol.ids import DATABASE_GRAPH, Epoch, Term
from tests.support.state_store import Store, prepared_store, relation

pytestmark = pytest.mark.postgres
TERM = Term(7)
SLOW, OTHER = relation(1, "slow"), relation(2, "other")


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        await prepared.fences.claim(TERM)
        yield prepared


@pytest.mark.parametrize("name", ["ctid", "xmin", "tableoid"])
async def test_c1_a_system_columns_name_is_a_refusal(store: Store, name: str) -> None:
    with pytest.raises(Invalid, match="system column"):
        await store.tables.create(relation(1, "t", {"id": "bigint", name: "text"}), term=TERM)


@pytest.mark.parametrize("taken", ["create table public.slow (a int)", "create type public.slow as (a int)"])
async def test_c5_a_name_that_was_taken_meanwhile_does_not_stop_publication(store: Store, taken: str) -> None:
    for one in (SLOW, OTHER):
        await store.tables.create(one, term=TERM)
    await store.run(taken)
    refused = await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[SLOW, OTHER])
    assert list(refused) == [SLOW.id]
    assert await store.rows(f"select epoch from state.published where graph = {DATABASE_GRAPH}") == [(10,)]
    assert await store.rows("select count(*) from public.other") == [(0,)]
    await store.run("drop " + " ".join(taken.split()[1:3]))
    assert await store.tables.publish(DATABASE_GRAPH, Epoch(11), term=TERM, created=[SLOW]) == {}
    assert await store.rows("select count(*) from public.slow") == [(0,)]


async def test_c9_objects_of_others_upon_a_view_are_named(store: Store) -> None:
    for one in (SLOW, OTHER):
        await store.tables.create(one, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[SLOW, OTHER])
    assert await store.tables.foreign_readers(["slow", "other"]) == []
    await store.run("create schema ana")
    await store.run("create view ana.mine as select * from public.slow")
    assert await store.tables.foreign_readers(["slow", "other"]) == ["ana.mine"]
    assert await store.tables.foreign_readers(["other"]) == []
