"""I8: what a backfill holds is set by its pages, never by how many of them a table has."""

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakSet

import pytest

from workers.backfill.order import Position
from workers.backfill.positions import PageSize, Positions, pages

LIMIT = 2
PAGES = 9


@dataclass(frozen=True, eq=False)
class Held:
    """A page that can be seen to be let go of."""

    rows: Mapping[int, int]
    reached: Mapping[int, Position | None]


@pytest.mark.parametrize("permits", [None, LIMIT * PAGES])
def test_pages_are_held_one_at_a_time(permits: int | None) -> None:
    """A page is read when it is asked for, and by then all but the one before it are gone."""
    alive = WeakSet[Held]()
    held: list[int] = []

    def read(_block: object, size: PageSize) -> Held:
        held.append(len(alive))
        page = Held({0: size.rows}, {0: (str(len(held)),) if len(held) < PAGES else None})
        alive.add(page)
        return page

    read_pages = pages(Positions(((0, 0),)), read, page_rows=lambda: LIMIT, permits=permits, more_time=lambda: True)
    for taken, _page in enumerate(read_pages, start=1):
        assert len(held) == taken, "read ahead of who takes them"
    assert held == [0] + [1] * (PAGES - 1)
