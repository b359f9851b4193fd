"""The vnodes of a scan as a strip of cells: how far each has come. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.operations.status.models import VnodeView

CELL: Final = 6
PER_ROW: Final = 64


@dataclass(frozen=True, slots=True)
class Cell:
    """A vnode: its place in pixels, its state, and a text."""

    x: int
    y: int
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The cells with their size in pixels, and the same in words."""

    cells: tuple[Cell, ...]
    width: int
    height: int
    text: str
    cell: int = CELL - 1


def strip(vnodes: Sequence[VnodeView]) -> Strip:
    """Return the strip of a scan's vnodes, `PER_ROW` in a row."""
    cells = tuple(
        Cell(
            x=place % PER_ROW * CELL,
            y=place // PER_ROW * CELL,
            state=one.state.lower(),
            text=f"vnode {one.vnode}: {words(one.state)}, {one.rows:,} rows",
        )
        for place, one in enumerate(vnodes)
    )
    counts = Counter(words(one.state) for one in vnodes)
    rows = -(-len(vnodes) // PER_ROW)
    text = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return Strip(cells, min(len(vnodes), PER_ROW) * CELL, rows * CELL, text or "no vnodes")


def words(state: str) -> str:
    """Return the state of a vnode as words."""
    return state.lower().replace("_", " ")
