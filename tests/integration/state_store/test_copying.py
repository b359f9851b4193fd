"""What is copied inside the store is what would be read: a page with the same rows by vnode and the same end, and the
changes of a span.
"""

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from itertools import pairwise, product

import psycopg
import pytest

from service.protocol.columns import Column, ColumnType
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, RelationId, Term
from service.protocol.relation import Relation, RelationKind
from service.protocol.vnodes import vnodes_of
from tests.support.key_shapes import SHAPES, KeyShape
from tests.support.projections import bound_projection
from tests.support.sampling import sampled
from tests.support.state_store import Store, prepared_store
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize, Positions, pages
from workers.backfill.stages import Advance, BoundStage, Reached, Window
from workers.state_store.port import ArrowPage, PageReader, StageSession
from workers.state_store.postgres import PostgresStore

pytestmark = pytest.mark.postgres

TERM, GENERATION, AT = Term(7), Generation(5), Epoch(20)
VNODES = ((0, 3),)
VALUES = {
    "bigint": "(i % 7) - 3",
    "text": "chr(97 + i % 5) || repeat('''\u00e9', i % 3)",
    "double precision": "(array['NaN', '-Infinity', '-1.5', '0', '2.5', 'Infinity'])[1 + i % 6]::float8",
    "boolean": "i % 2 = 0",
    "bytea": "decode(lpad(to_hex(i % 4), 2, '0'), 'hex')",
}


PREDICATES = (None, "{v} > 2")
RUNS = (((0, 3),), ((0, 0), (2, 3)))


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        await prepared.fences.claim(TERM)
        yield prepared


def view_of(upstream: Relation) -> Relation:
    columns = (Column(name="twice", type=ColumnType.parse("int")), *upstream.columns)
    return Relation(id=RelationId(2), name="v", kind=RelationKind.MATERIALIZED_VIEW, columns=columns, key=upstream.key)


def query_of(upstream: Relation, predicate: str | None) -> BoundStage:
    values = ("{v}", *(f"{{{column.name}}}" for column in upstream.columns))
    return bound_projection(upstream, view_of(upstream), values, predicate)


def plain(predicate: str | None) -> str:
    return "true" if predicate is None else predicate.format(v='"v"')


async def fill(store: Store, upstream: Relation) -> PostgresStore:
    """Sixty rows in four vnodes; of each six one has ended, one begins too late and one is NULL where it may be."""
    await store.tables.create(upstream, term=TERM)
    await store.tables.create(view_of(upstream), term=TERM)
    await store.fences.fence(DATABASE_GRAPH, GENERATION, term=TERM)
    key = [
        f"case when i % 6 = 2 then null else {VALUES[str(column.type)]} end"
        if column.nullable
        else VALUES[str(column.type)]
        for column in upstream.columns[:-2]
    ]
    await store.run(
        # As in production, the key says which vnode it is of: a key is not in two of them.
        f"insert into state.t_1 select abs(hashtext(concat_ws(',', {', '.join(key)}))) % 4, {', '.join(key)}, i, i % 5,"
        " case when i % 6 = 0 then 21 else 1 + i / 6 end, case when i % 6 = 1 then 20 else 9223372036854775807 end"
        " from generate_series(0, 59) i on conflict do nothing"
    )
    # One version of each key is enough, and two alive ones would be none.
    same = " and ".join(f'a."{part.name}" is not distinct from b."{part.name}"' for part in upstream.key)
    await store.run(f"delete from state.t_1 a using state.t_1 b where a._vnode = b._vnode and {same} and a.id > b.id")
    return PostgresStore(store.url, DATABASE_GRAPH, GENERATION)


Told = tuple[Mapping[int, int], Mapping[int, Position | None], int]
"""Of a page: its rows by vnode, where they lead, and how many were copied."""


def whole(read: PageReader, rows: int, *, permits: int | None, turned: bool = False) -> list[Told]:
    """Read all pages, the first of them of a block's latter half only where it is `turned`."""
    told: list[Told] = []

    def reader(block: Block, size: PageSize) -> ArrowPage:
        page = read(block[len(block) // 2 :] if turned and not told else block, size)
        told.append((page.rows, page.reached, page.copied))
        return page

    for _ in pages(Positions(VNODES), reader, page_rows=lambda: rows, permits=permits, more_time=lambda: True):
        pass
    return told


def copied_page(session: StageSession, upstream: Relation, block: Block, size: PageSize) -> ArrowPage:
    return session.read_page(block, size, {upstream.id: AT})


@pytest.mark.parametrize(("shape", "predicate"), sampled(product(SHAPES, PREDICATES)), ids=str)
async def test_a_copied_page_is_the_page_that_is_read(store: Store, shape: KeyShape, predicate: str | None) -> None:
    """Whatever the order of the key, where a page ends, and where the vnodes of its block stand."""
    upstream = shape.relation
    worker = await fill(store, upstream)

    def page(block: Block, size: PageSize) -> ArrowPage:
        return worker.read_page(upstream, block, at=AT, size=size)

    names = ", ".join(f'"{column.name}"' for column in upstream.columns)
    kept = f"select _vnode, v, {names} from state.t_1 where _from <= 20 and _to > 20 and {plain(predicate)}"
    stored = f"select _vnode, twice, {names} from state.t_2 where _from = 20 and _to = 9223372036854775807"
    for rows, permits, turned in product((1, 4, 8, 1000), (None, 10_000), (False, True)):
        await store.run("truncate state.t_2")
        read = whole(page, rows, permits=permits, turned=turned)
        with worker.staging(query_of(upstream, predicate), AT) as session:
            copied = whole(partial(copied_page, session, upstream), rows, permits=permits, turned=turned)
        assert [page[:2] for page in copied] == [page[:2] for page in read]
        assert sum(count for _, _, count in copied) == len(await store.rows(kept)) > 0
        assert await store.rows(f"({kept}) except all ({stored})") == []
        assert await store.rows(f"({stored}) except all ({kept})") == []


@pytest.mark.parametrize(("shape", "predicate", "runs"), sampled(product(SHAPES, PREDICATES, RUNS)), ids=str)
async def test_changes_carried_over_leave_what_the_query_gives(
    store: Store, shape: KeyShape, predicate: str | None, runs: tuple[tuple[int, int], ...]
) -> None:
    """Of the vnodes that were read, and of no other; each version is ended or made once (I1, I3)."""
    upstream = shape.relation
    worker = await fill(store, upstream)
    names = ", ".join(f'"{column.name}"' for column in upstream.columns)
    changed = ", ".join("(v + 1) % 5" if column.name == "v" else f'"{column.name}"' for column in upstream.columns)
    # A third of the rows changes at 12, into the query's condition and out of it.
    ended = "update state.t_1 set _to = 12 where _from < 12 and _to > 12 and id % 3 = 0 returning *"
    again = f"insert into state.t_1 (_vnode, {names}, _from) select _vnode, {changed}, 12 from ended"
    await store.run(f"with ended as ({ended}) {again}")
    mine = " or ".join(f"_vnode between {first} and {last}" for first, last in runs)
    for after, upto in pairwise((0, 5, 9, 11, 15, 20, 21, 30)):
        bound, window = query_of(upstream, predicate), Window(Epoch(after), Epoch(upto))
        reached = Reached(frozenset(vnodes_of(runs)), {})
        advances = {bound.stage.driver.alias: Advance(reached, reached)}
        with worker.staging(bound, Epoch(upto)) as session:
            done = session.copy_changes({upstream.id: window}, {upstream.id}, advances)
        alive = f"_from <= {upto} and _to > {upto}"
        kept = f"select _vnode, v, {names} from state.t_1 where {alive} and ({mine}) and {plain(predicate)}"
        stored = f"select _vnode, twice, {names} from state.t_2 where {alive}"
        assert await store.rows(f"({kept}) except all ({stored})") == []
        assert await store.rows(f"({stored}) except all ({kept})") == []
        ends = [f"select from state.t_2 where _from = {upto}", f"select from state.t_2 where _to = {upto}"]
        assert [done.written.inserted, done.written.closed] == [len(await store.rows(end)) for end in ends]
        touched = (
            f"_to > {after} and _to <= {upto} and _from <= {after}",
            f"_from > {after} and _from <= {upto} and _to > {upto}",
        )
        spans = [f"select from state.t_1 where ({mine}) and {span}" for span in touched]
        assert done.read == sum([len(await store.rows(span)) for span in spans])


async def test_an_old_generation_copies_nothing(store: Store) -> None:
    """I7."""
    upstream = SHAPES[0].relation
    worker = await fill(store, upstream)
    query, window = query_of(upstream, None), {upstream.id: Window(Epoch(0), AT)}

    def copy() -> None:
        with worker.staging(query, AT) as session:
            whole(partial(copied_page, session, upstream), 5, permits=None)

    def follow() -> None:
        with worker.staging(query, AT) as session:
            session.copy_changes(window, {upstream.id})

    await store.fences.fence(DATABASE_GRAPH, Generation(6), term=TERM)
    over = "generation 5 of graph 1 is over"
    for write in (copy, follow):
        with pytest.raises(psycopg.Error, match=over):
            write()
    assert await store.rows("select from state.t_2") == []


@pytest.mark.parametrize(
    ("after", "upto", "changed"),
    [
        (0, 1, True),
        (11, 18, False),
        (10, 11, False),
        (18, 19, False),
        (19, 20, True),
        (20, 21, True),
        (21, 99, False),
    ],
)
async def test_whether_anything_changed_is_asked_of_both_ends_of_versions(
    store: Store, after: int, upto: int, *, changed: bool
) -> None:
    """Versions began in 1 to 10 and at 21, and ended at 20."""
    upstream = SHAPES[0].relation
    worker = await fill(store, upstream)
    await store.run("delete from state.t_1 where _from > 10 and _from < 21")
    assert worker.changed(upstream, after=Epoch(after), upto=Epoch(upto)) is changed
