"""Progress as people read it: the reference's strings, and never more than is true (I6)."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.job import JobState
from service.domain.progress import JobProgress, Phase, ScanProgress, advanced, fragment_text, metric_text, of_job
from service.protocol.ids import FragmentId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCAN = ScanProgress(FragmentId(1), "t", rows=25, total=100, rate=5.0, at=NOW)
CREATING = JobState.CREATING


def shown(rows: int, total: int | None, *, state: JobState = CREATING, started: bool = True) -> JobProgress:
    return of_job(state, [replace(SCAN, rows=rows, total=total)], started=started)


@pytest.mark.parametrize(
    ("rows", "total", "text"),
    [
        (0, 0, "99.99%"),
        (5, 0, "99.99%"),
        (0, 100, "0.00% (0/100)"),
        (25, 100, "25.00% (25/100)"),
        (1, 3, "33.33% (1/3)"),
        (99_985, 100_000, "99.98% (99985/100000)"),
        (99_999, 100_000, "99.99% (99999/100000)"),
        (100, 100, "99.99% (100/100)"),
        (101, 100, "99.99% (101/100)"),
        (5, None, "Unknown"),
    ],
)
def test_text_of_a_creating_job(rows: int, total: int | None, text: str) -> None:
    assert shown(rows, total).text == text


@pytest.mark.parametrize(
    ("state", "started", "text", "phase"),
    [
        (JobState.INITIAL, False, "0.0%", Phase.STARTING),
        (JobState.QUEUED, False, "0.0%", Phase.QUEUED),
        (CREATING, False, "0.0%", Phase.STARTING),
        (CREATING, True, "25.00% (25/100)", Phase.BACKFILLING),
        (JobState.CREATED, True, "100%", Phase.CREATED),
        (JobState.CANCELLING, True, "Resetting", Phase.STOPPED),
        (JobState.DROPPING, True, "Resetting", Phase.STOPPED),
    ],
)
def test_text_by_state(state: JobState, started: bool, text: str, phase: Phase) -> None:
    progress = shown(25, 100, state=state, started=started)
    assert (progress.text, progress.phase) == (text, phase)


def test_a_job_without_scans_is_unknown_until_it_is_created() -> None:
    assert of_job(CREATING, [], started=True).text == "Unknown"
    assert of_job(JobState.CREATED, [], started=True).text == "100%"


def test_several_scans_add_up_and_one_unknown_total_makes_the_sum_unknown() -> None:
    scans = [replace(SCAN, rows=10, total=100, rate=1.0), replace(SCAN, rows=40, total=100, rate=2.0)]
    both = of_job(CREATING, scans, started=True)
    assert (both.text, both.rows, both.total, both.rate) == ("25.00% (50/200)", 50, 200, 3.0)
    assert both.eta == timedelta(seconds=50)
    unknown = of_job(CREATING, [*scans, replace(SCAN, total=None)], started=True)
    assert (unknown.total, unknown.percent, unknown.eta) == (None, None, None)


@pytest.mark.parametrize(
    ("rows", "total", "text"),
    [
        (0, None, "100% (0/0)"),
        (0, 0, "100% (0/0)"),
        (0, 7, "0.00% (0/7)"),
        (1, 8, "12.50% (1/8)"),
        (8, 8, "100.00% (8/8)"),
        (9, 8, "112.50% (9/8)"),
        (30, 1000, "3.00% (30/1000)"),
        (1, 100_000_000, "0.000001% (1/100000000)"),
        (10**15, 1, "100000000000000000.00% (1000000000000000/1)"),
    ],
)
def test_h3_fragment_text_has_two_decimals_at_least(rows: int, total: int | None, text: str) -> None:
    assert fragment_text(rows, total) == text


def test_fragment_text_has_twenty_decimals_where_it_does_not_end() -> None:
    assert fragment_text(1, 3) == "33.33333333333333333333% (1/3)"
    assert fragment_text(2, 3) == "66.66666666666666666667% (2/3)"


@pytest.mark.parametrize(
    ("scan", "text"),
    [
        (replace(SCAN, total=None), "0.0000% (0/0)"),
        (SCAN, "25.0000% (25/100)"),
        (replace(SCAN, finished=True), "100.0000% (100/100)"),
        (replace(SCAN, finished=True, total=0, rows=0), "100.0000% (0/0)"),
    ],
)
def test_metric_text(scan: ScanProgress, text: str) -> None:
    assert metric_text(scan) == text


SCANS = st.builds(
    ScanProgress,
    fragment=st.just(FragmentId(1)),
    upstream=st.just("t"),
    rows=st.integers(0, 2**62),
    total=st.none() | st.integers(0, 5) | st.integers(0, 2**62),
    rate=st.floats(0, 1e9),
    finished=st.booleans(),
    rate_limit=st.none() | st.integers(0, 10),
    at=st.just(NOW),
)


@settings(max_examples=500, derandomize=True)
@given(st.sampled_from(JobState), st.lists(SCANS, max_size=3), st.booleans(), st.booleans())
def test_nothing_is_whole_before_it_is_created(
    state: JobState, scans: list[ScanProgress], started: bool, paused: bool
) -> None:
    """I6: 100 % only for CREATED; at most 99.99 until then, however many rows were read."""
    progress = of_job(state, scans, started=started, paused=paused)
    if state is JobState.CREATED:
        assert (progress.text, progress.percent, progress.waiting_for) == ("100%", 100.0, None)
        return
    assert progress.phase is not Phase.CREATED
    assert progress.percent is None or 0 <= progress.percent <= 99.99
    number = re.match(r"([\d.]+)%", progress.text)
    assert number is None or Decimal(number[1]) <= Decimal("99.99")
    assert progress.eta is None or progress.eta >= timedelta(0)


def test_why_nothing_moves() -> None:
    def why(*scans: ScanProgress, state: JobState = CREATING, **facts: object) -> str | None:
        place, paused = facts.get("place"), bool(facts.get("paused"))
        recovering = facts.get("recovering")
        return of_job(
            state,
            scans,
            started=True,
            queue_place=place if isinstance(place, int) else None,
            paused=paused,
            recovering=recovering if isinstance(recovering, str) else None,
        ).waiting_for

    stopped, slow, done = (replace(SCAN, rate_limit=0), replace(SCAN, rate_limit=7), replace(SCAN, finished=True))
    assert why(SCAN) is None
    assert why(SCAN, place=2, state=JobState.QUEUED) == (
        "queued at place 2: max_concurrent_creating_streaming_jobs is reached"
    )
    assert why(SCAN, paused=True, recovering="worker lost") == "cluster under recovery[worker lost]"
    assert why(stopped, paused=True) == "paused"
    assert why(stopped) == "backfill_rate_limit is 0"
    assert why(stopped, done) == "backfill_rate_limit is 0"
    assert why(stopped, slow) == "throttled to 0, 7 rows/s per actor"
    assert why(done, paused=True) is None, "a finish waits for no permit"
    later = replace(SCAN, waiting=True, awaits=("t",))
    assert why(SCAN, later) is None, "what is before it moves"
    assert why(stopped, later) == "backfill_rate_limit is 0", "what is before it says why"
    assert why(slow, replace(later, rate_limit=7)) == "throttled to 7 rows/s per actor"
    assert why(done, later) == "backfill_order"


def run(rows: list[int], *, seconds: float = 1.0, scan: ScanProgress = SCAN) -> ScanProgress:
    for count in rows:
        assert scan.at is not None
        scan = advanced(scan, rows=count, total=10_000, finished=False, at=scan.at + timedelta(seconds=seconds))
    return scan


def test_the_rate_follows_what_is_read_and_forgets_what_was() -> None:
    steady = run([100 * i for i in range(1, 40)], scan=replace(SCAN, rows=0, rate=0.0))
    assert steady.rate == pytest.approx(100.0, rel=0.01)
    halted = run([steady.rows] * 40, scan=steady)
    assert halted.rate == pytest.approx(0.0, abs=0.1)
    assert run([5000], seconds=50, scan=replace(SCAN, rows=0, rate=7.0)).rate == 100.0


def test_the_first_checkpoint_and_a_clock_that_stands_say_nothing_of_the_rate() -> None:
    first = advanced(replace(SCAN, at=None, rate=0.0), rows=50, total=100, finished=False, at=NOW)
    assert (first.rate, first.rows, first.at) == (0.0, 50, NOW)
    assert advanced(SCAN, rows=90, total=100, finished=True, at=NOW).rate == SCAN.rate


def test_rows_never_go_back() -> None:
    """I6."""
    with pytest.raises(AssertionError):
        advanced(SCAN, rows=24, total=100, finished=False, at=NOW)


@pytest.mark.parametrize(
    ("left", "rate", "eta"),
    [
        (75, 5.0, timedelta(seconds=15)),
        (75, 0.0, None),
        (2**62, 1e-3, None),
        (75, 5e-324, None),
        (0, 0.0, timedelta(0)),
    ],
)
def test_time_left(left: int, rate: float, eta: timedelta | None) -> None:
    scan = replace(SCAN, rows=25, total=25 + left, rate=rate)
    assert of_job(CREATING, [scan], started=True).eta == eta


@pytest.mark.parametrize("state", [JobState.DROPPED, JobState.CANCELLED, JobState.FAILED])
@pytest.mark.parametrize(("started", "text", "percent"), [(False, "0.0%", 0.0), (True, "Unknown", None)])
def test_h6_a_job_whose_scans_are_gone_has_one_progress(
    state: JobState, started: bool, text: str, percent: float | None
) -> None:
    shown = of_job(state, [], started=started)
    assert (shown.text, shown.rows, shown.percent) == (text, 0, percent)
