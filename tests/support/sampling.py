"""Of what there is many of a kind: a part runs in `make test`, and the rest is marked `soak`."""

from collections.abc import Iterable
from typing import Any, Final

import pytest

SHARE: Final = 3
"""One of so many runs in `make test`."""


def sampled(cases: Iterable[Any]) -> list[Any]:
    """Return the cases for `parametrize`: of every three the last two are marked `soak`."""
    later = pytest.mark.soak
    return [pytest.param(case, marks=later) if place % SHARE else case for place, case in enumerate(cases)]
