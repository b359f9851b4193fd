"""The page size of an operator's scans follows from the time of all operators of its job (I5)."""

from workers.backfill.pace import (
    OPERATOR_ROWS_FIRST,
    OPERATOR_ROWS_MAX,
    OPERATOR_SHARE,
    PAGE_ROWS_MIN,
    OperatorPace,
    operator_rows_after,
)


def test_the_time_of_all_operators_counts() -> None:
    pace = OperatorPace()
    assert pace.begin(1) == 1
    pace.measured(seconds=0.2, slice_seconds=0.8)
    assert pace.begin(1) == 1, "the epoch goes on"
    pace.measured(seconds=0.6, slice_seconds=0.0)
    assert pace.begin(2) == OPERATOR_SHARE
    assert pace.begin(3) == 1, "nothing was read"


def test_a_page_grows_and_shrinks_with_the_time_that_it_took() -> None:
    def after(rows: int, fits: float, *, wanted: int = 1_000) -> int:
        return operator_rows_after(1_000, rows=rows, wanted=wanted, fits=fits)

    assert after(1_000, 2) == 2_000
    assert after(1_000, 100) == 4_000
    assert after(1_000, 0.5) == 500
    assert after(1_000, 0.001) == PAGE_ROWS_MIN


def test_a_page_that_was_cut_short_shows_only_that_it_was_too_large() -> None:
    assert operator_rows_after(1_000, rows=400, wanted=1_000, fits=3) == 1_000
    assert operator_rows_after(1_000, rows=400, wanted=1_000, fits=0.5) == 500
    assert operator_rows_after(OPERATOR_ROWS_FIRST, rows=0, wanted=0, fits=9) == OPERATOR_ROWS_FIRST


def test_pages_have_bounds() -> None:
    assert operator_rows_after(OPERATOR_ROWS_MAX, rows=OPERATOR_ROWS_MAX, wanted=1, fits=4) == OPERATOR_ROWS_MAX
    assert operator_rows_after(10, rows=10, wanted=10, fits=0.1) == 10, "a small page stays so"
