"""The examination of a table format: what its worker side owes to engines, with the service side beside it."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cmp_to_key
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation
from service.protocol.relation import Relation
from service.protocol.vnodes import Runs
from tests.conformance.conftest import POSTGRES
from tests.support.key_shapes import SHAPES, KeyShape
from tests.support.model import Key, identity, order_python, value_of
from tests.support.state_store import relation
from tests.support.table_formats import TERM, Format, batch, table_format
from workers.backfill.order import Position, key_of
from workers.backfill.positions import ONE_VNODE, PageSize, Positions, Span, pages
from workers.state_store.port import CLOSE, LIVE, OPERATION, PAGE, VNODE, ArrowPage, VersionedStore, Written
from workers.state_store.wire import read_schema

TABLE = relation(1, "t")
NULLABLE = relation(1, "t", {"id": "bigint", "part": "bigint", "v": "text"}, "id", "part")
VNODES = 4
RUNS: Runs = ((0, VNODES - 1),)
ALL = PageSize(1_000, exact=True)


@pytest.fixture(params=["memory", POSTGRES], name="examined")
async def _examined(request: pytest.FixtureRequest) -> AsyncGenerator[Format]:
    async with table_format(request) as examined:
        yield examined


def write(store: VersionedStore, epoch: int, *rows: tuple[int, tuple[Any, ...]], table: Relation = TABLE) -> Written:
    """Write (operation, values) in vnode `first value % VNODES`."""
    placed = [(operation, (values[0] or 0) % VNODES, values) for operation, values in rows]
    return store.write(table, Epoch(epoch), iter([batch(table, placed)]))


def values(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return rows without their vnode, in order."""
    return sorted((tuple(row.values())[1:] for one in batches for row in one.to_pylist()), key=str)


def shown(store: VersionedStore, at: int, table: Relation = TABLE) -> list[tuple[Any, ...]]:
    page = store.read_page(table, [Span(vnode) for vnode in range(VNODES)], at=Epoch(at), size=ALL)
    assert set(page.reached.values()) == {None}, "the page is not the whole table"
    return values(page.batches)


def changes(
    store: VersionedStore, after: int, upto: int, runs: Runs = RUNS, table: Relation = TABLE
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the old rows and the new ones."""
    found = list(store.read_changes(table, after=Epoch(after), upto=Epoch(upto), runs=runs))
    assert [operation for operation, _ in found] == sorted(operation for operation, _ in found), "CLOSE comes first"
    assert all(one.schema.equals(read_schema(table)) for _, one in found)
    old, new = (values(one for operation, one in found if operation == wanted) for wanted in (CLOSE, LIVE))
    return old, new


async def fill(examined: Format) -> VersionedStore:
    """Write at 10, 20 and 30: an insert of three rows; an update, a deletion and an insert; the end of that insert."""
    store = await examined.prepare(TABLE)
    assert write(store, 10, *((PAGE, (key, f"a{key}")) for key in (1, 2, 3))) == Written(3, 0)
    changed = write(store, 20, (CLOSE, (1, None)), (CLOSE, (2, None)), (LIVE, (1, "b1")), (LIVE, (4, "b4")))
    assert changed == Written(2, 2)
    assert write(store, 30, (CLOSE, (4, None)), (CLOSE, (9, None)), (LIVE, (5, "c5"))) == Written(1, 1)
    return store


@pytest.mark.parametrize(
    ("at", "rows"),
    [
        (9, []),
        (10, [(1, "a1"), (2, "a2"), (3, "a3")]),
        (19, [(1, "a1"), (2, "a2"), (3, "a3")]),
        (20, [(1, "b1"), (3, "a3"), (4, "b4")]),
        (30, [(1, "b1"), (3, "a3"), (5, "c5")]),
        (99, [(1, "b1"), (3, "a3"), (5, "c5")]),
    ],
)
async def test_a_page_shows_what_was_readable_at_its_epoch(examined: Format, at: int, rows: list[Any]) -> None:
    assert shown(await fill(examined), at) == rows


@pytest.mark.parametrize(
    ("after", "upto", "old", "new"),
    [
        (0, 10, [], [(1, "a1"), (2, "a2"), (3, "a3")]),
        (10, 20, [(1, "a1"), (2, "a2")], [(1, "b1"), (4, "b4")]),
        (10, 30, [(1, "a1"), (2, "a2")], [(1, "b1"), (5, "c5")]),
        (0, 30, [], [(1, "b1"), (3, "a3"), (5, "c5")]),
        (20, 30, [(4, "b4")], [(5, "c5")]),
        (30, 99, [], []),
    ],
)
async def test_changes_are_net_and_old_versions_come_first(
    examined: Format, after: int, upto: int, old: list[Any], new: list[Any]
) -> None:
    """A version that began and ended in the span is in neither half."""
    store = await fill(examined)
    assert changes(store, after, upto) == (old, new)


async def test_changes_are_those_of_the_asked_vnodes(examined: Format) -> None:
    store = await fill(examined)
    assert changes(store, 10, 20, ((0, 1),)) == ([(1, "a1")], [(1, "b1"), (4, "b4")])
    assert changes(store, 10, 20, ((2, 2), (3, 3))) == ([(2, "a2")], [])


@pytest.mark.parametrize(
    ("after", "upto", "changed"), [(0, 9, False), (9, 10, True), (10, 19, False), (20, 30, True), (30, 99, False)]
)
async def test_whether_anything_changed(examined: Format, after: int, upto: int, *, changed: bool) -> None:
    store = await fill(examined)
    assert store.changed(TABLE, after=Epoch(after), upto=Epoch(upto)) is changed


@pytest.mark.parametrize(("at", "rows"), [(9, 0), (10, 3), (20, 3), (30, 3)])
async def test_whether_a_relation_has_so_many_rows(examined: Format, at: int, rows: int) -> None:
    store = await fill(examined)
    assert [store.has_rows(TABLE, count, at=Epoch(at)) for count in (0, rows, rows + 1)] == [True, True, False]


async def test_an_end_alone_is_a_change(examined: Format) -> None:
    store = await fill(examined)
    write(store, 40, (CLOSE, (1, None)))
    assert store.changed(TABLE, after=Epoch(30), upto=Epoch(40))
    assert changes(store, 30, 40) == ([(1, "b1")], [])


async def test_a_key_with_a_null_is_found_and_ended(examined: Format) -> None:
    store = await examined.prepare(NULLABLE)
    rows = [(1, None, "x"), (None, 1, "y"), (None, None, "z"), (1, 1, "w")]
    assert write(store, 10, *((LIVE, row) for row in rows), table=NULLABLE) == Written(4, 0)
    closed = write(store, 20, (CLOSE, (1, None, None)), (CLOSE, (None, None, None)), table=NULLABLE)
    assert closed == Written(0, 2)
    assert shown(store, 20, NULLABLE) == [(1, 1, "w"), (None, 1, "y")]


async def test_a_write_that_comes_in_many_batches_is_one(examined: Format) -> None:
    store = await fill(examined)
    rows = [(CLOSE, 1, (1, None)), (CLOSE, 3, (3, None)), (LIVE, 1, (1, "d1")), (LIVE, 2, (6, "d6"))]
    written = store.write(TABLE, Epoch(40), (batch(TABLE, [row]) for row in rows))
    assert written == Written(2, 2)
    assert shown(store, 40) == [(1, "d1"), (5, "c5"), (6, "d6")]
    assert store.write(TABLE, Epoch(50), iter(())) == Written(0, 0)


async def test_values_arrive_in_their_wire_types(examined: Format) -> None:
    kinds = {
        "id": "bigint",
        "n": "numeric(12,2)",
        "u": "uuid",
        "t": "text",
        "b": "bytea",
        "d": "date",
        "z": "timestamptz",
    }
    table = relation(1, "t", {**kinds, "f": "double precision", "a": "text[]"})
    store = await examined.prepare(table)
    uuid, moment = UUID("9fffffff-0000-4000-8000-00000000000a"), datetime(2024, 3, 31, 2, 30, 0, 1, tzinfo=UTC)
    written = (7, Decimal("-0.50"), uuid.bytes, "", b"\x00\xff", date(1582, 10, 15), moment, -0.5, ["a", None, 'b"'])
    types = [pa.int8(), *(field.type for field in read_schema(table))]
    types[3:5] = [pa.decimal128(12, 2), pa.binary()]
    nulls = (8, *[None] * (len(written) - 1))
    columns = zip((LIVE, 3, *written), (LIVE, 0, *nulls), strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    names = [OPERATION, VNODE, *(column.name for column in table.columns)]
    store.write(table, Epoch(10), iter([pa.RecordBatch.from_arrays(arrays, names=names)]))
    arrived = (7, "-0.50", str(uuid), *written[3:])
    assert shown(store, 10, table) == [arrived, nulls]


# Pages.


def keys_of(shape: KeyShape) -> list[Key]:
    """Return keys of a shape: all of its values, each once for equal ones."""
    random = Random(3)
    drawn = [tuple(random.choice(domain) for domain in shape.domains) for _ in range(40)]
    return list({identity(key): key for key in drawn}.values())


def in_order(shape: KeyShape, keys: Sequence[Key]) -> list[Key]:
    """Sort keys in storage order."""

    def order(one: Key, other: Key) -> int:
        return order_python(key_of(shape.relation), one, other)

    return sorted(keys, key=cmp_to_key(order))


async def paged(examined: Format, shape: KeyShape) -> tuple[VersionedStore, Mapping[int, list[Key]]]:
    """Store rows with the keys of a shape; return them by vnode, in the order of the key."""
    store, keys = await examined.prepare(shape.relation), keys_of(shape)
    rows = [(PAGE, place % VNODES, (*key, place, 0)) for place, key in enumerate(keys)]
    store.write(shape.relation, Epoch(10), iter([batch(shape.relation, rows)]))
    return store, {vnode: in_order(shape, keys[vnode::VNODES]) for vnode in range(VNODES)}


def key_at(shape: KeyShape, position: Position) -> Key:
    return tuple(value_of(text, part.type) for text, part in zip(position, key_of(shape.relation), strict=True))


def read_keys(shape: KeyShape, page: ArrowPage) -> list[Any]:
    parts = len(shape.parts)
    return sorted(identity(tuple(row.values())[1 : 1 + parts]) for one in page.batches for row in one.to_pylist())


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(SHAPES.index(shape)))
@pytest.mark.parametrize("rows", [1, 7])
async def test_an_exact_page_has_the_next_keys_of_its_block_in_order(
    examined: Format, shape: KeyShape, rows: int
) -> None:
    """NULL is largest, and parts may descend: a page ends at the key at which the storage order says so."""
    store, left = await paged(examined, shape)
    block: Sequence[Span] = [Span(vnode) for vnode in range(VNODES)]
    while any(left.values()):
        together = in_order(shape, [key for keys in left.values() for key in keys])
        page = store.read_page(shape.relation, block, at=Epoch(10), size=PageSize(rows, exact=True))
        assert sum(page.rows.values()) == len(together[:rows])
        assert read_keys(shape, page) == sorted(identity(key) for key in together[:rows])
        if len(together) < rows:
            assert set(page.reached.values()) == {None}
            return
        (upto,) = set(page.reached.values())
        assert upto is not None
        assert identity(key_at(shape, upto)) == identity(together[rows - 1])
        read = {identity(key) for key in together[:rows]}
        left = {vnode: [key for key in keys if identity(key) not in read] for vnode, keys in left.items()}
        block = [Span(span.vnode, page.reached.get(span.vnode, span.after)) for span in block]
    page = store.read_page(shape.relation, block, at=Epoch(10), size=PageSize(rows, exact=True))
    assert (page.rows, set(page.reached.values())) == ({}, {None})


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(SHAPES.index(shape)))
@pytest.mark.parametrize("block_vnodes", [ONE_VNODE, VNODES])
async def test_pages_of_about_a_size_read_every_row_once(examined: Format, shape: KeyShape, block_vnodes: int) -> None:
    store, stored = await paged(examined, shape)
    positions = Positions(RUNS, block_vnodes=block_vnodes)

    def read(block: Sequence[Span], size: PageSize) -> ArrowPage:
        return store.read_page(shape.relation, block, at=Epoch(10), size=size)

    def all_pages() -> Iterator[ArrowPage]:
        yield from pages(positions, read, page_rows=lambda: 5, permits=None, more_time=lambda: True)

    found = [key for page in all_pages() for key in read_keys(shape, page)]
    assert sorted(found) == sorted(identity(key) for keys in stored.values() for key in keys)
    assert positions.completed


# With the service side.


async def test_an_old_generation_writes_nothing(examined: Format) -> None:
    """I7."""
    old = await fill(examined)
    before = shown(old, 99)
    await examined.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
    for _ in range(2):
        # The second time in a session that no fence has ended.
        with pytest.raises(examined.over):
            write(old, 40, (CLOSE, (1, None)), (LIVE, (7, "late")))
    present = examined.store(Generation(6))
    assert shown(present, 99) == before
    assert write(present, 40, (LIVE, (7, "in time"))) == Written(1, 0)


async def test_a_generation_that_ends_amid_a_write_commits_nothing(examined: Format) -> None:
    """I7: what counts is the end of the transaction."""
    old = await fill(examined)
    before, loop = shown(old, 99), asyncio.get_running_loop()

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(TABLE, [(CLOSE, 1, (1, None))])
        yield batch(TABLE, [(LIVE, 3, (7, "late"))])
        fenced = examined.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
        asyncio.run_coroutine_threadsafe(fenced, loop).result()
        yield batch(TABLE, [(LIVE, 0, (8, "later"))])

    with pytest.raises(examined.over):
        await asyncio.to_thread(old.write, TABLE, Epoch(40), rows())
    assert shown(examined.store(Generation(6)), 99) == before


async def test_roll_back_leaves_what_was_committed(examined: Format) -> None:
    """I3: afterwards the epoch can be run again."""
    store = await fill(examined)
    await examined.tables.roll_back([TABLE.id], DATABASE_GRAPH, Epoch(20), term=TERM)
    assert shown(store, 99) == [(1, "b1"), (3, "a3"), (4, "b4")]
    assert changes(store, 20, 99) == ([], [])
    assert write(store, 30, (CLOSE, (4, None)), (LIVE, (5, "again"))) == Written(1, 1)
    assert shown(store, 99) == [(1, "b1"), (3, "a3"), (5, "again")]


async def test_vacuum_keeps_what_a_pin_needs(examined: Format) -> None:
    store = await fill(examined)
    await examined.tables.publish(DATABASE_GRAPH, Epoch(30), term=TERM, created=[TABLE])
    pinned = shown(store, 20)
    async with examined.pins.pin(DATABASE_GRAPH, Epoch(20), holder="a test"):
        assert await examined.tables.vacuum([TABLE.id], DATABASE_GRAPH, Epoch(30), term=TERM) == 2
        assert shown(store, 20) == pinned
    assert await examined.tables.vacuum([TABLE.id], DATABASE_GRAPH, Epoch(30), term=TERM) == 1
    assert shown(store, 30) == [(1, "b1"), (3, "a3"), (5, "c5")]
