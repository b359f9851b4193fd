"""The row that a query cannot transform is found by halves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from service.protocol.table_format import Capabilities
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from tests.support.projections import bound_projection
from tests.support.state_store import relation
from workers.backfill.actors import ActorTask
from workers.backfill.positions import Block
from workers.backfill.stages import Window
from workers.engines import failing_row
from workers.engines.failing_row import find_failing_row, joined, shown_key, smallest
from workers.engines.port import ScanTask, StageTask
from workers.state_store.port import CLOSE, LIVE, VNODE, ArrowPage
from workers.state_store.wire import read_schema

UPSTREAM = relation(1, "t", {"id": "integer", "v": "integer"})


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("bad", [{0}, {1}, {999}, {2, 3, 500}])
def test_a_row_that_fails_is_found_in_few_tries(rows: int, bad: set[int]) -> None:
    present = {row % rows for row in bad}
    tries: list[int] = []

    def fails(first: int, count: int) -> bool:
        tries.append(count)
        return not present.isdisjoint(range(first, first + count))

    assert smallest(rows, fails) in present
    assert len(tries) <= 10


@dataclass(frozen=True)
class Changed:
    """A store in which some rows changed."""

    batches: tuple[tuple[int, pa.RecordBatch], ...]
    capabilities = Capabilities()

    def read_changes(self, *_: object, **_more: object) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from self.batches


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({CLOSE: [5], LIVE: [5]}, "(id) = (5)"),
        ({LIVE: [5]}, "(id) = (5)"),
        ({CLOSE: [5], LIVE: [6]}, "(id) = (6)"),
        ({LIVE: [5, 6]}, None),
    ],
)
def test_n7a_the_only_new_row_is_named_without_a_try(rows: dict[int, list[int]], found: str | None) -> None:
    """I13: everybody waits for the search. Without Spark, a try fails."""
    schema = read_schema(UPSTREAM)
    batches = tuple(
        (operation, pa.RecordBatch.from_pylist([{VNODE: 0, "id": key} for key in keys], schema=schema))
        for operation, keys in rows.items()
    )
    actor = ActorTask(runs=((0, UPSTREAM.vnode_count - 1),), positions=(), permits=0)
    task = StageTask(
        curr=Epoch(9),
        windows={UPSTREAM.id: Window(Epoch(8), Epoch(9))},
        changed=frozenset({UPSTREAM.id}),
        at={UPSTREAM.id: Epoch(9)},
        actors=(actor,),
        page_rows=10,
    )
    scan = ScanTask(cast("Any", Changed(batches)), bound_projection(UPSTREAM, UPSTREAM, ("{id}", "{v}")), UPSTREAM)
    assert find_failing_row(cast("Any", None), scan, task, 10.0) == found


@dataclass(frozen=True)
class Stored:
    """A store with a row in each of the first vnodes."""

    rows: int
    capabilities = Capabilities()

    def read_page(self, upstream: Relation, block: Block, *_: object, **_more: object) -> ArrowPage:
        (span,) = block
        there = [{VNODE: span.vnode, "id": span.vnode, "v": 1}] if span.vnode < self.rows else []
        batch = pa.RecordBatch.from_pylist(there, schema=read_schema(upstream))
        return ArrowPage((batch,), {span.vnode: len(there)}, {span.vnode: None})


def test_the_search_goes_on_behind_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store had read all rows in its slice, and Spark's reader takes longer."""

    def tries(*_: object) -> Callable[[int, int], bool]:
        def fails(first: int, count: int) -> bool:
            return first <= 2 < first + count

        return fails

    monkeypatch.setattr(failing_row, "_tries", tries)
    actor = ActorTask(runs=((0, UPSTREAM.vnode_count - 1),), positions=(), permits=None)
    task = StageTask(
        curr=Epoch(9), windows={}, changed=frozenset(), at={UPSTREAM.id: Epoch(9)}, actors=(actor,), page_rows=1
    )
    assert task.slice_seconds == 0
    scan = ScanTask(cast("Any", Stored(4)), bound_projection(UPSTREAM, UPSTREAM, ("{id}", "{v}")), UPSTREAM)
    assert find_failing_row(cast("Any", None), scan, task, 10.0) == "(id) = (2)"


@pytest.mark.parametrize(("sizes", "tried"), [([], 0), ([0, 0], 0), ([1] * 100, 1), ([9_999, 1, 20_000, 5], 3)])
def test_small_batches_are_tried_together(sizes: list[int], tried: int) -> None:
    """Each attempt is a job of Spark."""
    batches = [pa.record_batch({"id": list(range(size))}) for size in sizes]
    found = list(joined(iter(batches)))
    assert len(found) == tried
    assert [row for one in found for row in one["id"].to_pylist()] == [row for size in sizes for row in range(size)]


def test_a_key_is_shown_as_postgres_shows_it() -> None:
    statement = parse("create table t (a text, b boolean, v int, primary key (b desc, a))")
    assert isinstance(statement, CreateTable)
    row = pa.record_batch({"a": ["x"], "b": [True], "v": [1]})
    assert shown_key(table_relation(statement), row) == "(b, a) = (true, x)"
