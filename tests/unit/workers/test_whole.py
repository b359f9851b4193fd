"""Relations that are read whole: a task holds about so many bytes, whatever a row has."""

from dataclasses import dataclass, field

import pyarrow as pa

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from tests.support.meta_store import relation as table
from workers.backfill.positions import Block, PageSize
from workers.engines.whole import PAGE_BYTES, PAGE_ROWS, PAGE_ROWS_FIRST, whole_rows
from workers.state_store.port import ArrowPage

TABLE = table("t", vnode_count=1)
ROWS = 100_000


@dataclass
class Rows:
    """A store with rows of so many bytes in one vnode."""

    row_bytes: int
    asked: list[int] = field(default_factory=list[int])
    sizes: list[int] = field(default_factory=list[int])
    read: int = 0

    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        assert (relation, len(block), at) == (TABLE, 1, 5)
        rows = min(size.rows, ROWS - self.read)
        self.read += rows
        batch = pa.record_batch({"x": pa.repeat("x" * self.row_bytes, rows)})
        self.asked.append(size.rows)
        self.sizes.append(batch.nbytes)
        return ArrowPage((batch,), {0: rows}, {0: None if self.read == ROWS else ()})


def read(row_bytes: int) -> Rows:
    store = Rows(row_bytes)
    assert sum(one.num_rows for one in whole_rows(store, TABLE, ((0, 0),), at=Epoch(5))) == ROWS
    return store


def test_i8_pages_of_short_rows_are_large() -> None:
    store = read(10)
    assert store.asked[:4] == [PAGE_ROWS_FIRST, 4 * PAGE_ROWS_FIRST, 16 * PAGE_ROWS_FIRST, PAGE_ROWS]


def test_i8_pages_of_long_rows_have_a_limit_in_bytes() -> None:
    """Columns with a default of 250 kB, which take no room in a table, took a task 2.6 GB."""
    store = read(20_000)
    assert max(store.sizes[1:]) <= 1.01 * PAGE_BYTES
