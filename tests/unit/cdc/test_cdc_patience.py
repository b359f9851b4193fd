"""How long epochs wait for a source whose answers take long, and what a transaction's time is spent on."""

from dataclasses import dataclass, field

import pytest

from service.protocol.ids import FragmentId
from workers.cdc import kept
from workers.cdc.backoff import HELD_SECONDS_MAX, SLOW_SECONDS, Backoff
from workers.cdc.budget import Budget
from workers.cdc.patience import AGAIN_SECONDS, FIRST_SECONDS, QUIET_SECONDS, WITHIN_SECONDS, Patience, rest

LONG = 300
"""Epochs."""


@dataclass
class Epochs:
    """Barriers at an interval, each of which asks a source that takes so long to answer."""

    takes: float
    interval: float
    patience: Patience = field(default_factory=lambda: Patience(slow=True))
    now: float = 0.0
    asked: float | None = None

    def run(self, number: int) -> list[float]:
        """Return how long epochs waited, one after the other."""
        return [self.epoch() for _ in range(number)]

    def epoch(self) -> float:
        began = self.now
        if self.asked is None:
            self.asked = began
            self.patience.asked(began)
        allowed, lacking = self.patience.allows(), max(self.asked + self.takes - began, 0.0)
        waited = min(allowed, lacking)
        if lacking <= allowed:
            self.patience.came()
            self.asked = None
        else:
            self.patience.missed(began + waited)
        self.now = max(began + waited, began + self.interval)
        return waited


@pytest.mark.parametrize("takes", [0.0, 0.05, 0.11, 0.5, 0.95])
@pytest.mark.parametrize("interval", [0.05, 0.1, 1.0, 10.0])
def test_a_source_that_answers_within_an_epoch_does_not_stay_slow(takes: float, interval: float) -> None:
    """History is read only where it is not."""
    epochs = Epochs(takes, interval)
    epochs.run(round(2 + takes / interval))
    assert not epochs.patience.slow
    assert epochs.run(LONG) == pytest.approx([takes] * LONG)
    assert not epochs.patience.slow


@pytest.mark.parametrize("takes", [3.0, 30.0, 500.0])
@pytest.mark.parametrize("interval", [0.1, 1.0])
def test_a_source_that_takes_longer_stays_slow_and_costs_an_epoch_little(takes: float, interval: float) -> None:
    epochs = Epochs(takes, interval, Patience())
    assert epochs.epoch() == FIRST_SECONDS
    assert max(epochs.run(LONG)) <= AGAIN_SECONDS
    epochs.run(round(takes / interval) + 2)
    assert epochs.patience.slow or epochs.patience.missing is not None


@pytest.mark.parametrize(("takes", "interval"), [(1.05, 0.1), (1.05, 1.0), (1.9, 1.0), (3.0, 10.0)])
def test_a_source_at_the_limit_costs_less_than_half_of_the_time(takes: float, interval: float) -> None:
    """What came between two epochs may have come in time: it is waited for once, and not found."""
    epochs = Epochs(takes, interval)
    assert sum(epochs.run(LONG)) < epochs.now / 2


def test_a_second_question_is_waited_for_longer_each_time() -> None:
    patience = Patience(slow=True)
    waits: list[float] = []
    for _ in range(9):
        patience.asked(0.0)
        waits.append(patience.allows(second=True))
        patience.missed(waits[-1], second=True)
        assert patience.allows() == 0.0
        patience.came()
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, WITHIN_SECONDS, WITHIN_SECONDS, WITHIN_SECONDS]
    patience.asked(0.0)
    patience.came()
    assert (patience.slow, patience.allows(second=True)) == (False, FIRST_SECONDS)


def test_the_table_that_took_the_most_time_of_a_transaction_is_found() -> None:
    one, other = FragmentId(1), FragmentId(2)
    budget = Budget(0.0)
    for now in (10.0, 20.0, 30.0):
        budget.charge(one, now)
    budget.charge(None, 90.0)
    budget.charge(other, 115.0)
    assert budget.exceeded(55.0) is None
    assert budget.exceeded(54.9) == one
    budget.ended()
    budget.charge(other, 120.0)
    assert (budget.exceeded(5.0), budget.exceeded(4.9)) == (None, other)


@pytest.mark.parametrize("answering", [SLOW_SECONDS, 0.6, 6.0, 40.0])
@pytest.mark.parametrize("interval", [0.1, 1.0])
def test_a_source_that_answers_slowly_holds_barriers_up_for_a_fifth_of_the_time(
    answering: float, interval: float
) -> None:
    backoff, now, held = Backoff(), 0.0, 0.0
    for _ in range(5_000):
        began = now
        if now >= backoff.until:
            now += answering
            held += answering
            backoff.answered()
            backoff.waited(answering, now)
            assert backoff.reason is not None
        now = max(now, began + interval)
    assert held <= now / 5 + answering
    assert held >= now / 5 - answering - interval * held / answering


def test_a_source_that_answers_fast_is_always_asked() -> None:
    backoff = Backoff()
    backoff.failed("away", 10.0)
    backoff.answered()
    backoff.waited(SLOW_SECONDS / 2, 11.0)
    assert (backoff.until, backoff.reason) == (0.0, None)
    backoff.waited(1e9, 11.0)
    assert backoff.until == 11.0 + HELD_SECONDS_MAX


def test_the_rest_of_an_answer_is_waited_for_while_it_comes_at_a_pace() -> None:
    mb = 1 << 20
    found = [rest(spent, size) for spent, size in ((0.0, 1), (1.5, 100), (2.1, 100), (50.0, 100 * mb), (99.0, 98 * mb))]
    assert found == pytest.approx([QUIET_SECONDS, 0.5, -0.1, QUIET_SECONDS, 1.0], abs=0.001)


def test_a_source_whose_answer_stalled_is_waited_for_briefly_until_one_comes_in_time() -> None:
    patience = Patience(stalled=True)
    patience.asked(0.0)
    patience.missed(5.0)
    patience.came()
    assert (patience.slow, patience.stalled) == (True, True)
    patience.asked(10.0)
    patience.came()
    assert (patience.slow, patience.stalled) == (False, False)


def test_what_is_kept_of_an_answer_is_given_again_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MEMORY_BYTES_MAX", 10)
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", 40)
    held = kept.Kept()
    held.add([b"one", b"", b"three" * 3])
    assert (list(held.rows()), held.full) == ([b"one", b"", b"three" * 3], False)
    held.add([b"four" * 4])
    held.add([b"five"])
    assert (list(held.rows()), held.full) == ([b"one", b"", b"three" * 3, b"four" * 4], True)
    held.close()
