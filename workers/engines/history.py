"""Read history for one actor in one epoch: pages until its slice or its permits are used up.

Next: `workers.backfill.positions`, which chooses the pages, then `workers.state_store.postgres`, which reads them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from service.protocol.plan import VnodePosition
from workers.backfill.actors import FragmentTask
from workers.backfill.pace import ROWS_AIM, PageAim, page_rows_after
from workers.backfill.positions import Block, PageSize, Positions, pages
from workers.engines.port import ActorOutcome, ScanTask, StageTask
from workers.state_store.port import ArrowPage, PageReader


@dataclass
class ActorHistory:
    """Reads one actor's pages until its slice or its permits are used up. `open_pages` opens their reader."""

    task: FragmentTask
    index: int
    open_pages: Callable[[Positions], AbstractContextManager[PageReader]]
    block_vnodes: int
    aim: PageAim = ROWS_AIM
    began: float = field(default_factory=time.monotonic)  # noqa: TID251 - the task owns the clock of its slice
    snapshot_rows: int = 0
    copied: int = 0

    @classmethod
    def of(cls, scan: ScanTask, task: StageTask, index: int) -> "ActorHistory":
        """Return the history of an actor that a task of Spark reads."""
        at = task.at[scan.driver.id]

        def read(block: Block, size: PageSize) -> ArrowPage:
            return scan.store.read_page(scan.driver, block, at=at, size=size)

        return cls(task, index, lambda _: nullcontext(read), scan.page_vnodes)

    def __post_init__(self) -> None:
        actor = self.task.actors[self.index]
        self.page_rows = self.task.page_rows
        self.positions = Positions(
            actor.runs,
            {position.vnode: position for position in actor.positions},
            block_vnodes=self.block_vnodes,
        )

    def pages(self) -> Iterator[ArrowPage]:
        """Yield the pages. Rows that were copied inside the store are durable when the iteration ends."""
        permits = self.task.actors[self.index].permits
        with self.open_pages(self.positions) as read_page:
            sized = _SizedPages(read_page, self.page_rows, self.aim)
            for page in pages(
                self.positions, sized.read, page_rows=sized.next_rows, permits=permits, more_time=lambda: self.more_time
            ):
                self.snapshot_rows += sum(page.rows.values())
                self.copied += page.copied
                self.page_rows = sized.page_rows
                yield page

    def report(self) -> dict[str, Any]:
        """Return the reader's part of the actor's outcome, as JSON values."""
        return {
            "actor": self.index,
            "positions": [position.model_dump(mode="json") for position in self.positions.take_changed()],
            "snapshot_rows": self.snapshot_rows,
            "page_rows": self.page_rows,
            "reading_seconds": self._seconds(),
            "used_slice": not self.more_time,
        }

    def _seconds(self) -> float:
        return time.monotonic() - self.began  # noqa: TID251 - as above

    @property
    def more_time(self) -> bool:
        """Whether the slice lasts."""
        return self._seconds() < self.task.slice_seconds

    @property
    def over(self) -> bool:
        """Whether there is nothing to read now."""
        return self.task.actors[self.index].permits == 0 or not self.positions.next_block()


@dataclass
class _SizedPages:
    """Reads pages, and derives the next page size from each."""

    page_reader: PageReader
    page_rows: int
    aim: PageAim

    def next_rows(self) -> int:
        return self.page_rows

    def read(self, block: Block, size: PageSize) -> ArrowPage:
        began = time.monotonic()  # noqa: TID251 - the task owns the clock of its slice
        page = self.page_reader(block, size)
        seconds = time.monotonic() - began  # noqa: TID251 - as above
        rows = sum(page.rows.values())
        self.page_rows = page_rows_after(
            self.page_rows, rows=rows, size_bytes=page.size_bytes, seconds=seconds, aim=self.aim
        )
        return page


def outcome_of(values: dict[str, Any]) -> ActorOutcome:
    """Return an outcome from its JSON values."""
    positions = tuple(VnodePosition.model_validate(position) for position in values.pop("positions"))
    return ActorOutcome(positions=positions, **values)
