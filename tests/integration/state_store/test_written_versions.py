"""Statements on the real store: one net version for each key and epoch, whatever a transaction did to it."""

from collections.abc import AsyncGenerator

import pytest

from service.protocol.dml import Delete, InsertValues, Statement, Update
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, StatementId
from tests.support.state_store import Store, relation, store_of
from workers.cdc.apply import applying
from workers.cdc.fold import Folded
from workers.cdc.pgoutput import piece_of
from workers.state_store.dml import DmlStore
from workers.state_store.postgres import PostgresStore

pytestmark = pytest.mark.postgres

GENERATION = Generation(5)
NAMES = ("_row", "_again", "_there", "found", "given", "p", "t", "g", "made", "typed", "c0")
TABLE = relation(1, "t", dict.fromkeys(NAMES, "bigint"))
PAIRS = relation(1, "t", {"id": "bigint", "v": "text"})
BEFORE, NOW = Epoch(9), Epoch(10)


def inserting(number: int, rows: str) -> Statement:
    return InsertValues(id=StatementId(number), relation=PAIRS, columns=("id", "v"), source=f"values {rows}")


def setting(number: int, column: str, value: str, predicate: str) -> Statement:
    return Update(id=StatementId(number), relation=PAIRS, assignments=((column, value),), predicate=predicate)


def deleting(number: int, predicate: str) -> Statement:
    return Delete(id=StatementId(number), relation=PAIRS, predicate=predicate)


@pytest.mark.parametrize(
    ("statements", "affected", "alive", "delta"),
    [
        ([inserting(1, "(1, 'x'), (1, 'y')")], [2], {1: "y", 2: "b"}, 0),
        ([inserting(1, "(3, 'c')"), setting(2, "v", "'d'", "id = 3")], [1, 1], {1: "a", 2: "b", 3: "d"}, 1),
        ([inserting(1, "(3, 'c')"), deleting(2, "id = 3")], [1, 1], {1: "a", 2: "b"}, 0),
        ([deleting(1, "id = 1"), inserting(2, "(1, 'z')")], [1, 1], {1: "z", 2: "b"}, 0),
        ([setting(1, "id", "3 - id", "true")], [2], {1: "b", 2: "a"}, 0),
        ([setting(1, "id", "id + 1", "true"), setting(2, "id", "id + 1", "true")], [2, 2], {3: "a", 4: "b"}, 0),
        ([setting(1, "id", "id + 1", "true"), deleting(2, "id = 2")], [2, 1], {3: "b"}, -1),
        ([setting(1, "v", "v || v", "true"), setting(2, "v", "v || v", "id = 2")], [2, 1], {1: "aa", 2: "bbbb"}, 0),
    ],
)
async def test_the_versions_of_an_epoch_are_what_its_statements_come_to(
    store: Store, statements: list[Statement], affected: list[int], alive: dict[int, str], delta: int
) -> None:
    dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    dml.run([inserting(1, "(1, 'a'), (2, 'b')")], BEFORE)
    outcome = dml.run(statements, NOW)
    assert [(result.affected, result.error) for result in outcome.results] == [(rows, None) for rows in affected]
    assert outcome.key_count_deltas == {PAIRS.id: delta}
    assert await rows_of(store, "_to > 10") == alive
    assert await rows_of(store, "_from <= 9 and _to > 9") == {1: "a", 2: "b"}
    assert await rows_of(store, "_from >= _to") == {}


@pytest.mark.parametrize("epoch", [BEFORE, NOW], ids=["written in this epoch", "written before"])
@pytest.mark.parametrize("key", ["1", "5"], ids=["of a row", "of none"])
async def test_two_rows_cannot_get_the_same_key(store: Store, epoch: Epoch, key: str) -> None:
    dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    dml.run([inserting(1, "(1, 'a'), (2, 'b')")], BEFORE)
    (refused,) = dml.run([setting(2, "id", key, "true")], epoch).results
    assert (refused.affected, refused.sqlstate) == (0, "21000")
    assert refused.error == "the statement would give two rows the same key"
    assert await rows_of(store, "_to > 10") == {1: "a", 2: "b"}


async def rows_of(store: Store, which: str) -> dict[object, str]:
    rows = await store.rows(f"select id, v from state.t_1 where {which}")
    found = {key: str(value) for key, value in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with store_of(database_url, PAIRS, GENERATION) as prepared:
        yield prepared


async def test_columns_may_have_any_name(database_url: str) -> None:
    ones, twos = (f"({', '.join([number] * len(NAMES))})" for number in ("1", "2"))
    statements: tuple[Statement, ...] = (
        InsertValues(id=StatementId(1), relation=TABLE, columns=NAMES, source=f"values {ones}, {twos}"),
        Update(
            id=StatementId(2),
            relation=TABLE,
            assignments=(("found", "p + 10"), ("_row", "_row * 5")),
            predicate="t = 2",
        ),
        Delete(id=StatementId(3), relation=TABLE, predicate="_again = 1"),
    )
    async with store_of(database_url, TABLE, GENERATION) as store:
        outcome = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION).run(statements, Epoch(9))
        assert [(result.affected, result.error) for result in outcome.results] == [(2, None), (1, None), (1, None)]
        with applying(PostgresStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)) as writing:
            row = tuple(piece_of("7") for _ in NAMES)
            assert not writing.load(TABLE, Folded({row[:1]: row}, ended=((piece_of("10"),),)))
            writing.begin(TABLE, Epoch(9))
            written = writing.written()
            assert (written.made, written.ended) == (1, 1)
