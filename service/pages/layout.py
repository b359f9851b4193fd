"""Place the nodes of a graph in layers, so that every edge goes from left to right. Pure.

A node is one layer after the last one that it reads. Within a layer nodes are ordered by the mean place of their
neighbours, in a few passes, which leaves few crossings. An edge over several layers goes straight.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

WIDTH: Final = 190
HEIGHT: Final = 58
GAP_X: Final = 60
GAP_Y: Final = 18
MARGIN: Final = 8
_PASSES: Final = 4


@dataclass(frozen=True, slots=True)
class Placed(Generic[K]):
    """A node with the upper left corner of its box, in pixels."""

    key: K
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Layout(Generic[K]):
    """Boxes of `WIDTH` x `HEIGHT` pixels, the paths of the edges in SVG's words, and the size of all in pixels."""

    placed: tuple[Placed[K], ...]
    paths: tuple[str, ...]
    width: int
    height: int


def layout(nodes: Sequence[K], edges: Iterable[tuple[K, K]]) -> Layout[K]:
    """Return the places of nodes. Edges are (from, to). Those of a cycle that go back are drawn, and place nothing."""
    known = set(nodes)
    drawn = [(one, other) for one, other in dict.fromkeys(edges) if one in known and other in known and one != other]
    layer_of = _layers(nodes, drawn)
    rows = _ordered(nodes, drawn, layer_of)
    tallest = max((len(row) for row in rows), default=0)
    height = 2 * MARGIN + max(tallest * (HEIGHT + GAP_Y) - GAP_Y, 0)
    at: dict[K, tuple[int, int]] = {}
    for number, row in enumerate(rows):
        # Short layers stand in the middle.
        first = (height - len(row) * (HEIGHT + GAP_Y) + GAP_Y) // 2
        for place, key in enumerate(row):
            at[key] = (MARGIN + number * (WIDTH + GAP_X), first + place * (HEIGHT + GAP_Y))
    width = 2 * MARGIN + max(len(rows) * (WIDTH + GAP_X) - GAP_X, 0)
    paths = tuple(_path(at[one], at[other]) for one, other in drawn)
    return Layout(tuple(Placed(key, *at[key]) for key in nodes), paths, width, height)


def _layers(nodes: Sequence[K], edges: Sequence[tuple[K, K]]) -> Mapping[K, int]:
    """Return the longest path to each node. Nodes of a cycle keep what they have when nothing else moves."""
    left: dict[K, int] = dict.fromkeys(nodes, 0)
    after: dict[K, list[K]] = {}
    for one, other in edges:
        left[other] += 1
        after.setdefault(one, []).append(other)
    found: dict[K, int] = dict.fromkeys(nodes, 0)
    ready = [key for key in nodes if not left[key]]
    for key in ready:
        for other in after.get(key, ()):
            found[other] = max(found[other], found[key] + 1)
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return found


def _ordered(nodes: Sequence[K], edges: Sequence[tuple[K, K]], layer_of: Mapping[K, int]) -> list[list[K]]:
    rows: list[list[K]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for key in nodes:
        rows[layer_of[key]].append(key)
    before: dict[K, list[K]] = {}
    after: dict[K, list[K]] = {}
    for one, other in edges:
        before.setdefault(other, []).append(one)
        after.setdefault(one, []).append(other)
    place = {key: number / len(row) for row in rows for number, key in enumerate(row)}
    still = 0
    for turn in range(_PASSES):
        near, order = (before, rows) if turn % 2 == 0 else (after, rows[::-1])
        moved = [_sort(row, near, place) for row in order]
        still = 0 if any(moved) else still + 1
        # Without a move in both directions no later pass moves anything.
        if still == 2:
            break
    return rows


def _sort(row: list[K], near: Mapping[K, Sequence[K]], place: dict[K, float]) -> bool:
    """Sort a layer by the mean place of neighbours, and return whether that moved a node."""
    if not any(key in near for key in row):
        return False
    mean = {key: _mean([place[one] for one in near.get(key, ())], place[key]) for key in row}
    found = sorted(row, key=mean.__getitem__)
    if found == row:
        return False
    row[:] = found
    place.update({key: number / len(row) for number, key in enumerate(row)})
    return True


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _path(one: tuple[int, int], other: tuple[int, int]) -> str:
    x, y = one[0] + WIDTH, one[1] + HEIGHT // 2
    to_x, to_y = other[0], other[1] + HEIGHT // 2
    bend = max(abs(to_x - x) // 2, GAP_X // 2)
    return f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
