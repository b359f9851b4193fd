"""Slices of staged rows: what they overwrite, and how two sessions move one of them as a whole."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import psycopg
import pytest

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.dml import InsertStaged, InsertValues
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, StatementId
from service.protocol.relation import ALIVE, ROW_ID
from tests.support.state_store import Store, relation, store_of
from workers.state_store import loads
from workers.state_store.dml import DmlStore
from workers.state_store.loads import DIVIDED_ROWS
from workers.state_store.port import StatementBrokeError

pytestmark = pytest.mark.postgres

GENERATION = Generation(5)
TABLE = relation(1, "t")
KEYED = TABLE.model_copy(
    update={"columns": (TABLE.columns[0].model_copy(update={"nullable": False}), *TABLE.columns[1:])}
)
UNKEYED = TABLE.model_copy(
    update={
        "columns": (Column(name=ROW_ID, type=ColumnType.parse("bigint"), nullable=False), *TABLE.columns),
        "key": (KeyColumn(name=ROW_ID),),
    }
)
ROWS = DIVIDED_ROWS + 1
LOST = "state = 'active' and query like 'select count(*) from generate_series%'"


@pytest.fixture(params=[KEYED, TABLE, UNKEYED], ids=["key", "nullable key", "generated key"])
def table(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def store(database_url: str, table: Any) -> AsyncGenerator[Store]:
    async with store_of(database_url, table, GENERATION) as prepared:
        yield prepared


async def staged(store: Store, table: Any, number: int, rows: str, count: int) -> InsertStaged:
    """Stage rows `(_row, id, v)`."""
    await store.run(f"create table stage.s_{number} as select _row::bigint, id::bigint, v::text from ({rows}) q")
    await store.run(f"create index on stage.s_{number} using brin (_row)")
    await store.run(f"grant select on stage.s_{number} to public")
    return InsertStaged(id=StatementId(number), relation=table, columns=("id", "v"), first=0, last=count)


def dml(store: Store) -> DmlStore:
    return DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)


async def alive(store: Store) -> tuple[Any, ...]:
    ((*found,),) = await store.rows(f"select count(*), count(distinct id), sum(id) from state.t_1 where _to = {ALIVE}")
    return tuple(found)


@pytest.mark.parametrize("rows", [10, ROWS], ids=["one session", "two sessions"])
async def test_the_last_of_rows_with_a_key_wins_and_overwrites_the_row_in_the_table(
    store: Store, table: Any, rows: int
) -> None:
    first = await staged(store, table, 5, f"select i _row, i / 2 id, i v from generate_series(0, {rows - 1}) i", rows)
    outcome = dml(store).run((first,), Epoch(9))
    assert [result.affected for result in outcome.results] == [rows]
    keys = rows if table is UNKEYED else (rows + 1) // 2
    assert outcome.key_count_deltas == {table.id: keys}
    assert (await alive(store))[:2] == (keys, (rows + 1) // 2)
    again = await staged(store, table, 6, f"select i _row, i + 2 id, -i v from generate_series(0, {rows - 1}) i", rows)
    outcome = dml(store).run((again,), Epoch(10))
    assert [(result.affected, result.error) for result in outcome.results] == [(rows, None)]
    found = await store.rows(f"select id, v from state.t_1 where _to = {ALIVE} and id < 4 order by id, v")
    if table is UNKEYED:
        assert outcome.key_count_deltas == {table.id: rows}
        assert (await alive(store))[0] == 2 * rows
        assert len(found) == 10
        return
    assert outcome.key_count_deltas == {table.id: rows - (keys - 2)}
    assert found == [(0, "1"), (1, "3"), (2, "0"), (3, "-1")]
    assert (await alive(store))[:2] == (rows + 2, rows + 2)
    await store.rows("select 1")
    assert await store.rows("select count(*) from state.t_1 where _from = _to") == [(0,)]


@pytest.mark.parametrize("table", [KEYED], ids=["key"])
async def test_a_slice_sees_what_its_epoch_wrote_before(store: Store, table: Any) -> None:
    """A second session would not see it: the row would be there twice."""
    before = InsertValues(
        id=StatementId(4), relation=table, columns=("id", "v"), source="values (7, 'old'), (-1, 'old')"
    )
    load = await staged(store, table, 5, f"select i _row, i id, i v from generate_series(0, {ROWS - 1}) i", ROWS)
    outcome = dml(store).run((before, load), Epoch(9))
    assert [result.error for result in outcome.results] == [None, None]
    assert outcome.key_count_deltas == {table.id: ROWS + 1}
    assert await store.rows("select v from state.t_1 where id in (7, -1) order by id") == [("old",), ("7",)]


@pytest.mark.parametrize("table", [KEYED], ids=["key"])
@pytest.mark.parametrize("half", [0, 1])
async def test_a_slice_of_which_one_half_fails_has_no_effect(
    store: Store, table: Any, half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = await staged(store, table, 5, f"select i _row, i id, i v from generate_series(0, {ROWS - 1}) i", ROWS)
    other = InsertValues(id=StatementId(6), relation=table, columns=("id", "v"), source="values (-1, 'other')")
    monkeypatch.setattr(loads, "inserting", failing(loads.inserting, half))
    outcome = dml(store).run((load, other), Epoch(9))
    assert [result.sqlstate for result in outcome.results] == ["22012", None]
    assert await store.rows("select id from state.t_1") == [(-1,)]


@pytest.mark.parametrize("table", [KEYED], ids=["key"])
async def test_i3_a_second_session_that_is_lost_ends_the_epoch(
    store: Store, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = await staged(store, table, 5, f"select i _row, i id, i v from generate_series(0, {ROWS - 1}) i", ROWS)

    def lost(statement: InsertStaged, epoch: Epoch, half: int | None) -> str:
        return "select count(*) from generate_series(1, 1000000000)" if half == 1 else original(statement, epoch, half)

    original = loads.inserting
    monkeypatch.setattr(loads, "inserting", lost)
    running = asyncio.create_task(asyncio.to_thread(dml(store).run, (load,), Epoch(9)))
    while not await store.rows(f"select pg_terminate_backend(pid), pg_sleep(0.05) from pg_stat_activity where {LOST}"):
        pass
    with pytest.raises(StatementBrokeError):
        await running
    assert await store.rows("select id from state.t_1 limit 1") == []


@pytest.mark.parametrize("table", [KEYED], ids=["key"])
async def test_i7_an_old_generation_moves_no_half(store: Store, table: Any) -> None:
    load = await staged(store, table, 5, f"select i _row, i id, i v from generate_series(0, {ROWS - 1}) i", ROWS)
    old = DmlStore(store.logins.writer_url, DATABASE_GRAPH, Generation(GENERATION - 1))
    with pytest.raises(psycopg.Error, match="generation"):
        old.run((load,), Epoch(9))
    assert await store.rows("select id from state.t_1 limit 1") == []


def failing(original: Callable[..., str], failed: int) -> Callable[..., str]:
    def print_one(statement: InsertStaged, epoch: Epoch, half: int | None) -> str:
        return "select 1 / 0" if half == failed else original(statement, epoch, half)

    return print_one
