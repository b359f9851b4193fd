"""The page size of an operator's scans follows from the time of all operators of its job (I5)."""

from workers.backfill.pace import (
    OPERATOR_ROWS_FIRST,
    OPERATOR_ROWS_MAX,
    OPERATOR_ROWS_MIN,
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
    assert after(1_000, 0.001) == OPERATOR_ROWS_MIN


def test_a14_pages_are_small_while_each_row_of_them_joins_a_whole_table() -> None:
    """Pages of 100 rows each joined 3,000 rows with one key, and all statements waited 19 s for an epoch (I13)."""

    def after(page: int, fits: float) -> int:
        return operator_rows_after(page, rows=page, wanted=page, fits=fits)

    assert after(150, 0.16) == PAGE_ROWS_MIN, "what a job takes without any page would make pages ever smaller"
    assert after(150, 0.1) == 15
    assert after(15, 0.1) == OPERATOR_ROWS_MIN
    assert after(15, 0.16) == 15
    assert after(15, 2.0) == 30


def test_a_page_that_was_cut_short_shows_only_that_it_was_too_large() -> None:
    assert operator_rows_after(1_000, rows=400, wanted=1_000, fits=3) == 1_000
    assert operator_rows_after(1_000, rows=400, wanted=1_000, fits=0.5) == 500
    assert operator_rows_after(OPERATOR_ROWS_FIRST, rows=0, wanted=0, fits=9) == OPERATOR_ROWS_FIRST


def test_pages_have_bounds() -> None:
    assert operator_rows_after(OPERATOR_ROWS_MAX, rows=OPERATOR_ROWS_MAX, wanted=1, fits=4) == OPERATOR_ROWS_MAX
    assert operator_rows_after(10, rows=10, wanted=10, fits=0.1) == 10, "a small page stays so"
