"""Of what there is many of a kind: a part runs in `make test`, and the rest is marked `soak`."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import pytest

SHARE: Final = 6
"""One of so many runs in `make test`."""
LATER: Final = pytest.mark.soak


def sampled(cases: Iterable[Any], share: int = SHARE) -> list[Any]:
    """Return the cases for `parametrize`: of every six, or of so many, all but the first are marked `soak`.

    A tuple has a value for each of several arguments.
    """
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*case, marks=LATER if place % share else ()) for place, case in enumerate(values)]


def chosen(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Return the cases for `parametrize`: all but those that are kept are marked `soak`."""
    return [pytest.param(case, marks=() if case in kept else LATER) for case in cases]


def in_turn(cases: Iterable[Any], ways: Sequence[Any], share: int = SHARE) -> list[Any]:
    """Return each case with each way for `parametrize`: `soak` has all, and `make test` of every sixth case, or of so
    many, one way, another each time.
    """
    return [
        pytest.param(case, way, marks=() if (place % share, number) == (0, place // share % len(ways)) else LATER)
        for place, case in enumerate(cases)
        for number, way in enumerate(ways)
    ]
