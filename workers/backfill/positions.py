"""Positions of one actor's vnodes, and the pages that advance them. Pure: storage comes in as a function.

A vnode is not started (it has no entry), in progress at a key, or completed. A page is a *range of keys*, the same in
all vnodes of one *block*: everything after their positions up to one key, which becomes their position. Pages need no
sorting and no cut, so the store may read rows in physical order. Where rows lie in key order, as in most tables, a page
is one contiguous part of the table, read once per block.

The store finds the page's upper key first. Keys are hash-distributed over the vnodes, so one vnode's keys predict where
a page of about the wanted rows ends. A few vnodes confirm that the rest of the block fits in a page. With a rate limit,
the store follows the index through all vnodes of the block, so that the page has exactly the wanted rows.

With blocks of one vnode an actor's whole position is one pair (vnode, key): in storage order, earlier vnodes are
completed and later ones not started.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from service.protocol.ids import Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.vnodes import Runs, vnodes_of
from workers.backfill.order import Position

BLOCK_VNODES: Final = 32
"""Adjacent vnodes that are read together. A larger block reads the table fewer times. A smaller one leaves fewer
positions to store in an epoch.
"""
SAMPLED: Final = 4
"""When this many vnodes have less left than their share of a page, the whole block is taken to have less than a page.
"""
ONE_VNODE: Final = 1
"""The block size of an actor with a single position."""


@dataclass(frozen=True, slots=True)
class Span:
    """The remaining key range of one vnode: the rows after a key, or from the start. `rows` were read before."""

    vnode: int
    after: Position | None = None
    rows: int = 0


Block = Sequence[Span]
"""The vnodes that a page may read, in storage order."""


@dataclass(frozen=True, slots=True)
class PageSize:
    """The wanted rows of a page. With `exact` no page has more, and only the last one has fewer; otherwise about as
    many.
    """

    rows: int
    exact: bool


class Page(Protocol):
    """The result of a read: the rows of each vnode, and the key up to which each was read (None: to its end).

    A vnode whose position is already past the page's end is not included. At least one vnode is.
    """

    @property
    def rows(self) -> Mapping[int, int]: ...
    @property
    def reached(self) -> Mapping[int, Position | None]: ...


def alike(block: Block) -> Mapping[Position | None, Block]:
    """Group a block's spans by their position."""
    standing: dict[Position | None, list[Span]] = {}
    for span in block:
        standing.setdefault(span.after, []).append(span)
    return standing


def samples(block: Block) -> Iterator[Block]:
    """Yield vnodes to sample for estimating a page's upper key: first one, then up to `SAMPLED`.

    The vnodes that are furthest behind are taken, so that pages advance all vnodes evenly. Of these, the ones with the
    most rows so far come first, because a vnode with few keys estimates poorly. The next sample is tried when the last
    had too few keys left. When the last sample has too few as well, the whole block has less than a page left.
    """
    behind = min(
        alike(block).values(), key=lambda spans: (spans[0].after is not None, sum(s.rows for s in spans) / len(spans))
    )
    telling = sorted(behind, key=lambda span: span.rows, reverse=True)
    for count in sorted({1, min(len(telling), SAMPLED)}):
        yield telling[:count]


def share_of_page(page_rows: int, some: Block, block: Block) -> int:
    """Return how many rows of `some` belong to a page of `block`; at least 1."""
    return max(page_rows * len(some) // len(block), 1)


P = TypeVar("P", bound=Page)


@dataclass
class Positions:
    """The positions of one actor, which `put` replaces. Invariant: every vnode belongs to `runs`; the `rows` of a vnode
    never decrease.
    """

    runs: Runs
    by_vnode: dict[int, VnodePosition] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    block_vnodes: int = BLOCK_VNODES
    _done: int = field(init=False)
    """How many vnodes are completed: asked for more often than there are actors, each of which has many vnodes."""

    def __post_init__(self) -> None:
        self._done = sum(position.state is PositionState.COMPLETED for position in self.by_vnode.values())

    @property
    def rows(self) -> int:
        """Upstream rows read so far, over all vnodes."""
        return sum(position.rows for position in self.by_vnode.values())

    @property
    def completed(self) -> bool:
        """Whether every vnode is completed."""
        return self._done == sum(last - first + 1 for first, last in self.runs)

    def next_block(self) -> Block:
        """Return the first block with vnodes that are not completed, and of it those vnodes; empty when all history is
        read.
        """
        block: list[Span] = []
        for vnode in vnodes_of(self.runs):
            if block and vnode // self.block_vnodes != block[0].vnode // self.block_vnodes:
                break
            position = self.by_vnode.get(vnode)
            if position is None:
                block.append(Span(vnode))
            elif position.state is PositionState.IN_PROGRESS:
                block.append(Span(vnode, position.key, position.rows))
        return block

    def record(self, block: Block, page: Page) -> None:
        """Advance the positions over a page that was read from `block`."""
        reached = page.reached
        assert reached, "a page that leads nowhere"
        assert page.rows.keys() <= reached.keys() <= {span.vnode for span in block}, (block, page.rows, reached)
        for vnode, key in reached.items():
            state = PositionState.COMPLETED if key is None else PositionState.IN_PROGRESS
            rows = self._rows(vnode) + page.rows.get(vnode, 0)
            self._set(VnodePosition(vnode=Vnode(vnode), state=state, key=key, rows=rows))

    def put(self, position: VnodePosition) -> None:
        """Replace the position of a vnode by one that is recorded already."""
        before = self.by_vnode.get(position.vnode)
        was = before is not None and before.state is PositionState.COMPLETED
        self._done += (position.state is PositionState.COMPLETED) - was
        self.by_vnode[position.vnode] = position

    def take_changed(self) -> tuple[VnodePosition, ...]:
        """Return the positions that changed since the last call, by vnode."""
        changed = tuple(self.by_vnode[vnode] for vnode in sorted(self.changed))
        self.changed.clear()
        return changed

    def _rows(self, vnode: int) -> int:
        position = self.by_vnode.get(vnode)
        return 0 if position is None else position.rows

    def _set(self, position: VnodePosition) -> None:
        assert position.rows >= self._rows(position.vnode)
        self.put(position)
        self.changed.add(position.vnode)


def redistributed(held: Sequence[Positions], owned: Sequence[Runs]) -> list[Positions]:
    """Assign the vnodes of some actors to others. Each vnode keeps its position and its row count (I11).

    Invariant: the set of vnodes stays the same, and each has one owner.
    """
    before = sorted(vnode for positions in held for vnode in vnodes_of(positions.runs))
    after = sorted(vnode for runs in owned for vnode in vnodes_of(runs))
    assert before == after, "a rescale loses vnodes, or makes them"
    assert len(after) == len(set(after)), "a vnode with two owners"
    by_vnode = {vnode: position for positions in held for vnode, position in positions.by_vnode.items()}
    changed = {vnode for positions in held for vnode in positions.changed}
    return [
        Positions(
            runs,
            {vnode: by_vnode[vnode] for vnode in vnodes_of(runs) if vnode in by_vnode},
            changed.intersection(vnodes_of(runs)),
            held[0].block_vnodes,
        )
        for runs in owned
    ]


def pages(
    positions: Positions,
    read: Callable[[Block, PageSize], P],
    *,
    page_rows: Callable[[], int],
    permits: int | None,
    more_time: Callable[[], bool],
) -> Iterator[P]:
    """Read pages and advance `positions` over them until history ends, the permits are used up, or the time is over.

    `page_rows` gives the size of the next page, and `permits` how many rows may be read (None: unlimited). While there
    are permits, rows for more than half a page are read even without time. Otherwise a busy upstream could starve
    history for ever, and a tiny one would need an epoch for each of its blocks.
    """
    left, done = permits, 0
    while block := positions.next_block():
        wanted = page_rows()
        allowed = wanted if left is None else min(wanted, left)
        if allowed <= 0:
            return
        page = read(block, PageSize(allowed, exact=left is not None))
        positions.record(block, page)
        rows = sum(page.rows.values())
        assert left is None or rows <= allowed, (rows, allowed)
        done += rows
        left = None if left is None else left - rows
        yield page
        if done > wanted // 2 and not more_time():
            return
