"""Plain columns that tasks of Spark copy without the JVM are the same, to the last digit, as those that it has seen."""

# ruff: noqa: ISC004 - rows are longer than a line
from collections.abc import AsyncGenerator

import pytest
from pyspark.sql import SparkSession

from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, Term
from service.protocol.relation import Relation
from tests.support.projections import bound_projection
from tests.support.state_store import Store, relation, store_of
from workers.backfill.actors import ActorTask
from workers.backfill.stages import Window
from workers.engines.plain import is_plain
from workers.engines.port import ScanTask, StageTask
from workers.engines.spark import SparkProjection
from workers.state_store.postgres import PostgresStore

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

GENERATION = Generation(5)
COLUMNS = {
    "id": "bigint",
    "s": "smallint",
    "t": "text",
    "n": "numeric(12,2)",
    "m": "numeric(38,6)",
    "f": "double precision",
    "r": "real",
    "d": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "raw": "bytea",
    "ok": "boolean",
    "a": "text[]",
}
UPSTREAM = relation(1, "t", COLUMNS)
VALUES = (
    "null, null, null, null, null, null, null, null, null, null, null, null",
    "-32768, '', 0, -0.000001, 'NaN', '-0', '0001-01-01', '0001-01-01 00:00', '0001-01-01 00:00+00', '\\x', true, '{}'",
    "32767, 'žluť 🐎', -9999999999.99, 12345678901234567890123456789012.123456, '-0', '1e-30', '9999-12-31', "
    "'9999-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999+00', '\\x00ff', false, '{a,NULL,\"b c\"}'",
    "1, 'NaN', 0.01, 1.5, '-Infinity', 'Infinity', '1582-10-15', '1582-10-04 00:00', '2024-03-31 02:30+02', '\\x5c', "
    "null, '{NULL}'",
)
PLAIN = tuple(f"{{{name}}}" for name in COLUMNS)
COMPUTED = tuple(f"({one})" for one in PLAIN)
"""The same values, which the JVM computes."""
ROWS = 400


def target(number: int) -> Relation:
    return relation(number, f"v{number}", COLUMNS)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with store_of(database_url, UPSTREAM, GENERATION) as prepared:
        for number in (2, 3):
            await prepared.tables.create(target(number), term=Term(7))
        rows = (f"({number % 256}, {number}, {VALUES[number % len(VALUES)]}, 1)" for number in range(ROWS))
        await prepared.run(f"insert into state.t_1 values {', '.join(rows)}")
        yield prepared


async def test_plain_columns_are_copied_as_they_are(store: Store, spark: SparkSession) -> None:
    versioned = PostgresStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    actors = tuple(ActorTask(runs=(run,), positions=(), permits=None) for run in ((0, 127), (128, 255)))
    task = StageTask(
        curr=Epoch(9),
        windows={UPSTREAM.id: Window(Epoch(5), Epoch(5))},
        changed=frozenset(),
        at={UPSTREAM.id: Epoch(5)},
        actors=actors,
        page_rows=30,
        slice_seconds=60.0,
    )
    for number, values in ((2, PLAIN), (3, COMPUTED)):
        scan = ScanTask(versioned, bound_projection(UPSTREAM, target(number), values), UPSTREAM)
        assert is_plain(scan) is (values is PLAIN)
        outcomes = SparkProjection(spark, scan).run(task)
        assert sum(one.snapshot_rows for one in outcomes) == sum(one.inserted for one in outcomes) == ROWS
        assert sum(len(one.positions) for one in outcomes) == UPSTREAM.vnode_count
    copies = [await store.rows(f"select x::text from state.t_{number} x order by id") for number in (2, 3)]
    assert copies[0] == copies[1]
    source = f"select row(_vnode, {', '.join(COLUMNS)}, 9::bigint, _to)::text from state.t_1 order by id"
    assert await store.rows(source) == copies[0]


def test_what_is_written_in_another_form_is_not_plain() -> None:
    store = PostgresStore("postgresql://nowhere", DATABASE_GRAPH, GENERATION)
    for kind in ("uuid", "numeric", "jsonb", "time", "interval", "numeric(5,2)[]"):
        other = relation(4, "w", {"id": "bigint", "x": kind})
        assert not is_plain(ScanTask(store, bound_projection(other, other, ("{id}", "{x}")), other)), kind
    assert not is_plain(ScanTask(store, bound_projection(UPSTREAM, UPSTREAM, PLAIN, "{id} > 1"), UPSTREAM))
