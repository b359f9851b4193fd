"""Positions, budget and pace, one decision at a time; `tests/property/test_arrangement.py` has them all at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.protocol.ids import ActorId, FragmentId, JobId, Vnode
from service.protocol.plan import ActorPlan, PositionState, ScanType, TableScanPlan, VnodePosition
from tests.support.projections import projection
from tests.support.state_store import relation
from workers.backfill.budget import Budget
from workers.backfill.order import Position
from workers.backfill.pace import (
    COPYING,
    PAGE_BYTES,
    PAGE_ROWS_MIN,
    ROWS_AIM,
    SLICE_MIN_SECONDS,
    SLICE_SHARE_MIN,
    SPARE_SHARE,
    Pace,
    epoch_seconds,
    page_rows_after,
    share_of,
)
from workers.backfill.positions import Block, PageSize, Positions, Span, pages, samples, share_of_page
from workers.backfill.scan import ScanState, report
from workers.runners.history import HistoryScan


@dataclass(frozen=True)
class Counted:
    """A page of which only the counts matter."""

    rows: Mapping[int, int] = field(default_factory=dict[int, int])
    reached: Mapping[int, Position | None] = field(default_factory=dict[int, Position | None])


def completed(vnode: int, rows: int = 0) -> VnodePosition:
    return VnodePosition(vnode=Vnode(vnode), state=PositionState.COMPLETED, rows=rows)


def in_progress(vnode: int, key: str, rows: int) -> VnodePosition:
    return VnodePosition(vnode=Vnode(vnode), state=PositionState.IN_PROGRESS, key=(key,), rows=rows)


def at(*positions: VnodePosition, runs: tuple[tuple[int, int], ...] = ((0, 3), (8, 9)), block: int = 32) -> Positions:
    return Positions(runs, {position.vnode: position for position in positions}, block_vnodes=block)


@pytest.mark.parametrize(
    ("positions", "block"),
    [
        (at(), [Span(0), Span(1), Span(2), Span(3), Span(8), Span(9)]),
        (at(completed(0), in_progress(2, "k", 1)), [Span(1), Span(2, ("k",), 1), Span(3), Span(8), Span(9)]),
        (at(*map(completed, range(4))), [Span(8), Span(9)]),
        (at(*map(completed, (0, 1, 2, 3, 8, 9))), []),
        (at(runs=((30, 33), (64, 64))), [Span(30), Span(31)]),
        (at(completed(30), completed(31), runs=((30, 33), (64, 64))), [Span(32), Span(33)]),
        (at(*map(completed, range(30, 34)), runs=((30, 33), (64, 64))), [Span(64)]),
        (at(block=1), [Span(0)]),
        (at(in_progress(0, "k", 1), block=1), [Span(0, ("k",), 1)]),
        (at(completed(0), block=1), [Span(1)]),
        (at(*map(completed, range(4)), in_progress(8, "k", 1), block=1), [Span(8, ("k",), 1)]),
        (at(*map(completed, (0, 1, 2, 3, 8, 9)), block=1), []),
    ],
)
def test_the_next_block(positions: Positions, block: list[Span]) -> None:
    assert positions.next_block() == block
    assert positions.completed is (block == [])


def test_a_position_that_is_put_again_counts_once() -> None:
    positions, there = at(completed(0)), (0, 1, 2, 3, 8, 9)
    for one in (completed(0), *map(completed, there[1:]), in_progress(9, "k", 1), in_progress(9, "l", 2), completed(9)):
        positions.put(one)
        done = {vnode for vnode, at in positions.by_vnode.items() if at.state is PositionState.COMPLETED}
        assert positions.completed is (done == set(there))
    assert positions.completed


def test_a_page_moves_the_vnodes_that_it_reached() -> None:
    """Those that gave nothing as well, to its end; those that stand further stay."""
    positions = at(in_progress(2, "z", 5))
    block = positions.next_block()
    assert (positions.rows, block[2]) == (5, Span(2, ("z",), 5))
    positions.record(block, Counted({0: 2, 1: 3}, {0: ("k",), 1: ("k",), 3: ("k",)}))
    assert positions.take_changed() == (in_progress(0, "k", 2), in_progress(1, "k", 3), in_progress(3, "k", 0))
    assert positions.take_changed() == ()
    positions.record(positions.next_block(), Counted({1: 3}, {0: None, 1: None, 2: None}))
    assert positions.take_changed() == (completed(0, 2), completed(1, 6), completed(2, 5))


@pytest.mark.parametrize(
    "page",
    [
        Counted(),
        Counted({0: 1}, {1: ("k",)}),
        Counted({}, {7: ("k",)}),
    ],
)
def test_a_page_that_leads_nowhere_or_elsewhere_is_a_mistake(page: Counted) -> None:
    with pytest.raises(AssertionError):
        at().record([Span(0), Span(1)], page)


@pytest.mark.parametrize(
    ("block", "sampled"),
    [
        ([Span(0)], [[0]]),
        ([Span(0), Span(1)], [[0], [0, 1]]),
        ([Span(0, ("k",), 5), Span(1)], [[1]]),
        ([Span(0, ("k",), 5), Span(1, ("k",), 7), Span(2, ("k",), 6)], [[1], [1, 2, 0]]),
        # Where they stand is behind, as far as rows can tell.
        ([Span(0, ("z",), 50), Span(1, ("k",), 7), Span(2, ("k",), 6)], [[1], [1, 2]]),
        ([Span(0, ("z",), 5), Span(1, ("k",), 90), Span(2, ("z",), 7)], [[2], [2, 0]]),
        ([Span(vnode) for vnode in range(32)], [[0], [0, 1, 2, 3]]),
    ],
)
def test_the_vnodes_whose_keys_say_where_a_page_ends(block: list[Span], sampled: list[list[int]]) -> None:
    assert [[span.vnode for span in some] for some in samples(block)] == sampled


@pytest.mark.parametrize(
    ("rows", "some", "block", "share"), [(64, 1, 32, 2), (64, 4, 32, 8), (7, 2, 2, 7), (3, 1, 8, 1)]
)
def test_some_vnodes_have_their_share_of_a_page(rows: int, some: int, block: int, share: int) -> None:
    assert share_of_page(rows, [Span(vnode) for vnode in range(some)], [Span(vnode) for vnode in range(block)]) == share


@pytest.mark.parametrize(
    ("permits", "asked"),
    [
        (None, [PageSize(5, exact=False)] * 3),
        (12, [PageSize(5, exact=True), PageSize(5, exact=True), PageSize(2, exact=True)]),
        (5, [PageSize(5, exact=True)]),
        (1, [PageSize(1, exact=True)]),
        (0, []),
    ],
)
def test_pages_ask_for_no_more_than_is_permitted(permits: int | None, asked: list[PageSize]) -> None:
    """I4: permits are counted to the row; without a limit a page may have more rows than it was to have."""
    told: list[PageSize] = []

    def full(block: Block, size: PageSize) -> Counted:
        told.append(size)
        rows = size.rows if size.exact else size.rows + 3
        return Counted({block[0].vnode: rows}, {s.vnode: (str(len(told)),) for s in block})

    read = pages(at(runs=((0, 1),)), full, page_rows=lambda: 5, permits=permits, more_time=lambda: len(told) < 3)
    assert [sum(page.rows.values()) for page in read] == [one.rows + (0 if one.exact else 3) for one in asked]
    assert told == asked


def test_a_page_of_more_rows_than_were_permitted_is_a_mistake() -> None:
    """I4."""
    read = pages(
        at(),
        lambda _block, size: Counted({0: size.rows + 1}, {0: ("k",)}),
        page_rows=lambda: 5,
        permits=5,
        more_time=lambda: True,
    )
    with pytest.raises(AssertionError):
        next(read)


@pytest.mark.parametrize(("rows", "read"), [(0, 3), (2, 3), (3, 1)])
def test_without_any_time_about_a_page_of_rows_is_read(rows: int, read: int) -> None:
    """However many blocks it takes: of a tiny table all of them."""
    every = at(runs=((0, 0), (32, 32), (64, 64)))

    def first(block: Block, _size: PageSize) -> Counted:
        vnode = block[0].vnode
        return Counted({vnode: rows if vnode == 0 else 0}, {vnode: None})

    assert len(list(pages(every, first, page_rows=lambda: 5, permits=None, more_time=lambda: False))) == read


@settings(derandomize=True, max_examples=300)
@given(
    st.integers(1, 50),
    st.sampled_from([0.05, 0.5, 1.0, 5.0]),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 100)), max_size=60),
)
def test_a_budget_keeps_its_limit_over_every_window(
    limit: int, interval: float, epochs: list[tuple[float, int]]
) -> None:
    """I4: at most n * w rows and one bucket in any window of w seconds, the bucket being empty at first."""
    budget, now = Budget(limit, 0.0), 0.0
    reads: list[tuple[float, int]] = []
    for elapsed, wanted in epochs:
        now += elapsed
        budget = budget.refilled(now, interval_seconds=interval)
        permits = budget.permits
        assert permits is not None
        rows = min(permits, wanted)
        budget = budget.spent(rows)
        reads.append((now, rows))
    assert sum(rows for _, rows in reads) <= limit * now + 1e-6
    for first, (start, _) in enumerate(reads):
        window = sum(rows for _, rows in reads[first:])
        assert window <= limit * (now - start) + max(1.0, limit * interval) + 1e-6


def test_a_budget_gives_what_it_promises() -> None:
    """A limit is not only a ceiling: an actor that reads all it may gets n rows a second, within one."""
    budget, read = Budget(7, 0.0), 0
    for tick in range(1, 1001):
        budget = budget.refilled(tick / 10, interval_seconds=1.0)
        rows = budget.permits or 0
        budget, read = budget.spent(rows), read + rows
    assert 699 <= read <= 700


def test_edges_of_a_budget() -> None:
    unlimited = Budget(None, 0.0).refilled(9.0, interval_seconds=1.0)
    assert (unlimited.permits, unlimited.spent(10**9)) == (None, unlimited)
    assert Budget(0, 0.0).refilled(1e9, interval_seconds=1.0).permits == 0
    assert Budget(1, 0.0).refilled(1e9, interval_seconds=0.05).permits == 1, "a slow limit saves up one whole row"
    back = Budget(5, 10.0).refilled(4.0, interval_seconds=1.0)
    assert back.permits == 0, "time that goes back refills nothing"
    assert Budget(5, 0.0, 5.0).throttled(9, now=1.0) == Budget(9, 1.0)
    owing = Budget(5, 0.0, 2.0).spent(9)
    assert owing.permits == 0, "what was read beyond the permits is waited for"
    assert [owing.refilled(now, interval_seconds=1.0).permits for now in (1.0, 1.4, 1.6)] == [0, 0, 1]


def test_the_slice_is_what_the_epoch_leaves() -> None:
    pace = Pace(overhead_seconds=0.0)
    for _ in range(30):
        pace = pace.measured(job_seconds=pace.slice_seconds(1.0) + 0.4, slice_seconds=pace.slice_seconds(1.0))
    assert pace.slice_seconds(1.0) == pytest.approx(0.6, abs=0.01)
    for _ in range(30):
        pace = pace.measured(job_seconds=9.0, slice_seconds=0.1)
    assert pace.slice_seconds(1.0) == SLICE_SHARE_MIN, "history goes on however busy the machine"
    assert pace.slice_seconds(0.1) == SLICE_MIN_SECONDS
    assert Pace(0.2).measured(job_seconds=0.1, slice_seconds=0.5).overhead_seconds < 0.2


def test_an_epoch_that_holds_nobody_up_may_take_longer() -> None:
    """I4, I5: others wait for an interval at most; and a pause, asked for as such an epoch begins, acts within two."""
    assert epoch_seconds(1.5, alone=False) == 1.5
    assert 1 < epoch_seconds(1.0, alone=True) < 2 - 2 * COPYING.overhead_seconds


@pytest.mark.parametrize(
    ("page_rows", "rows", "size_bytes", "seconds", "expected"),
    [
        (2_000, 0, 0, 0.0, 2_000),
        (2_000, 999, 999 << 20, 0.99, 2_000),
        # Of a small table whose rows take long, no page is whole.
        (2_000, 600, 0, 12.0, PAGE_ROWS_MIN),
        (2_000, 2_000, 2_000 * 1024, 0.0, PAGE_BYTES // 1024),
        (2_000, 2_000, 0, 0.0, 8_000),
        (20_000, 20_000, 20_000, 0.0, ROWS_AIM.rows_max),
        (2_000, 2_000, 2_000 << 20, 0.0, PAGE_ROWS_MIN),
        (2_000, 1_000, 0, 2 * ROWS_AIM.seconds, 500),
        (2_000, 2_000, 2_000 * 1024, 4 * ROWS_AIM.seconds, 500),
        (2_000, 2_000, 0, 60.0, PAGE_ROWS_MIN),
        # A page that was made smaller because it did not come in time stays small while pages come slowly.
        (6, 6, 600, 1.5, 6),
        (6, 6, 600, 0.001, 24),
    ],
)
def test_a_page_keeps_near_its_bytes_and_its_time(
    page_rows: int, rows: int, size_bytes: int, seconds: float, expected: int
) -> None:
    """I8."""
    assert page_rows_after(page_rows, rows=rows, size_bytes=size_bytes, seconds=seconds) == expected


def test_jobs_share_what_is_left_of_an_interval() -> None:
    assert share_of(1.0, elapsed_seconds=0.5, jobs=2) == pytest.approx((0.5 - SPARE_SHARE) / 2)
    assert share_of(1.0, elapsed_seconds=3.0, jobs=2) == 0.0
    assert share_of(1.0, elapsed_seconds=0.0, jobs=0) == pytest.approx(1.0 - SPARE_SHARE)


UPSTREAM = relation(1, "t")


def scanning(actors: tuple[ActorPlan, ...], **values: Any) -> TableScanPlan:
    return TableScanPlan(
        id=FragmentId(7),
        actors=actors,
        upstream=UPSTREAM,
        query=projection(UPSTREAM, UPSTREAM),
        scan_type=ScanType.ARRANGEMENT_BACKFILL,
        **values,
    )


def test_a_scan_is_built_from_what_is_stored() -> None:
    actors = tuple(
        ActorPlan(id=ActorId(i), vnodes=((i, i),), positions=(completed(i, 10 * i),) if i else ()) for i in (0, 1, 2)
    )
    scan = ScanState.of(scanning(actors, rate_limit=5, waiting=True), now=3.0)
    assert (scan.id, scan.waiting, scan.finished) == (7, True, False)
    assert [actor.positions.completed for actor in scan.actors] == [False, True, True]
    assert {actor.budget for actor in scan.actors} == {Budget(5, 3.0)}
    scan.throttle(0, now=4.0)
    assert {actor.budget for actor in scan.actors} == {Budget(0, 4.0)}
    told = report(
        scan,
        scan.actors[2],
        changed=[completed(2, 20)],
        completed=False,
        finished=True,
        snapshot_rows=1,
        upstream_rows=2,
    )
    assert (told.actor, told.fragment, told.rows, told.finished) == (2, 7, 20, True)
    assert told.positions == (completed(2, 20),)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_the_end_of_history_is_told_in_its_own_epoch_only(last: bool, finished: bool) -> None:
    positions = (completed(0, 1), completed(1, 1)) if last else (completed(0, 1),)
    actors = (ActorPlan(id=ActorId(1), vnodes=((0, 1),), positions=positions),)
    scan = ScanState.of(scanning(actors), now=0.0)
    history = HistoryScan(JobId(1), relation(1, "t"), scan)
    (told,) = history.reports({}, finishing=finished, forwarded=lambda _: 0)
    assert told.completed == (last and not finished)
