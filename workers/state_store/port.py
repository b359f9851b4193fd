"""Versioned tables as an executor sees them. No executor may know that it talks to Postgres: a lake format stands
here one day.

A row travels with an operation in the column `OPERATION`: `CLOSE` ends the version alive at its key, `LIVE` and `PAGE`
bring a new one. Everything is written at one epoch, in one transaction per actor, and counts only while the store's
generation is the present one (I7).
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
    """Rows of one block in no order: `_vnode` and the relation's columns as they travel; see `positions.Page`.

    A page that was copied inside the store has no batches; `copied` is how many of its rows satisfied the query.
    """

    batches: tuple[pa.RecordBatch, ...]
    rows: Mapping[int, int]
    reached: Mapping[int, Position | None]
    copied: int = 0

    @property
    def size_bytes(self) -> int:
        """What the rows take in memory."""
        return sum(batch.nbytes for batch in self.batches)


PageReader = Callable[[Block, PageSize], ArrowPage]
"""Takes a page of a block."""


@dataclass(frozen=True, slots=True)
class Written:
    """How many versions a transaction brought and how many it closed."""

    inserted: int
    closed: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many old and new versions of the upstream a copy of changes met, and what it wrote."""

    read: int
    written: Written


class VersionedStore(Protocol):
    """What a task needs of the state store. Implementations are small values that travel to the task."""

    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        """Read a page of a block as of epoch `at`."""
        ...

    def copying(
        self, upstream: Relation, target: Relation, query: Pushdown, *, at: Epoch, epoch: Epoch
    ) -> AbstractContextManager[PageReader]:
        """Give a reader that copies pages, as of epoch `at`, into the target at `epoch`, inside the store; when it
        ends, fence and commit them all in one transaction.
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
        """Carry the net changes in `(after, upto]` over to the target at `epoch`, inside the store; fence and commit.

        Whatever changed counts: of these vnodes no history is left to read.
        """
        ...

    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        """Whether any version began or ended in `(after, upto]`: a cheap look."""
        ...

    def read_changes(
        self, relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Give the net changes in `(after, upto]`: first old versions (CLOSE), then new ones (LIVE)."""
        ...

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """Write rows, `OPERATION` and `_vnode` first (CLOSE rows before the others) at `epoch`, fence, and commit."""
        ...
