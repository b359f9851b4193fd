"""The bucket of seconds out of which the changes of a scan are paid (I13)."""

import pytest

from workers.backfill.cost import FREE_SECONDS, CostBudget


def lived(limit: float, seconds: float, *, pause: float, epochs: int = 1000) -> int | None:
    """Return the epoch in which changes that always take so long exceed what they may, or None."""
    budget, now = CostBudget(limit), 0.0
    for epoch in range(epochs):
        allowed = budget.allowed(now)
        if allowed is not None and seconds > allowed:
            return epoch
        now += seconds
        budget = budget.charged(seconds, now)
        now += pause
    return None


@pytest.mark.parametrize(
    ("limit", "seconds", "pause", "last"),
    [
        (0, 1e9, 0, None),
        (30, 31, 60, 0),
        (30, FREE_SECONDS, 0, None),
        (30, 20, 0, 1),
        (30, 29, 200, None),
        (30, 10, 0, 4),
        (1, 1, 0, None),
    ],
)
def test_n5_one_long_epoch_is_borne_and_one_after_another_is_not(
    limit: float, seconds: float, pause: float, last: int | None
) -> None:
    assert lived(limit, seconds, pause=pause) == last
