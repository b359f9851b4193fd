"""Plain columns that tasks of Spark copy without the JVM are the same, to the last digit, as those that it has seen."""

# ruff: noqa: ISC004 - rows are longer than a line
from collections.abc import AsyncGenerator

import pytest
from pyspark.sql import SparkSession

from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, Term
from service.protocol.plan import Pushdown, Stateless
from service.protocol.relation import Relation
from tests.support.state_store import Store, relation, store_of
from workers.backfill.actors import ActorTask
from workers.backfill.reading import Reading
from workers.engines.plain import is_plain
from workers.engines.port import EpochTask, ScanTask
from workers.engines.spark import SparkEngine
from workers.queries.stateless import plan
from workers.state_store.postgres import PostgresStore
from workers.state_store.wire import ticked

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(120)]

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
QUERY = Stateless(projection=tuple(map(ticked, COLUMNS)), pushdown=Pushdown(columns=tuple(COLUMNS)))
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
    window = Reading(Epoch(5), Epoch(5), Epoch(5))
    task = EpochTask(curr=Epoch(9), reading=window, actors=actors, page_rows=30, slice_seconds=60.0)
    for number, plain in ((2, QUERY.pushdown), (3, None)):
        scan = ScanTask(versioned, UPSTREAM, target(number), len(actors), plain=plain)
        assert is_plain(scan, QUERY.pushdown)
        outcomes = SparkEngine(spark, scan, plan(QUERY, UPSTREAM, target(number))).run(task)
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
        assert not is_plain(ScanTask(store, other, other, 1), Pushdown(columns=("id", "x"))), kind
    plain = ScanTask(store, UPSTREAM, UPSTREAM, 1)
    assert not is_plain(plain, Pushdown(columns=tuple(COLUMNS), predicate="id > 1"))
    assert not is_plain(plain, None)
