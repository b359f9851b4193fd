"""How long a caller is barred after statements that Postgres could not stop (A7, I13)."""

from datetime import timedelta

import pytest

from service.domain.errors import Unavailable
from service.domain.unstoppable import LONGEST, Unstoppable
from service.protocol.ids import StatementId
from tests.support.meta_store import NOW


def test_a7_each_further_one_bars_its_caller_for_longer() -> None:
    one = Unstoppable.after(None, StatementId(1), NOW)
    bars: list[timedelta] = []
    for number in range(2, 7):
        bars.append(one.until - one.at)
        one = Unstoppable.after(one, StatementId(number), one.until)
    assert bars == [timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), LONGEST, timedelta(minutes=10)]


def test_a7_a_bar_has_an_end_that_is_told() -> None:
    one = Unstoppable(StatementId(7), NOW)
    with pytest.raises(Unavailable, match=f"statement 7 of this caller.* from {one.until:%H:%M:%S} UTC on"):
        one.check(one.until - timedelta(seconds=1))
    one.check(one.until)
