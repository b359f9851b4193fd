"""Versioned tables as engines see them. No engine may depend on Postgres, so that a lake format can replace it one day.

A row travels with an operation in the column `OPERATION`: `CLOSE` ends the live version at its key, `LIVE` and `PAGE`
insert a new one. Each actor writes at one epoch, in one transaction, which commits only while the store's generation is
the present one (I7).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from service.protocol.ids import Epoch
from service.protocol.plan import Pushdown
from service.protocol.relation import TRAVEL_PREFIX, Relation
from service.protocol.vnodes import Runs
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize

CONTROL: Final = 0
CLOSE: Final = -1
LIVE: Final = 1
PAGE: Final = 2

OPERATION: Final = f"{TRAVEL_PREFIX}op"
VNODE: Final = "_vnode"


@dataclass(frozen=True, slots=True)
class ArrowPage:
    """Rows of one block in no order: `_vnode`, and the relation's columns in their wire types. See `positions.Page`.

    A page that was copied inside the store has no batches. `copied` is how many of its rows satisfied the query.
    """

    batches: tuple[pa.RecordBatch, ...]
    rows: Mapping[int, int]
    reached: Mapping[int, Position | None]
    copied: int = 0

    @property
    def size_bytes(self) -> int:
        """Memory that the rows take."""
        return sum(batch.nbytes for batch in self.batches)


PageReader = Callable[[Block, PageSize], ArrowPage]
"""Reads a page of a block."""


@dataclass(frozen=True, slots=True)
class Written:
    """How many versions a transaction inserted, and how many it closed."""

    inserted: int
    closed: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many old and new versions of the upstream a copy of changes read, and what it wrote."""

    read: int
    written: Written


class VersionedStore(Protocol):
    """A task's access to the state store. Implementations are small values that travel to the task."""

    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        """Read a page of a block as of epoch `at`."""
        ...

    def copying(
        self, upstream: Relation, target: Relation, query: Pushdown, *, at: Epoch, epoch: Epoch
    ) -> AbstractContextManager[PageReader]:
        """Yield a reader that copies pages as of `at` into the target at `epoch`, inside the store. When the context
        ends, fence and commit all of them in one transaction.
        """
        ...

    def copy_changes(
        self,
        upstream: Relation,
        target: Relation,
        query: Pushdown,
        *,
        after: Epoch,
        upto: Epoch,
        runs: Runs,
        epoch: Epoch,
    ) -> Replayed:
        """Copy the net changes in `(after, upto]` to the target at `epoch`, inside the store. Fence and commit.

        Every change is copied without marking, because these vnodes have no history left to read.
        """
        ...

    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        """Whether any version began or ended in `(after, upto]`: a cheap query."""
        ...

    def read_changes(
        self, relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the net changes in `(after, upto]`: old versions (CLOSE) first, then new ones (LIVE)."""
        ...

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """Write rows at `epoch`, fence and commit. CLOSE rows come first. The first columns are `OPERATION`
        and `_vnode`.
        """
        ...
