"""Positions of one actor's vnodes, and the pages that move them. Pure; storage comes in as a function.

Per vnode: not started (no entry), in progress at a key, or completed. A page is a *range of keys*, the same in all
vnodes of one *block*: everything after their positions and up to a key, which becomes their position. Nothing of it
has to be sorted or cut off, so that the store may read it in the order in which it lies, and where rows lie in the
order of their key, as most do, a page is a part of the table read from end to end, once per block. Where the page ends
is asked of the store first: keys are spread over the vnodes by their hash, so that the keys of one vnode say where a
page of about so many rows ends, and those of a few whether the rest is a page; where permits are counted, all of them
are asked.

With blocks of one vnode the positions of an actor are *one* position, the pair (vnode, key) in storage order: what
comes before that vnode is completed, and what comes after it has not started.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from service.protocol.ids import Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.vnodes import Runs, vnodes_of
from workers.backfill.order import Position

BLOCK_VNODES: Final = 32
"""How many neighbours are read side by side. More would read the table fewer times over; fewer leave fewer positions
to be stored in an epoch.
"""
SAMPLED: Final = 4
"""So many vnodes that have less left than their share of a page say that the whole block has."""
ONE_VNODE: Final = 1
"""The block of an actor with one position."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is left of one vnode: the rows after a key, or from its start; `rows` were read before."""

    vnode: int
    after: Position | None = None
    rows: int = 0


Block = Sequence[Span]
"""What a page may read of: vnodes in storage order."""


@dataclass(frozen=True, slots=True)
class PageSize:
    """How many rows a page shall have: `exact` not one more (and fewer only at the end), otherwise about so many."""

    rows: int
    exact: bool


class Page(Protocol):
    """What a read gave: the vnodes it read of, each with the key up to which it did (None: to its end), and their rows.

    A vnode whose position is already past the page's end is not among them; at least one always is.
    """

    @property
    def rows(self) -> Mapping[int, int]: ...
    @property
    def reached(self) -> Mapping[int, Position | None]: ...


def alike(block: Block) -> Mapping[Position | None, Block]:
    """Return a block's spans by where they stand."""
    standing: dict[Position | None, list[Span]] = {}
    for span in block:
        standing.setdefault(span.after, []).append(span)
    return standing


def samples(block: Block) -> Iterator[Block]:
    """Yield spans whose keys say where a page ends, and more of them for where those have too few keys left: of those
    that are furthest behind, so that no page reads much more of them than of the others; of these the ones that gave
    most, for one that has few keys says little. Where the last ones have too few left as well, so has the block.
    """
    behind = min(
        alike(block).values(), key=lambda spans: (spans[0].after is not None, sum(s.rows for s in spans) / len(spans))
    )
    telling = sorted(behind, key=lambda span: span.rows, reverse=True)
    for count in sorted({1, min(len(telling), SAMPLED)}):
        yield telling[:count]


def share_of_page(page_rows: int, some: Block, block: Block) -> int:
    """Return how many rows of `some` a page of the block has."""
    return max(page_rows * len(some) // len(block), 1)


def shared_out(rows: int, vnodes: Sequence[int]) -> Mapping[int, int]:
    """Return the rows of a page by vnode where only their number is known: as the hash of keys has it, evenly."""
    each, more = divmod(rows, len(vnodes))
    return {vnode: each + (place < more) for place, vnode in enumerate(vnodes)}


P = TypeVar("P", bound=Page)


@dataclass
class Positions:
    """The positions of one actor. Invariant: every vnode is of `runs`; `rows` of a vnode never decreases."""

    runs: Runs
    by_vnode: dict[int, VnodePosition] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    block_vnodes: int = BLOCK_VNODES

    @property
    def rows(self) -> int:
        """Upstream rows read so far, over all vnodes."""
        return sum(position.rows for position in self.by_vnode.values())

    @property
    def completed(self) -> bool:
        """Whether every vnode is."""
        done = sum(position.state is PositionState.COMPLETED for position in self.by_vnode.values())
        return done == sum(last - first + 1 for first, last in self.runs)

    def next_block(self) -> Block:
        """Return what to read next: what is not completed of the first block that is not; nothing when all is read."""
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
        """Move the positions over a page that was read of a block."""
        reached = page.reached
        assert reached, "a page that leads nowhere"
        assert page.rows.keys() <= reached.keys() <= {span.vnode for span in block}, (block, page.rows, reached)
        for vnode, key in reached.items():
            state = PositionState.COMPLETED if key is None else PositionState.IN_PROGRESS
            rows = self._rows(vnode) + page.rows.get(vnode, 0)
            self._set(VnodePosition(vnode=Vnode(vnode), state=state, key=key, rows=rows))

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
        self.by_vnode[position.vnode] = position
        self.changed.add(position.vnode)


def redistributed(held: Sequence[Positions], owned: Sequence[Runs]) -> list[Positions]:
    """Deal the vnodes of some actors out to others: each takes its position along, and its rows (I11).

    The vnodes stay the same, each owned once.
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
    """Read pages and move `positions` over them until history ends, the permits are used up, or the time is over.

    `page_rows` says how large the next page may be, and `permits` how many rows may be read (None: any number). About
    a page of rows is read where there are permits, however little time there is: otherwise a busy upstream could
    starve history for ever, and a tiny one take an epoch for each of its blocks.
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
