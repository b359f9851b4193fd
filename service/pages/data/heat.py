"""The vnodes of a scan as a strip of cells: how far each has come. Pure.

The state of a cell is its shape as well as its colour: hollow, half, or full.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.operations.status.models import VnodeView

CELL: Final = 8
PER_ROW: Final = 64
STATES: Final = ("not_started", "in_progress", "completed")
"""The states of vnodes, in the order in which each goes through them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A vnode: its place in pixels, its state, and a text."""

    x: int
    y: int
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The cells with their size in pixels, and the same in words. `key` are pairs (state, count and state in words)."""

    cells: tuple[Cell, ...]
    width: int
    height: int
    text: str
    key: tuple[tuple[str, str], ...]
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
    counts = Counter(one.state for one in cells)
    rows = -(-len(vnodes) // PER_ROW)
    key = tuple((state, f"{counts[state]:,} {words(state)}") for state in STATES)
    text = ", ".join(said for _, said in key) if vnodes else "no vnodes"
    return Strip(cells, min(len(vnodes), PER_ROW) * CELL, rows * CELL, text, key)


def words(state: str) -> str:
    """Return the state of a vnode as words."""
    return state.lower().replace("_", " ")
