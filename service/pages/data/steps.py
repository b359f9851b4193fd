"""A value over time as a line of steps, in pixels of an SVG picture. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 560
HEIGHT: Final = 80


@dataclass(frozen=True, slots=True)
class Steps:
    """The path of the line, the size of the picture, and the largest value."""

    path: str
    top: float
    width: int = WIDTH
    height: int = HEIGHT


def steps(points: Sequence[tuple[float, float]]) -> Steps:
    """Return the line of points (second, value), in order of time. Each value holds until the next point."""
    if not points:
        return Steps("", 0.0)
    first, last = points[0][0], points[-1][0]
    top = max(value for _, value in points)
    wide = max(last - first, 1.0)

    def place(at: float, value: float) -> tuple[float, float]:
        return round((at - first) / wide * (WIDTH - 10), 1), round(HEIGHT - value / max(top, 1e-9) * (HEIGHT - 4), 1)

    x, y = place(*points[0])
    path = [f"M{x} {y}"]
    for point in points[1:]:
        x, y = place(*point)
        path.append(f"H{x}V{y}")
    return Steps("".join([*path, f"H{WIDTH}"]), top)
