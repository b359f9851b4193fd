"""The row that a query cannot transform is found by halves."""

import pyarrow as pa
import pytest

from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from workers.engines.failing_row import joined, shown_key, smallest


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("bad", [{0}, {1}, {999}, {2, 3, 500}])
def test_a_row_that_fails_is_found_in_few_tries(rows: int, bad: set[int]) -> None:
    present = {row % rows for row in bad}
    tries: list[int] = []

    def fails(batch: pa.RecordBatch) -> bool:
        tries.append(batch.num_rows)
        return not present.isdisjoint(batch.column(0).to_pylist())

    found = smallest(pa.record_batch({"id": list(range(rows))}), fails)
    assert found.num_rows == 1
    assert found.column(0)[0].as_py() in present
    assert len(tries) <= 10


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
