"""The protocol of an engine: it computes a table scan's part of an epoch.

Epoch `(prev, curr]` runs after every upstream fragment has written `curr`. **First** the changes in `(prev, curr]` are
forwarded, if their key is at or before the position stored at prev. **Then** pages after that position are read *as of
curr*, until the slice or the permits are used up. A page row and a change of the same key therefore never meet in one
epoch, and the page that reaches the end misses nothing (I1).

An update has two halves: an old version that is closed and a new one that is inserted. Each is marked by its own key.
An update with only one half inside the prefix therefore becomes a plain insert or delete. Arrangement and NoShuffle
scans differ in their actors and in the number of vnodes that a page reads. Next: `workers.engines.spark`.
"""

from dataclasses import dataclass
from typing import Protocol

from service.protocol.plan import Pushdown, VnodePosition
from service.protocol.relation import Relation
from workers.backfill.actors import FragmentTask
from workers.backfill.positions import BLOCK_VNODES
from workers.backfill.reading import Reading
from workers.connectors.port import SinkWriter
from workers.state_store.port import VersionedStore


class EpochTask(FragmentTask):
    """One fragment's epoch, with the read window of its upstream."""

    reading: Reading


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One fragment in one generation: the values that stay the same in every epoch. They travel in the closures of
    tasks.
    """

    store: VersionedStore
    upstream: Relation
    target: Relation
    actors: int
    pushdown: Pushdown | None = None
    """Set only for a store with a store engine."""
    block_vnodes: int = BLOCK_VNODES
    sink: SinkWriter | None = None
    plain: Pushdown | None = None
    """Set if tasks of Spark copy the columns as they are, where nothing changed."""

    @property
    def writer(self) -> SinkWriter:
        """The receiver of the computed rows: a sink's connector, or the store itself."""
        return self.sink or self.store


@dataclass(frozen=True, slots=True)
class ActorOutcome:
    """The result of one actor. `positions` are those that changed; `page_rows` is the size of its next page; seconds
    count from the task's start.
    """

    actor: int
    positions: tuple[VnodePosition, ...]
    snapshot_rows: int
    page_rows: int
    upstream_rows: int
    inserted: int
    closed: int
    reading_seconds: float
    used_slice: bool


class ScanEngine(Protocol):
    """Computes one fragment's part of its epochs, in one generation."""

    def run(self, task: EpochTask) -> list[ActorOutcome]:
        """Run one epoch. When this returns, every actor's transaction is durable. Raises the errors of the store and of
        Spark.
        """
        ...

    def give_up(self) -> None:
        """Make `run` on another thread fail soon, whatever it waits for. Nothing of it can be written any more (I7)."""
        ...
