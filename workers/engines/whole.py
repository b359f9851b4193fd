"""Read a relation whole at an epoch, by tasks over some vnodes each."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from service.protocol.vnodes import Runs
from workers.backfill.positions import Positions, pages
from workers.state_store.port import Pages

PAGE_ROWS: Final = 20_000
PAGE_ROWS_FIRST: Final = 500
"""The first page tells how many bytes a row takes."""
PAGE_BYTES: Final = 32 << 20
"""About how many bytes a page has, so that a task holds no more of rows with long values (I8)."""


def blocks_of(vnode_count: int, tasks: int) -> tuple[Runs, ...]:
    """Return the vnodes of each task: as many as there are tasks, but no more than vnodes."""
    parts = min(vnode_count, tasks)
    return tuple(((vnode_count * i // parts, vnode_count * (i + 1) // parts - 1),) for i in range(parts))


def whole_rows(store: Pages, relation: Relation, runs: Runs, *, at: Epoch) -> Iterator[pa.RecordBatch]:
    """Yield all rows of some vnodes as of an epoch, in their wire types."""
    wanted = PAGE_ROWS_FIRST
    read = pages(
        Positions(runs),
        lambda vnodes, size: store.read_page(relation, vnodes, at=at, size=size),
        page_rows=lambda: wanted,
        permits=None,
        more_time=lambda: True,
    )
    for page in read:
        rows, size = sum(one.num_rows for one in page.batches), sum(one.nbytes for one in page.batches)
        wanted = max(1, min(PAGE_ROWS, wanted * 4, PAGE_BYTES * rows // size if size else PAGE_ROWS))
        yield from page.batches
