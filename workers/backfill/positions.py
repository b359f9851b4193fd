"""Positions of one actor's vnodes, and the pages that move them. Pure; storage comes in as a function.

Per vnode: not started (no entry), in progress at a key, or completed. Pages follow storage order `(vnode, key)`; a
page shorter than its limit has met the end, so every vnode of its span is completed in the epoch that read it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from service.protocol.ids import Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.vnodes import Runs, vnodes_of
from workers.backfill.order import Position


@dataclass(frozen=True, slots=True)
class Span:
    """What a page reads, in storage order: the rest of one vnode after `after`, or fresh vnodes `first..last`."""

    first: int
    last: int
    after: Position | None = None

    def __post_init__(self) -> None:
        assert self.first <= self.last, self
        assert self.after is None or self.first == self.last, self


class Page(Protocol):
    """What a read gave: rows by vnode, and where it ended (None where it is empty)."""

    @property
    def rows(self) -> Mapping[int, int]: ...
    @property
    def end(self) -> tuple[int, Position] | None: ...


P = TypeVar("P", bound=Page)


@dataclass
class Positions:
    """The positions of one actor. Invariant: every vnode is of `runs`; `rows` of a vnode never decreases."""

    runs: Runs
    by_vnode: dict[int, VnodePosition] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """Upstream rows read so far, over all vnodes."""
        return sum(position.rows for position in self.by_vnode.values())

    @property
    def completed(self) -> bool:
        """Whether every vnode is."""
        done = sum(position.state is PositionState.COMPLETED for position in self.by_vnode.values())
        return done == sum(last - first + 1 for first, last in self.runs)

    def next_span(self) -> Span | None:
        """Return what to read next: the first vnode in storage order that is not completed, with its fresh
        neighbours.
        """
        for first, last in self.runs:
            for vnode in range(first, last + 1):
                position = self.by_vnode.get(vnode)
                if position is None:
                    return Span(vnode, self._last_fresh(vnode, last))
                if position.state is PositionState.IN_PROGRESS:
                    return Span(vnode, vnode, position.key)
        return None

    def record(self, span: Span, page: Page, *, limit: int) -> None:
        """Move the positions over a page that was read with `limit`."""
        total = sum(page.rows.values())
        assert total <= limit, (total, limit)
        if total < limit or page.end is None:
            for vnode in range(span.first, span.last + 1):
                self._complete(vnode, page.rows.get(vnode, 0))
            return
        end_vnode, key = page.end
        for vnode in range(span.first, end_vnode):
            self._complete(vnode, page.rows.get(vnode, 0))
        rows = self._rows(end_vnode) + page.rows[end_vnode]
        self._set(VnodePosition(vnode=Vnode(end_vnode), state=PositionState.IN_PROGRESS, key=key, rows=rows))

    def take_changed(self) -> tuple[VnodePosition, ...]:
        """Return the positions that changed since the last call, by vnode."""
        changed = tuple(self.by_vnode[vnode] for vnode in sorted(self.changed))
        self.changed.clear()
        return changed

    def _last_fresh(self, vnode: int, last: int) -> int:
        while vnode < last and vnode + 1 not in self.by_vnode:
            vnode += 1
        return vnode

    def _rows(self, vnode: int) -> int:
        position = self.by_vnode.get(vnode)
        return 0 if position is None else position.rows

    def _complete(self, vnode: int, rows: int) -> None:
        self._set(VnodePosition(vnode=Vnode(vnode), state=PositionState.COMPLETED, rows=self._rows(vnode) + rows))

    def _set(self, position: VnodePosition) -> None:
        assert position.rows >= self._rows(position.vnode)
        self.by_vnode[position.vnode] = position
        self.changed.add(position.vnode)


def pages(
    positions: Positions,
    read: Callable[[Span, int], P],
    *,
    page_rows: int,
    permits: int | None,
    more_time: Callable[[], bool],
) -> Iterator[P]:
    """Read pages and move `positions` over them until history ends, the permits are used up, or the time is over.

    `permits` is how many rows may be read (None: any number). At least one page is read where one permit is left,
    however little time there is: otherwise a busy upstream could starve history for ever.
    """
    left = permits
    while (span := positions.next_span()) is not None:
        limit = page_rows if left is None else min(page_rows, left)
        if limit <= 0:
            return
        page = read(span, limit)
        positions.record(span, page, limit=limit)
        if left is not None:
            left -= sum(page.rows.values())
        yield page
        if not more_time():
            return


def not_started(runs: Runs) -> Positions:
    """Return the positions of an actor before its first page."""
    assert vnodes_of(runs)
    return Positions(runs)
