"""Roll back and vacuum touch what they change, not the table, however large it is and stale its statistics."""

import json
from typing import Any

import pytest

from service.protocol.ids import DATABASE_GRAPH, Epoch, Term
from service.serving import tables
from service.serving.connections import Connection
from tests.support.state_store import Store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
ROWS = 150_000
BIG = relation(1, "big")
DELETE = "delete from state.t_1 where _from > 300"
REOPEN = "update state.t_1 set _to = 9223372036854775807 where _to > 300 and _to <> 9223372036854775807"


@pytest.fixture
async def big(store: Store) -> Store:
    """A large table whose statistics say nothing of what was written last: 100 new rows, 100 ended, 50 dead."""
    await store.tables.create(BIG, term=TERM)
    await store.run("alter table state.t_1 set (autovacuum_enabled = off)")
    await store.run(
        f"insert into state.t_1 select k % 256, k, 'v', 100 + k / 1000 from generate_series(1, {ROWS}) k order by 1, 2"
    )
    await store.run("update state.t_1 set _to = 120 where id <= 50")
    await store.run("select brin_summarize_new_values('state.t_1_from')")
    await store.run("analyze state.t_1")
    await store.run("update state.t_1 set _to = 301 where id between 1000 and 1099")
    await store.run("insert into state.t_1 select k % 256, k, 'w', 301 from generate_series(1000, 1099) k")
    return store


async def _scans(store: Store) -> list[tuple[object, ...]]:
    """Sequential scans and the tuples they read, so far."""
    await store.run("select pg_stat_force_next_flush()")
    return await store.rows(
        "select seq_scan, seq_tup_read from pg_stat_user_tables where relid = 'state.t_1'::regclass"
    )


async def test_roll_back_reads_what_came_after(big: Store) -> None:
    async with big.pool.connection() as conn, conn.transaction(force_rollback=True):
        plans = await _plans(conn, DELETE, REOPEN)
    assert "Seq Scan" not in {node["Node Type"] for plan in plans for node in _nodes(plan)}
    read = [node.get("Rows Removed by Index Recheck", 0) for plan in plans for node in _nodes(plan)]
    assert sum(read) < ROWS / 10, plans
    before = await _scans(big)
    await big.tables.roll_back([BIG.id], DATABASE_GRAPH, Epoch(300), term=TERM)
    assert await _scans(big) == before
    assert await big.rows("select count(*), count(*) filter (where _to = 120), max(_from) from state.t_1") == [
        (ROWS, 50, 250)
    ]


async def test_vacuum_reads_what_is_dead(big: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "VACUUM_BATCH", 20)
    before = await _scans(big)
    assert await big.tables.vacuum([BIG.id], tables.GraphId(1), Epoch(300), term=TERM) == 50
    assert await _scans(big) == before
    assert await big.rows("select count(*) from state.t_1") == [(ROWS + 50,)]


async def _plans(conn: Connection, *statements: str) -> list[dict[str, Any]]:
    await conn.execute("set local enable_seqscan = off")
    found: list[dict[str, Any]] = []
    for statement in statements:
        row = await (await conn.execute(f"explain (analyze, format json) {statement}".encode())).fetchone()
        assert row is not None
        plan = json.loads(row[0]) if isinstance(row[0], str) else row[0]
        found.append(plan[0]["Plan"])
    return found


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for inner in plan.get("Plans", ()) for node in _nodes(inner))]
