"""The examination of `VersionedTables`: what operations rely on."""

from collections.abc import AsyncGenerator

import pytest

from service.domain.errors import Conflict, Deposed, Stale
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId, RelationId, Term
from service.protocol.relation import ALIVE
from service.serving import tables
from tests.conformance.conftest import Examined
from tests.support.state_store import Store, prepared_store, relation

TERM = Term(7)
ORDERS = relation(1, "orders")
ODD = relation(2, 'odd "name"; --', {"a b": "integer", 'q"': "text[]", "select": "numeric(5,2)"}, "a b", "select")
OTHER = relation(3, "other")


@pytest.fixture
async def store(examined: Examined) -> Examined:
    await examined.fences.claim(TERM)
    return examined


@pytest.fixture
async def postgres(database_url: str) -> AsyncGenerator[Store]:
    """For what is said in Postgres's own words."""
    async with prepared_store(database_url) as prepared:
        await prepared.fences.claim(TERM)
        yield prepared


async def test_a_relation_is_readable_once_it_is_created_and_published(store: Examined) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "a", 10)
    assert await store.shown(ORDERS) is None
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS])
    assert await store.shown(ORDERS) == [(1, "a")]


async def test_every_method_may_be_repeated(store: Examined) -> None:
    for _ in range(2):
        await store.fences.claim(TERM)
        await store.tables.create(ORDERS, term=TERM)
        await store.tables.create(OTHER, term=TERM)
        await store.fences.fence(DATABASE_GRAPH, Generation(3), term=TERM)
        await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS, OTHER])
        await store.tables.roll_back([ORDERS.id, OTHER.id], DATABASE_GRAPH, Epoch(10), term=TERM)
        assert await store.tables.vacuum([ORDERS.id, OTHER.id], DATABASE_GRAPH, Epoch(10), term=TERM) == 0
    for _ in range(2):
        await store.tables.drop(OTHER.id, OTHER.name, term=TERM)
        await store.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert [await store.stored(one) for one in (ORDERS, OTHER)] == [None, None]
    assert [await store.shown(one) for one in (ORDERS, OTHER)] == [None, None]


async def test_what_is_shown_never_goes_back(store: Examined) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "a", 10, ended=20)
    await store.put(ORDERS, 1, "b", 20)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[ORDERS])
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[])
    assert await store.shown(ORDERS) == [(1, "b")]


async def test_epochs_beyond_the_published_one_are_not_seen(store: Examined) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "a", 10, ended=20)
    await store.put(ORDERS, 1, "b", 20)
    await store.put(ORDERS, 2, "new", 20)
    await store.tables.publish(DATABASE_GRAPH, Epoch(19), term=TERM, created=[ORDERS])
    assert await store.shown(ORDERS) == [(1, "a")]
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[])
    assert await store.shown(ORDERS) == [(1, "b"), (2, "new")]


async def test_s2_i2_a_relation_that_leaves_for_another_graph_is_read_at_its_epochs(store: Examined) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "a", 10)
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS])
    for _ in range(2):
        await store.tables.publish(GraphId(7), Epoch(10), term=TERM, created=[ORDERS])
    await store.put(ORDERS, 2, "new", 15)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[])
    assert await store.shown(ORDERS) == [(1, "a")]
    await store.tables.publish(GraphId(7), Epoch(15), term=TERM, created=[])
    assert await store.shown(ORDERS) == [(1, "a"), (2, "new")]


async def test_roll_back_undoes_what_came_after_and_nothing_else(store: Examined) -> None:
    """I3."""
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "kept", 10)
    await store.put(ORDERS, 2, "reopened", 10, ended=21)
    await store.put(ORDERS, 2, "forgotten", 21)
    await store.put(ORDERS, 3, "ended before", 10, ended=20)
    await store.put(ORDERS, 4, "new", 21)
    await store.tables.roll_back([ORDERS.id, RelationId(99)], DATABASE_GRAPH, Epoch(20), term=TERM)
    assert await store.stored(ORDERS) == [
        (1, "kept", 10, ALIVE),
        (2, "reopened", 10, ALIVE),
        (3, "ended before", 10, 20),
    ]


async def test_nothing_is_rolled_back_to_an_epoch_whose_versions_are_gone(store: Examined) -> None:
    """A meta store that was restored alone stands at such an epoch (I1)."""
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "gone", 10, ended=20)
    await store.put(ORDERS, 1, "kept", 20)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[ORDERS])
    await store.tables.vacuum([ORDERS.id], DATABASE_GRAPH, Epoch(20), term=TERM)
    with pytest.raises(Conflict):
        await store.tables.roll_back([ORDERS.id], DATABASE_GRAPH, Epoch(19), term=TERM)
    await store.tables.roll_back([ORDERS.id], DATABASE_GRAPH, Epoch(20), term=TERM)
    assert await store.stored(ORDERS) == [(1, "kept", 20, ALIVE)]


async def test_vacuum_keeps_what_is_readable_at_the_published_epoch(store: Examined) -> None:
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "old", 10, ended=20)
    await store.put(ORDERS, 1, "shown", 20, ended=30)
    await store.put(ORDERS, 1, "committed", 30)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[ORDERS])
    assert await store.tables.vacuum([ORDERS.id, RelationId(99)], DATABASE_GRAPH, Epoch(30), term=TERM) == 1
    assert await store.shown(ORDERS) == [(1, "shown")]


async def test_vacuum_goes_through_all_of_them(store: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ASKED_TOGETHER", 3)
    many = [relation(number, f"r{number}") for number in range(1, 8)]
    for table in many:
        await store.tables.create(table, term=TERM)
    for number in (2, 5, 7):
        await store.put(many[number - 1], 1, "dead", 10, ended=20)
        await store.put(many[number - 1], 1, "alive", 20)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[])
    ids = [table.id for table in many]
    assert await store.tables.vacuum(ids, DATABASE_GRAPH, Epoch(20), term=TERM) == 3
    assert await store.tables.vacuum(ids, DATABASE_GRAPH, Epoch(20), term=TERM) == 0
    assert await store.stored(many[4]) == [(1, "alive", 20, ALIVE)]


async def test_a_name_can_be_taken_again_before_the_clean_up(store: Examined) -> None:
    again = relation(5, ORDERS.name, {"id": "bigint", "other": "date"})
    await store.tables.create(ORDERS, term=TERM)
    await store.put(ORDERS, 1, "of the first", 10)
    await store.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ORDERS])
    await store.tables.create(again, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(11), term=TERM, created=[again])
    await store.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert await store.shown(again) == []
    assert await store.stored(ORDERS) is None


async def test_a_deposed_term_can_do_nothing(store: Examined) -> None:
    """I7."""
    await store.tables.create(ORDERS, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(20), term=TERM, created=[ORDERS])
    await store.put(ORDERS, 1, "written since", 21)
    await store.put(ORDERS, 2, "dead", 10, ended=15)
    await store.fences.claim(Term(8))
    before = await store.stored(ORDERS)
    with pytest.raises(Deposed):
        await store.fences.claim(TERM)
    with pytest.raises(Deposed):
        await store.tables.create(OTHER, term=TERM)
    with pytest.raises(Deposed):
        await store.tables.publish(DATABASE_GRAPH, Epoch(21), term=TERM, created=[])
    with pytest.raises(Deposed):
        await store.fences.fence(DATABASE_GRAPH, Generation(4), term=TERM)
    with pytest.raises(Deposed):
        await store.tables.roll_back([ORDERS.id], DATABASE_GRAPH, Epoch(20), term=TERM)
    with pytest.raises(Deposed):
        await store.tables.vacuum([ORDERS.id], DATABASE_GRAPH, Epoch(20), term=TERM)
    with pytest.raises(Deposed):
        await store.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert await store.stored(ORDERS) == before
    assert await store.shown(ORDERS) == []
    assert await store.stored(OTHER) is None
    assert await store.generation() is None


async def test_a_generation_never_goes_back(store: Examined) -> None:
    await store.fences.fence(DATABASE_GRAPH, Generation(4), term=TERM)
    with pytest.raises(Stale):
        await store.fences.fence(DATABASE_GRAPH, Generation(3), term=TERM)
    assert await store.generation() == 4


async def test_a_table_of_another_relation_is_never_taken_over(store: Examined) -> None:
    await store.tables.create(ORDERS, term=TERM)
    with pytest.raises(Conflict, match=r"state\.t_1 belongs to another relation"):
        await store.tables.create(relation(1, "orders", {"id": "integer"}), term=TERM)


@pytest.mark.postgres
async def test_odd_names_are_names(postgres: Store) -> None:
    for _ in range(2):
        await postgres.tables.create(ODD, term=TERM)
        await postgres.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ODD])
        await postgres.tables.roll_back([ODD.id], DATABASE_GRAPH, Epoch(10), term=TERM)
        assert await postgres.tables.vacuum([ODD.id], DATABASE_GRAPH, Epoch(10), term=TERM) == 0
    for _ in range(2):
        await postgres.tables.drop(ODD.id, ODD.name, term=TERM)


@pytest.mark.postgres
async def test_what_dml_reads_comes_and_goes_with_its_relation(postgres: Store) -> None:
    again = relation(5, ORDERS.name, {"other": "date"})
    await postgres.tables.create(ORDERS, term=TERM)
    await postgres.tables.create(again, term=TERM)
    await postgres.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert await postgres.rows("select other from live.orders") == []
    await postgres.fences.claim(Term(8))
    with pytest.raises(Deposed):
        await postgres.tables.create(OTHER, term=TERM)
    assert await postgres.rows("select to_regclass('live.other')") == [(None,)]


@pytest.mark.postgres
async def test_a_users_own_table_is_in_the_way_and_stays(postgres: Store) -> None:
    await postgres.run("create table public.orders(mine int)")
    with pytest.raises(Conflict, match='"orders" already exists'):
        await postgres.tables.create(ORDERS, term=TERM)
    assert await postgres.rows("select to_regclass('state.t_1'), to_regclass('live.orders')") == [(None, None)]
    await postgres.tables.drop(ORDERS.id, ORDERS.name, term=TERM)
    assert await postgres.rows("select mine from public.orders") == []


@pytest.mark.postgres
async def test_drop_leaves_nothing(postgres: Store) -> None:
    """I9."""
    catalog = "select relname, relkind from pg_class union all select typname, typtype from pg_type order by 1, 2"
    before = await postgres.rows(catalog)
    await postgres.tables.create(ODD, term=TERM)
    await postgres.tables.publish(DATABASE_GRAPH, Epoch(10), term=TERM, created=[ODD])
    assert await postgres.rows(catalog) != before
    await postgres.tables.drop(ODD.id, ODD.name, term=TERM)
    assert await postgres.rows(catalog) == before
