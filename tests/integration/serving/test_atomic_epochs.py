"""I2: a reader sees all of an epoch or none of it, across the relations of the graph, also while it is published."""

import threading
from contextlib import nullcontext

import psycopg
import pytest

from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, Term
from service.serving import sessions
from tests.support.state_store import Store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
EPOCHS = 300
FIRST, SECOND, LATE = relation(1, "first"), relation(2, "second"), relation(3, "late")

# Twice each, so that one statement's several looks at one relation are compared too. 40 rows make each look last.
SUMS = "(select sum(v::bigint) from {0}), (select sum(v::bigint) from {0})"
QUESTION = f"select {SUMS.format('public.first')}, {SUMS.format('public.second')}"


async def _versions(store: Store, table: str) -> None:
    """Forty rows that all say the epoch they are of, in every epoch."""
    await store.run(
        f"insert into state.{table} select 0, k, e::text, e, e + 1 from generate_series(1, {EPOCHS}) e,"
        " generate_series(1, 40) k"
    )


def _read(
    url: str, question: str, over: threading.Event, begun: threading.Barrier, seen: list[tuple[object, ...]]
) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        begun.wait(30)
        while not over.is_set():
            seen += conn.execute(question.encode()).fetchall()


async def test_readers_never_see_a_mixture(store: Store) -> None:
    for table in (FIRST, SECOND, LATE):
        await store.tables.create(table, term=TERM)
        await _versions(store, f"t_{table.id}")
    await store.tables.publish(DATABASE_GRAPH, Epoch(1), term=TERM, created=[FIRST, SECOND])
    over, begun = threading.Event(), threading.Barrier(3)
    seen: list[list[tuple[object, ...]]] = [[], []]
    readers = [
        threading.Thread(target=_read, args=(store.logins.reader_url, QUESTION, over, begun, rows)) for rows in seen
    ]
    for thread in readers:
        thread.start()
    try:
        begun.wait(30)
        for epoch in range(2, EPOCHS + 1):
            created = [LATE] if epoch == EPOCHS // 2 else []
            await store.tables.publish(DATABASE_GRAPH, Epoch(epoch), term=TERM, created=created)
    finally:
        over.set()
        for thread in readers:
            thread.join(30)
    for rows in seen:
        assert len({row[0] for row in rows}) > 3, "the readers did not read while epochs were published"
        assert [row for row in rows if len(set(row)) != 1] == []
    assert await store.rows("select min(v), max(v), count(*) from public.late") == [(str(EPOCHS), str(EPOCHS), 40)]


async def test_a_transaction_of_several_statements_can_stay_at_its_epoch(store: Store) -> None:
    for table in (FIRST, SECOND):
        await store.tables.create(table, term=TERM)
        await _versions(store, f"t_{table.id}")
    await store.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[FIRST, SECOND])
    async with await psycopg.AsyncConnection.connect(store.logins.reader_url) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        first = await (await conn.execute("select distinct v from first")).fetchall()
        await store.tables.publish(DATABASE_GRAPH, Epoch(6), term=TERM, created=[])
        await store.tables.vacuum([FIRST.id, SECOND.id], DATABASE_GRAPH, Epoch(6), term=TERM)
        second = await (await conn.execute("select distinct v from second")).fetchall()
    assert first == second == [("5",)]


async def test_versions_out_of_sight_cannot_fail_a_query(store: Store) -> None:
    """A row that no longer counts, or not yet, must not be divided by."""
    table = relation(4, "divisors", {"id": "integer", "x": "integer"})
    await store.tables.create(table, term=TERM)
    await store.run(
        "insert into state.t_4 select 0, i, 0, 1, 5 from generate_series(1, 100) i"
        " union all select 0, i, 2, 5, 9223372036854775807 from generate_series(1, 100) i"
        " union all select 0, i, 0, 9, 9223372036854775807 from generate_series(101, 200) i"
    )
    await store.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[table])
    assert await store.rows("select count(*), sum(10 / x) from public.divisors where 10 / x > 1") == [(100, 500)]
    assert await store.rows("select count(*) from public.divisors where (10 / x)::text::int > 1") == [(100,)]


async def test_s2_a_graph_of_its_own_shows_what_it_has_published(store: Store) -> None:
    """Users and DML read its published epoch, whatever the database graph has published and it is writing."""
    table = relation(1, "alone", {"id": "bigint", "v": "bigint"}, "id")
    await store.tables.create(table, term=TERM)
    await store.run("insert into state.t_1 values (0, 1, 10, 3), (0, 2, 20, 8)")
    await store.tables.publish(DATABASE_GRAPH, Epoch(9), term=TERM, created=[])
    assert await store.tables.publish(GraphId(7), Epoch(5), term=TERM, created=[table]) == {}
    for schema in ("public", "live"):
        assert await store.rows(f"select id from {schema}.alone") == [(1,)]
    await store.tables.publish(GraphId(7), Epoch(8), term=TERM, created=[])
    for schema in ("public", "live"):
        assert await store.rows(f"select id from {schema}.alone order by 1") == [(1,), (2,)]


@pytest.mark.parametrize(("open_for", "ends"), [("0s", True), ("1h", False)])
async def test_i13_a_view_that_leaves_the_database_graph_waits_for_no_reader_for_long(
    store: Store, monkeypatch: pytest.MonkeyPatch, open_for: str, *, ends: bool
) -> None:
    """It stood still until the transaction of a viewer's tool ended, after half an hour at most."""
    monkeypatch.setattr(sessions, "OPEN_FOR", open_for)
    view = relation(9, "moves")
    await store.tables.create(view, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(5), term=TERM, created=[view])
    async with await psycopg.AsyncConnection.connect(await store.read_url()) as reading:
        await reading.execute("select from moves")
        assert set(await store.tables.publish(GraphId(7), Epoch(5), term=TERM, created=[view])) == {view.id}
        again = await store.tables.publish(GraphId(7), Epoch(5), term=TERM, created=[view])
        assert (again == {}) is ends
        with pytest.raises(psycopg.errors.AdminShutdown) if ends else nullcontext():
            await reading.rollback()
    assert await store.tables.publish(GraphId(7), Epoch(5), term=TERM, created=[view]) == {}
