"""The examination of `VersionedTables`: what operations rely on, said without any SQL but a reader's."""

from collections.abc import AsyncGenerator

import pytest

from service.domain.errors import Conflict, Deposed, Stale
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, RelationId, Term
from service.serving import tables
from tests.support.state_store import Store, prepared_store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
ORDERS = relation(1, "orders")
ODD = relation(2, 'odd "name"; --', {"a b": "integer", 'q"': "text[]", "select": "numeric(5,2)"}, "a b", "select")


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        await prepared.tables.claim(TERM)
        yield prepared


async def _put(store: Store, key: int, value: str, epoch: int, ended: int | None = None) -> None:
    end = "default" if ended is None else str(ended)
    await store.run(f"insert into state.t_1 values (0, {key}, '{value}', {epoch}, {end})")


async def _seen(store: Store) -> list[tuple[object, ...]]:
    return await store.rows("select id, v from public.orders order by id")


async def test_a_relation_is_readable_once_it_is_created_and_published(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await _put(store, 1, "a", 10)
    assert await store.rows("select to_regclass('public.orders')") == [(None,)]
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS])
    assert await _seen(store) == [(1, "a")]


async def test_every_method_may_be_repeated(store: Store) -> None:
    for _ in range(2):
        await store.tables.claim(TERM)
        await store.tables.create(ORDERS, term=TERM)
        await store.tables.create(ODD, term=TERM)
        await store.tables.fence(DATABASE_GRAPH, Generation(3), term=TERM)
        await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS, ODD])
        await store.tables.roll_back([ORDERS.id, ODD.id], Epoch(10), term=TERM)
        assert await store.tables.vacuum([ORDERS.id, ODD.id], DATABASE_GRAPH, Epoch(10), term=TERM) == 0
    for _ in range(2):
        await store.tables.drop(ODD.id, ODD.name, term=TERM)
        await store.tables.drop(ORDERS.id, ORDERS.name, term=TERM)


async def test_what_is_shown_never_goes_back(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await _put(store, 1, "a", 10, ended=20)
    await _put(store, 1, "b", 20)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[ORDERS])
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[])
    assert await _seen(store) == [(1, "b")]


async def test_epochs_beyond_the_published_one_are_not_seen(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await _put(store, 1, "a", 10, ended=20)
    await _put(store, 1, "b", 20)
    await _put(store, 2, "new", 20)
    await store.tables.publish(DATABASE_GRAPH, Epoch(19), term=TERM, created=[ORDERS])
    assert await _seen(store) == [(1, "a")]
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[])
    assert await _seen(store) == [(1, "b"), (2, "new")]


async def test_roll_back_undoes_what_came_after_and_nothing_else(store: Store) -> None:
    """I3."""
    await store.tables.create(ORDERS, term=TERM)
    await _put(store, 1, "kept", 10)
    await _put(store, 2, "reopened", 10, ended=21)
    await _put(store, 2, "forgotten", 21)
    await _put(store, 3, "ended before", 10, ended=20)
    await _put(store, 4, "new", 21)
    await store.tables.roll_back([ORDERS.id, RelationId(99)], Epoch(20), term=TERM)
    assert await store.rows("select id, v, _from, _to from state.t_1 order by id") == [
        (1, "kept", 10, 9223372036854775807),
        (2, "reopened", 10, 9223372036854775807),
        (3, "ended before", 10, 20),
    ]


async def test_vacuum_keeps_what_is_readable_at_the_published_epoch(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await _put(store, 1, "old", 10, ended=20)
    await _put(store, 1, "shown", 20, ended=30)
    await _put(store, 1, "committed", 30)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[ORDERS])
    assert await store.tables.vacuum([ORDERS.id, RelationId(99)], DATABASE_GRAPH, Epoch(30), term=TERM) == 1
    assert await _seen(store) == [(1, "shown")]


async def test_vacuum_goes_through_all_of_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ASKED_TOGETHER", 3)
    many = [relation(number, f"r{number}") for number in range(1, 8)]
    for table in many:
        await store.tables.create(table, term=TERM)
    for number in (2, 5, 7):
        await store.run(f"insert into state.t_{number} values (0, 1, 'dead', 10, 20), (0, 1, 'alive', 20, default)")
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[])
    ids = [table.id for table in many]
    assert await store.tables.vacuum(ids, DATABASE_GRAPH, Epoch(20), term=TERM) == 3
    assert await store.tables.vacuum(ids, DATABASE_GRAPH, Epoch(20), term=TERM) == 0
    assert await store.rows("select v from state.t_5") == [("alive",)]


async def test_a_name_can_be_taken_again_before_the_clean_up(store: Store) -> None:
    again = relation(5, ORDERS.name, {"other": "date"})
    await store.tables.create(ORDERS, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS])
    await store.tables.create(again, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(11), term=TERM, created=[again])
    await store.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert await store.rows("select other from public.orders") == []
    assert await store.rows("select other from live.orders") == []
    assert await store.rows("select to_regclass('state.t_1')") == [(None,)]


async def test_a_deposed_term_can_do_nothing(store: Store) -> None:
    """I7."""
    await store.tables.create(ORDERS, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[ORDERS])
    await _put(store, 1, "written since", 21)
    await _put(store, 2, "dead", 10, ended=15)
    await store.tables.claim(Term(8))
    before = await store.rows("select * from state.t_1 order by id")
    other = relation(3, "other")
    with pytest.raises(Deposed):
        await store.tables.claim(TERM)
    with pytest.raises(Deposed):
        await store.tables.create(other, term=TERM)
    with pytest.raises(Deposed):
        await store.tables.publish(DATABASE_GRAPH, Epoch(21), term=TERM, created=[])
    with pytest.raises(Deposed):
        await store.tables.fence(DATABASE_GRAPH, Generation(4), term=TERM)
    with pytest.raises(Deposed):
        await store.tables.roll_back([ORDERS.id], Epoch(20), term=TERM)
    with pytest.raises(Deposed):
        await store.tables.vacuum([ORDERS.id], DATABASE_GRAPH, Epoch(20), term=TERM)
    with pytest.raises(Deposed):
        await store.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert await store.rows("select * from state.t_1 order by id") == before
    assert await _seen(store) == []
    assert await store.rows("select to_regclass('state.t_3'), to_regclass('live.other')") == [(None, None)]
    assert await store.rows("select * from state.fence") == []


async def test_a_generation_never_goes_back(store: Store) -> None:
    await store.tables.fence(DATABASE_GRAPH, Generation(4), term=TERM)
    with pytest.raises(Stale):
        await store.tables.fence(DATABASE_GRAPH, Generation(3), term=TERM)
    assert await store.rows("select graph, generation from state.fence") == [(1, 4)]


async def test_a_users_own_table_is_in_the_way_and_stays(store: Store) -> None:
    await store.run("create table public.orders(mine int)")
    with pytest.raises(Conflict, match='"orders" already exists'):
        await store.tables.create(ORDERS, term=TERM)
    assert await store.rows("select to_regclass('state.t_1'), to_regclass('live.orders')") == [(None, None)]
    await store.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert await store.rows("select mine from public.orders") == []


async def test_a_table_of_another_relation_is_never_taken_over(store: Store) -> None:
    await store.tables.create(ORDERS, term=TERM)
    with pytest.raises(Conflict, match=r"state\.t_1 belongs to another relation"):
        await store.tables.create(relation(1, "orders", {"id": "integer"}), term=TERM)


async def test_drop_leaves_nothing(store: Store, database_url: str) -> None:
    """I9."""
    catalog = "select relname, relkind from pg_class union all select typname, typtype from pg_type order by 1, 2"
    before = await store.rows(catalog)
    await store.tables.create(ODD, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ODD])
    assert await store.rows(catalog) != before
    await store.tables.drop(ODD.id, ODD.name, term=TERM)
    assert await store.rows(catalog) == before
