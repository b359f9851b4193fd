"""The protocol of an engine: it computes a stage's part of an epoch.

Epoch `(prev, curr]` runs after every upstream fragment has written `curr`. **First** the changes in `(prev, curr]` are
forwarded, if their key is at or before the position stored at prev. **Then** pages after that position are read *as of
curr*, until the slice or the permits are used up. A page row and a change of the same key therefore never meet in one
epoch, and the page that reaches the end misses nothing (I1).

An update has two halves: an old version that is closed and a new one that is inserted. Each is marked by its own key.
An update with only one half inside the prefix therefore becomes a plain insert or delete. Arrangement and NoShuffle
scans differ in their actors and in the number of vnodes that a page reads. Next: `workers.engines.spark`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.protocol.ids import EpochField, RelationId
from service.protocol.plan import VnodePosition
from service.protocol.relation import Relation
from workers.backfill.actors import FragmentTask
from workers.backfill.positions import BLOCK_VNODES, ONE_VNODE
from workers.backfill.stages import BoundStage, Window
from workers.connectors.port import SinkWriter
from workers.state_store.port import VersionedStore


class StageTask(FragmentTask):
    """A stage's epoch.

    `windows` are the changes of its inputs, and `changed` those inputs that have any. History is read `at` an epoch of
    each input.
    """

    windows: dict[RelationId, Window]
    changed: frozenset[RelationId]
    at: dict[RelationId, EpochField]

    @property
    def reads(self) -> bool:
        """Whether an actor may read history."""
        return any(actor.permits != 0 for actor in self.actors)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A stage in one generation, as Spark's tasks read it: the values that travel in their closures."""

    store: VersionedStore
    bound: BoundStage
    driver: Relation
    """The driver with the columns that are read."""
    block_vnodes: int = BLOCK_VNODES
    sink: SinkWriter | None = None

    @property
    def writer(self) -> SinkWriter:
        """The receiver of the computed rows: a sink's connector, or the store itself."""
        return self.sink or self.store

    @property
    def page_vnodes(self) -> int:
        """How many vnodes a page reads at most."""
        return self.block_vnodes if self.store.capabilities.index_bounds else ONE_VNODE


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


class TaskEngine(Protocol):
    """Computes a scan's part of an epoch. When `run` returns, every actor's transaction is durable."""

    def run(self, task: StageTask) -> Sequence[ActorOutcome]:
        """Run one epoch. Raises the errors of the store and of Spark."""
        ...
