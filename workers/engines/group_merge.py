"""Merge the partial groups of an aggregate's history into its groups.

While the history is read, each epoch appends the sums of its pages to a log. A group has rows on most pages, so adding
them to the groups would write most groups again in every epoch. After all history is read, the groups are inserted
vnode by vnode, for as long as the slice of an epoch lasts. This is external hash aggregation with the store as its disk
(Graefe, Query Evaluation Techniques for Large Databases, 1993, section 4.3).

The log and the groups are durable and are rolled back to the same epoch, so a merge that was cut short goes on with the
vnodes that have no group yet (I3). The leader drops the log after the epoch in which the scan finishes is committed.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from service.protocol.ids import Epoch
from workers.backfill.pace import STAGE_AIM
from workers.backfill.stages import BoundStage
from workers.engines.copiers import Copiers
from workers.state_store.port import CopyingStore

VNODES_FIRST: Final = 8


@dataclass
class GroupMerge:
    """The merge of one stage in one generation, by all threads of `copiers`."""

    store: CopyingStore
    bound: BoundStage
    copiers: Copiers
    left: "deque[int] | None" = None
    """The vnodes that are to be merged; None before the store was asked."""
    vnodes: int = field(init=False)
    """How many vnodes to merge by the next statement."""
    _taking: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Begin with few vnodes."""
        self.vnodes = VNODES_FIRST

    @property
    def done(self) -> bool:
        """Whether all groups are there."""
        return self.left is not None and not self.left

    def run(self, epoch: Epoch, *, slice_seconds: float) -> int:
        """Merge until the slice is over, some vnodes in any case. Return how many groups were inserted.

        When this returns, every transaction is durable. Raises the errors of the store.
        """
        until = time.monotonic() + slice_seconds  # noqa: TID251 - the task owns the clock of its slice
        if self.left is None:
            with self.store.staging(self.bound, epoch) as session:
                self.left = deque(session.unmerged())
        if not self.left:
            return 0
        return sum(self.copiers.run([partial(self._merge, epoch, until)] * self.copiers.at_once))

    def _merge(self, epoch: Epoch, until: float) -> int:
        inserted = 0
        with self.store.staging(self.bound, epoch) as session:
            while vnodes := self._taken():
                self.copiers.assure_wanted()
                began = time.monotonic()  # noqa: TID251 - as above
                inserted += session.merge(vnodes)
                now = time.monotonic()  # noqa: TID251 - as above
                # As with pages: about as long as the aim, and at most four times as many as before.
                fitting = int(len(vnodes) * STAGE_AIM.seconds / max(now - began, 1e-6))
                self.vnodes = max(1, min(fitting, 4 * len(vnodes)))
                if now >= until:
                    break
        return inserted

    def _taken(self) -> list[int]:
        """Take the next vnodes."""
        assert self.left is not None
        with self._taking:
            return [self.left.popleft() for _ in range(min(self.vnodes, len(self.left)))]
