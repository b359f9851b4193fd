"""What a table scan needs of an engine: to compute its part of an epoch.

In epoch `(prev, curr]`, once every upstream fragment has written `curr`: **first** the changes in `(prev, curr]` are
forwarded where their key is at or before the position stored at prev; **then** pages after that position are read *at
curr* until the slice or the permits are used up. A page row and a change of one key never meet in an epoch, and a
page that reaches the end loses nothing (I1). An update is two halves, an old version that is closed and a new one
that is inserted, each marked by its own key, so a half-visible update becomes a plain insert or delete. Arrangement and
NoShuffle differ in who the actors are and in how many vnodes a page of theirs reads. Next: `workers.engines.spark`.
"""

from dataclasses import dataclass
from typing import Protocol

from service.protocol.plan import Pushdown, VnodePosition
from service.protocol.relation import Relation
from workers.backfill.actors import FragmentTask
from workers.backfill.positions import BLOCK_VNODES
from workers.backfill.reading import Reading
from workers.state_store.port import VersionedStore


class EpochTask(FragmentTask):
    """One fragment's epoch, and what it reads of its upstream."""

    reading: Reading


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One fragment in one generation: what is the same in every epoch, and travels in the tasks' closures."""

    store: VersionedStore
    upstream: Relation
    target: Relation
    actors: int
    pushdown: Pushdown | None = None
    block_vnodes: int = BLOCK_VNODES


@dataclass(frozen=True, slots=True)
class ActorOutcome:
    """What one actor did. `positions` are those that changed, `page_rows` is how large its next page may be; seconds
    are from the task's start.
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
        """Run one epoch; when it returns, every actor's transaction is durable. Raises what the store or Spark does."""
        ...

    def give_up(self) -> None:
        """Have `run` on another thread fail soon, whatever it waits for: nothing of it can be written any more (I7)."""
        ...
