"""How many staged rows the next epoch moves (I5, I8, I13)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain import loads
from service.domain.loads import (
    BYTES_MAX,
    RATE_FIRST,
    ROWS_MAX,
    ROWS_MIN,
    Cut,
    LoadPace,
    aim_seconds,
    cut,
    epoch_cost,
    published_in_parts,
    rate_after,
)
from service.protocol.dml import Delete, InsertStaged, Statement
from service.protocol.ids import RelationId, StatementId
from tests.support.meta_store import relation

AIM = aim_seconds(1000, budget_ms=2000, awaited=False)
AWAITED = aim_seconds(1000, budget_ms=2000, awaited=True)

FIRST = {RelationId(1): RATE_FIRST, RelationId(2): RATE_FIRST}


def deleting(number: int, table: int = 1) -> Statement:
    return Delete(id=StatementId(number), relation=relation("t").model_copy(update={"id": RelationId(table)}))


def staged(number: int, rows: int, table: int = 1, row_bytes: int = 0) -> InsertStaged:
    of = relation("t").model_copy(update={"id": RelationId(table)})
    return InsertStaged(id=StatementId(number), relation=of, columns=("id",), first=0, last=rows, row_bytes=row_bytes)


def cut_of(*waiting: tuple[Statement, int], rates: dict[RelationId, float] | None = None) -> Cut:
    return cut(waiting, rates or {}, interval_ms=1000, budget_ms=2000)


def rows(one: Cut) -> dict[int, tuple[int, int]]:
    return {slice_.id: (slice_.first, slice_.last) for slice_ in one.statements if isinstance(slice_, InsertStaged)}


@pytest.mark.parametrize(
    ("interval_ms", "budget_ms", "awaited", "seconds"),
    [
        (1000, 2000, False, 0.65),
        (1000, 2000, True, 0.25),
        (60_000, 2000, False, 0.65),  # more rows in an epoch would not be faster
        (10, 2000, False, 0.195),
        (1000, 500, False, 0.25),  # a slice that exceeds the budget is rolled back
    ],
)
def test_the_time_for_staged_rows(interval_ms: int, budget_ms: int, awaited: bool, seconds: float) -> None:
    assert aim_seconds(interval_ms, budget_ms=budget_ms, awaited=awaited) == pytest.approx(seconds)


def test_a_slice_begins_where_the_last_one_ended_and_has_what_fits_into_the_time() -> None:
    load = staged(1, 10_000_000)
    assert rows(cut_of((load, 0), rates=FIRST)) == {1: (0, int(RATE_FIRST * AIM))}
    assert rows(cut_of((load, 70), rates={RelationId(1): 100_000.0})) == {1: (70, 70 + 65_000)}
    assert rows(cut_of((load, 9_999_999))) == {1: (9_999_999, 10_000_000)}


def test_i13_the_first_slice_of_an_unknown_table_is_small() -> None:
    """Two views of 64 branches each were over it, and 50,000 rows let no epoch end for 37 s."""
    assert rows(cut_of((staged(1, 10_000_000), 0))) == {1: (0, ROWS_MIN)}


def test_i5_a_slice_gives_way_to_statements_that_wait_and_these_run_first() -> None:
    found = cut_of((staged(1, 10_000_000), 0), (deleting(2), 0), (deleting(3, 2), 0), rates=FIRST)
    assert [one.id for one in found.statements] == [2, 3, 1]
    assert rows(found) == {1: (0, int(RATE_FIRST * AWAITED))}


def test_i13_loads_share_the_time_and_a_small_one_gets_its_answer_soon() -> None:
    large = cut_of((staged(1, 10_000_000), 0), (staged(2, 10_000_000, 2), 0), rates=FIRST)
    assert rows(large) == {1: (0, int(RATE_FIRST * AIM / 2)), 2: (0, int(RATE_FIRST * AIM / 2))}
    small = cut_of((staged(1, 10_000_000), 0), (staged(2, 300, 2), 0), rates=FIRST)
    assert rows(small) == {1: (0, int(RATE_FIRST * AWAITED / 2)), 2: (0, 300)}


def test_i13_a_statement_does_not_wait_for_a_load_of_its_own_table() -> None:
    found = cut_of((staged(1, 10_000_000), 0), (deleting(2), 0), (staged(3, 10, 1), 0))
    assert {one.id for one in found.statements} == {1, 2, 3}


def test_i8_a_slice_is_bounded_in_rows_and_in_bytes() -> None:
    fast = {RelationId(1): 1e9}
    assert rows(cut_of((staged(1, 10_000_000), 0), rates=fast)) == {1: (0, ROWS_MAX)}
    wide = staged(1, 10_000_000, row_bytes=1 << 20)
    assert rows(cut_of((wide, 0), rates=fast)) == {1: (0, 64)}
    assert rows(cut_of((staged(1, 10, row_bytes=2 * BYTES_MAX), 3))) == {1: (3, 4)}


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(0, 10**7), st.integers(0, 10**5), st.floats(1, 1e8), st.integers(0, 1 << 24)
        ),
        max_size=8,
    ),
    st.integers(0, 3),
    st.integers(100, 60_000),
    st.integers(1, 20_000),
)
def test_every_cut_has_all_statements_and_advances_the_oldest_load_within_the_bounds(
    drawn: list[tuple[int, int, int, float, int]], others: int, interval_ms: int, budget_ms: int
) -> None:
    every = [
        (staged(number, done + left + 1, table, width), done)
        for number, (table, left, done, _, width) in enumerate(drawn, 1)
    ]
    rates = {RelationId(table): rate for table, _, _, rate, _ in drawn}
    waiting = [*every, *((deleting(100 + number), 0) for number in range(others))]
    found = cut(waiting, rates, interval_ms=interval_ms, budget_ms=budget_ms)
    slices = rows(found)
    assert sum(not isinstance(one, InsertStaged) for one in found.statements) == others
    assert list(slices) == [one.id for one, _ in every][: len(slices)], "the oldest first"
    assert bool(slices) == bool(every)
    for one, done in every[: len(slices)]:
        first, last = slices[one.id]
        assert first == done < last <= one.last
    assert sum(last - first for first, last in slices.values()) <= ROWS_MAX
    heavy = sum((slices[one.id][1] - slices[one.id][0]) * one.row_bytes for one, _ in every[: len(slices)])
    largest = max((one.row_bytes for one, _ in every), default=0)
    assert heavy <= BYTES_MAX + largest, "at most one row more"
    slowest = min(rates.values(), default=1.0)
    assert found.seconds <= found.aim + ROWS_MIN / slowest + 1e-6, "at most the least slice more"


@pytest.mark.parametrize(
    ("expected", "took", "after"),
    [
        (0.65, 0.65, 1000),
        (0.65, 1.30, 500),
        (0.65, 0.325, 2000),
        (0.65, 0.01, 4000),  # it rises by so much at most
        (0.01, 0.05, 1000),  # a small slice shows only the fixed costs of an epoch
        (0.01, 1.00, 10),  # unless it took too long
    ],
)
def test_a_rate_follows_what_the_whole_epoch_took(expected: float, took: float, after: float) -> None:
    assert rate_after(1000, expected=expected, took=took, aim=0.65) == pytest.approx(after)


@given(st.floats(1e3, 2e6), st.floats(0, 0.05))
def test_the_slices_of_a_load_soon_take_their_time(rate: float, fixed: float) -> None:
    """Whatever a table's rate is, a few epochs find it. No slice takes more than four times its aim."""
    pace, done = LoadPace(), 0
    load = staged(1, 10**9)
    first = last = 0
    took = 0.0
    for _ in range(12):
        found = pace.cut([(load, done)], interval_ms=1000, budget_ms=2000)
        ((first, last),) = rows(found).values()
        took, done = fixed + (last - first) / rate, last
        assert took <= max(4 * AIM, fixed + max(ROWS_MIN, RATE_FIRST * AIM) / rate) + fixed
        pace.measured(took, moved=[load.id], unfinished=[])
    size = last - first
    assert size in (ROWS_MIN, ROWS_MAX) or took == pytest.approx(AIM, rel=0.1)


def test_a_slice_that_was_rolled_back_is_followed_by_a_smaller_one_and_a_failed_one_tells_nothing() -> None:
    pace = LoadPace()
    load = staged(1, 10**9)
    pace.cut([(load, 0)], interval_ms=1000, budget_ms=2000)
    pace.measured(2.0, moved=[], unfinished=[load.id])
    assert pace.rates == {load.relation.id: RATE_FIRST / 4}
    pace.cut([(load, 0)], interval_ms=1000, budget_ms=2000)
    pace.measured(0.001, moved=[], unfinished=[])
    assert pace.rates == {load.relation.id: RATE_FIRST / 4}


def test_i8_few_rates_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "_REMEMBERED", 2)
    pace = LoadPace()
    for table in (1, 2, 1, 3):
        one = staged(table, 10**9, table)
        pace.cut([(one, 0)], interval_ms=1000, budget_ms=2000)
        pace.measured(0.65, moved=[one.id], unfinished=[])
    assert list(pace.rates) == [RelationId(1), RelationId(3)]


def test_a_scan_that_fills_the_interval_is_no_cost_of_a_load() -> None:
    assert epoch_cost(epoch=0.9, statements=0.2, interval=1.0, reads_history=False) == 0.9
    assert epoch_cost(epoch=0.9, statements=0.2, interval=1.0, reads_history=True) == 0.2
    assert epoch_cost(epoch=1.5, statements=0.2, interval=1.0, reads_history=True) == pytest.approx(0.7)


def test_h2_rows_that_one_epoch_may_not_publish_are_told_of() -> None:
    assert published_in_parts(ROWS_MIN) == ()
    assert published_in_parts(ROWS_MIN + 1) == ("several epochs may have published the rows, a part of them each",)
