"""The bucket of seconds out of which the changes of a scan are paid (I13)."""

import pytest

from service.protocol.ids import FragmentId, JobId
from workers.backfill.cost import (
    ANEW_SECONDS,
    FREE_SECONDS,
    NOTHING,
    PAGE_SECONDS,
    SMALL_SECONDS,
    CostBudget,
    PageTurns,
    SharedCosts,
)


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


def shared(
    took: dict[int, float], *, epochs: int, waited: float | None = None, pause: float = 0.0, callers: int = 1
) -> set[int]:
    """Return the views that are over after so many epochs, in each of which their changes took so long."""
    costs, now = SharedCosts(CostBudget(30), callers={JobId(job): f"{job % callers}" for job in took}), 0.0
    for _ in range(epochs):
        for job, seconds in took.items():
            costs.took(JobId(job), round(seconds * 1000))
        seconds = sum(took.values()) if waited is None else waited
        now += seconds
        costs.settle(seconds, now)
        for _ in range(3):
            now += 1 + pause / 3
            costs.settle(0.01, now)
    return set(costs.over)


@pytest.mark.parametrize(
    ("took", "epochs", "over"),
    [
        (dict.fromkeys(range(8), 1.9), 2, set()),
        (dict.fromkeys(range(8), 1.9), 3, set(range(8))),
        ({**dict.fromkeys(range(8), 1.9), 8: 0.3, 9: 0.01}, 3, set(range(8))),
        ({1: 1.9}, 1000, set()),
    ],
)
def test_a1_views_that_take_too_long_together_are_over_the_dearest_first(
    took: dict[int, float], epochs: int, over: set[int]
) -> None:
    assert shared(took, epochs=epochs) == over


def test_a1_long_epochs_with_pauses_are_borne_and_what_runs_beside_is_counted_once() -> None:
    dear = dict.fromkeys(range(8), 1.9)
    assert shared(dear, epochs=1000, pause=60) == set()
    assert shared(dear, epochs=1000, waited=2.0) == set()


def test_i13_many_small_views_of_one_caller_are_over_by_half_and_those_of_many_are_not() -> None:
    small = dict.fromkeys(range(100), 0.2)
    assert len(shared(small, epochs=3)) == 50
    assert len(shared(small, epochs=3, callers=2)) == 25
    assert shared(small, epochs=1000, callers=10) == set()
    # The dearer ones come first, and a view of another caller stays.
    mixed = {**dict.fromkeys(range(0, 100, 2), 0.2), **dict.fromkeys(range(100, 120, 2), 0.24), 1: 0.24}
    over = shared(mixed, epochs=4, callers=2)
    assert over >= set(range(100, 120, 2))
    assert 1 not in over


def test_i13_the_views_of_a_caller_take_no_more_of_an_epoch_together_than_one() -> None:
    """Five joins that exploded by one INSERT held up everybody for four minutes."""
    costs, whole = SharedCosts(CostBudget(30), callers={JobId(n): "ab"[n == 9] for n in range(10)}), CostBudget(30)
    taken = 0.0
    for n in range(9):
        allowed = costs.allowed(JobId(n), whole, 100.0)
        assert allowed is not None
        costs.took(JobId(n), round(allowed * 1000))
        taken += allowed
    assert taken == pytest.approx(30 + FREE_SECONDS + 7 * NOTHING)
    # Two callers would hold up everybody for twice as long, so the views of another one have a moment left.
    assert costs.allowed(JobId(9), whole, 100.0) == pytest.approx(FREE_SECONDS)
    assert costs.allowed(JobId(9), whole, 100.0, least=10) == pytest.approx(FREE_SECONDS)
    # Scans that ran beside each other are counted once.
    costs.began = 80.0
    assert costs.allowed(JobId(9), whole, 100.0) == pytest.approx(12)
    costs.settle(taken, 150.0)
    assert costs.allowed(JobId(1), whole, 150.0) == 30


def test_i13_a_caller_whose_views_took_too_much_together_has_spent_all() -> None:
    """Five other views took their place, and everybody waited for 10 s of each epoch for as long again."""
    costs = SharedCosts(CostBudget(30), callers={JobId(n): "ab"[n == 9] for n in range(10)})
    whole, now = CostBudget(30), 0.0
    while not costs.over:
        for job in range(5):
            costs.took(JobId(job), 2000)
        costs.took(JobId(9), 300)
        now += 10
        costs.settle(10.0, now)
    assert costs.over == {*range(5)}
    following = SharedCosts(CostBudget(30), callers=costs.callers, slow=costs.slow)
    assert following.allowed(JobId(5), whole, now) == FREE_SECONDS
    assert following.allowed(JobId(9), whole, now) == 30
    # The seconds that flow back are spent again.
    for _ in range(10):
        now += 20
        assert following.allowed(JobId(5), whole, now) == FREE_SECONDS + 4
        following.took(JobId(5), 6000)
        following.settle(6.0, now)


def test_i13_stages_that_are_computed_anew_share_what_an_epoch_may_take() -> None:
    costs, whole = SharedCosts(CostBudget(30), slow={"": CostBudget(30, 30, 100.0)}), CostBudget(30)
    allowed: list[float | None] = []
    for _ in range(6):
        allowed.append(costs.allowed(JobId(1), whole, 100.0, least=10, anew=True))
        costs.took(JobId(1), 7750)
    assert allowed == [10, 10, 10, 6.75, ANEW_SECONDS, NOTHING]


def test_i13_the_scans_of_a_view_share_its_moment() -> None:
    """Each of 384 scans in six views had it for itself: 65 s."""
    costs, whole = SharedCosts(CostBudget(30), slow={"": CostBudget(30, 30, 100.0)}), CostBudget(30)
    costs.took(JobId(1), 2000)
    allowed: list[float | None] = []
    for job in (2, 2, 2, 3):
        allowed.append(costs.allowed(JobId(job), whole, 100.0))
        costs.took(JobId(job), 150)
    assert allowed == pytest.approx([SMALL_SECONDS, SMALL_SECONDS - 0.15, NOTHING, SMALL_SECONDS])


def test_i13_a_caller_whose_view_took_too_long_begins_with_nothing_left() -> None:
    costs = SharedCosts(CostBudget(30), callers={JobId(1): "a", JobId(2): "a", JobId(3): "b"})
    costs.exceeded(JobId(1), 100.0)
    # The next generation has other costs, and the same callers.
    following = SharedCosts(CostBudget(30), callers=costs.callers, slow=costs.slow)
    whole = CostBudget(30)
    assert following.allowed(JobId(2), whole, 100.0) == FREE_SECONDS
    assert following.allowed(JobId(2), whole, 150.0) == FREE_SECONDS + 10
    assert following.allowed(JobId(3), whole, 100.0) == 30
    assert SharedCosts(CostBudget(0)).allowed(JobId(1), CostBudget(0), 0.0) is None


def test_i13_an_epoch_that_is_computed_again_has_the_less_left() -> None:
    """A view that failed by a value, beside one that took 22 s, let an INSERT take 48 s."""
    costs = SharedCosts(CostBudget(30), callers={JobId(1): "a", JobId(2): "b"})
    costs.took(JobId(1), 22_000)
    costs.took(JobId(2), 1000)
    costs.failed([JobId(1)], 100.0)
    again = SharedCosts(CostBudget(30), callers=costs.callers, slow=costs.slow)
    assert again.allowed(JobId(1), CostBudget(30), 100.0) == 30 - 22
    assert again.allowed(JobId(2), CostBudget(30), 100.0) == 30


def test_i13_failing_views_of_others_drive_nobody_out() -> None:
    """A view of 6 s an epoch would have left, or failed, because of four failures in 66 s."""
    slow = dict[str, CostBudget]()
    for epoch in range(4):
        now = 100.0 + 22 * epoch
        costs = SharedCosts(CostBudget(30), callers={JobId(1): "a", JobId(2): "b"}, slow=slow)
        costs.took(JobId(1), 6000)
        costs.failed([JobId(2)], now)
        assert costs.exceeding(now) == []
        again = SharedCosts(CostBudget(30), callers=costs.callers, slow=slow)
        assert (again.allowed(JobId(1), CostBudget(30), now) or 0) > 6
        again.took(JobId(1), 6000)
        again.settle(6, now)


def test_i13_views_for_which_nothing_is_left_are_told_with_the_one_that_failed() -> None:
    """A view of 9 s beside one that took too long cost a second recovery, of 15 s."""
    costs = SharedCosts(CostBudget(30), callers={JobId(3): "b"})
    for job, least, seconds in ((1, 0.0, 9), (2, 10.0, 9), (3, 0.0, 9), (4, 0.0, 1), (5, 0.0, 13)):
        costs.allowed(JobId(job), CostBudget(30), 100.0, least=least)
        costs.took(JobId(job), seconds * 1000)
    costs.exceeded(JobId(5), 100.0)
    costs.failed([JobId(5)], 100.0)
    # Spark's start is free for job 2, and job 3 has another caller.
    assert costs.exceeding(100.0) == [JobId(1), JobId(5)]
    costs.settle(41, 100.0)
    assert costs.exceeding(100.0) == []


def test_i13_long_pages_of_a_caller_are_borne_once() -> None:
    """64 branches of a view, whose first pages took 23 s each, delayed everybody in 64 epochs."""
    costs, now = SharedCosts(CostBudget(30), callers={JobId(1): "a", JobId(2): "b"}), 0.0
    for seconds, left in ((1.5, 30), (23, 30 + 2 * FREE_SECONDS - 23 + 0.2), (1.5, 11.2 + 0.3)):
        now += seconds
        costs.page_took(JobId(1), seconds, now)
        costs.settle(seconds, now)
        assert costs.page_allowed(JobId(1), now + 1) == pytest.approx(left)
    assert costs.page_allowed(JobId(2), now) == 30
    costs.page_took(JobId(1), 23, now + 1)
    assert costs.page_allowed(JobId(1), now + 1) == PAGE_SECONDS
    assert SharedCosts(CostBudget(0)).page_allowed(JobId(1), now) is None
    # A bucket outlasts the generation, and the parameter may have changed.
    later = SharedCosts(CostBudget(10), callers=costs.callers, paged={"a": CostBudget(0), "b": CostBudget(30, 3, now)})
    assert (later.page_allowed(JobId(1), now), later.page_allowed(JobId(2), now)) == (10, 9)


def read_by(turns: PageTurns, took: dict[int, float], *, changes: float = 0.0) -> list[int]:
    """Run an epoch of scans, whose pages take so long; return those that read one."""
    read: list[int] = []
    for scan, seconds in took.items():
        if turns.may_read(FragmentId(scan), changes=changes):
            turns.taken += seconds
            read.append(scan)
    turns.settle()
    return read


def test_i13_an_epoch_has_one_long_page_of_history_and_each_scan_its_turn() -> None:
    """The five branches of a view took 15 s each: an INSERT took 77 s."""
    turns, long = PageTurns(), {1: 15.0, 2: 0.1, 3: 15.0, 4: 15.0}
    assert [read_by(turns, long) for _ in range(5)] == [[1], [2, 3], [4], [1], [2, 3]]
    # Changes that take long put off a scan once, and so does one that has ended meanwhile.
    assert read_by(PageTurns(), dict.fromkeys((1, 2, 3), 0.5)) == [1, 2, 3]
    turns = PageTurns()
    assert [read_by(turns, dict.fromkeys((1, 2), 0.5), changes=9) for _ in range(4)] == [[], [1], [2], []]
    assert [read_by(turns, one) for one in ({3: 0.5}, {3: 0.5})] == [[], [3]]
