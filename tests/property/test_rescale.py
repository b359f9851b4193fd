"""A rescale moves vnodes between actors, each with its position and its rows; none is lost, none comes twice (I11)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.protocol.ids import ActorId, FragmentId, Vnode
from service.protocol.plan import ActorPlan, PositionState, ScanType, TableScanPlan, VnodePosition
from service.protocol.vnodes import Runs, runs_of, vnodes_of
from tests.support.projections import projection
from tests.support.state_store import relation
from workers.backfill.budget import Budget
from workers.backfill.positions import Positions, redistributed
from workers.backfill.scan import ActorState, ScanState

VNODES = 12
UPSTREAM = relation(1, "t")
SCAN = TableScanPlan(
    id=FragmentId(1),
    actors=(),
    upstream=UPSTREAM,
    query=projection(UPSTREAM, UPSTREAM),
    scan_type=ScanType.ARRANGEMENT_BACKFILL,
)
KEYS = st.tuples(st.none() | st.text(max_size=3))


@st.composite
def owners(draw: st.DrawFn) -> list[Runs]:
    """Deal out all vnodes, to no particular neighbours; every actor has one."""
    shuffled = draw(st.permutations(range(VNODES)))
    cuts = sorted(draw(st.sets(st.integers(1, VNODES - 1))))
    edges = [0, *cuts, VNODES]
    return [runs_of(shuffled[first:last]) for first, last in pairwise(edges)]


def positions(vnode: int) -> st.SearchStrategy[VnodePosition | None]:
    rows = st.integers(0, 1_000_000)
    reading = st.builds(VnodePosition, vnode=st.just(vnode), state=st.just("in_progress"), key=KEYS, rows=rows)
    complete = st.builds(VnodePosition, vnode=st.just(vnode), state=st.just("completed"), rows=rows)
    return st.none() | reading | complete


STORED = st.tuples(*(positions(vnode) for vnode in range(VNODES)))


def dealt_out(owned: list[Runs], stored: tuple[VnodePosition | None, ...]) -> list[Positions]:
    return [
        Positions(runs, {vnode: one for vnode in vnodes_of(runs) if (one := stored[vnode]) is not None})
        for runs in owned
    ]


def by_vnode(actors: list[Positions]) -> list[tuple[int, VnodePosition | None]]:
    """Every vnode of every actor, with where it stands."""
    return sorted(
        ((vnode, actor.by_vnode.get(vnode)) for actor in actors for vnode in vnodes_of(actor.runs)),
        key=lambda pair: pair[0],
    )


@given(owners(), owners(), STORED)
def test_every_vnode_keeps_its_position_and_has_one_owner(
    before: list[Runs], after: list[Runs], stored: tuple[VnodePosition | None, ...]
) -> None:
    held = dealt_out(before, stored)
    dealt = redistributed(held, after)
    assert [actor.runs for actor in dealt] == after
    assert by_vnode(dealt) == list(enumerate(stored))
    assert all(set(actor.by_vnode) <= set(vnodes_of(actor.runs)) for actor in dealt)
    assert sum(actor.rows for actor in dealt) == sum(actor.rows for actor in held)
    assert all(actor.completed for actor in dealt) == all(actor.completed for actor in held)


@given(owners(), owners(), STORED)
def test_there_and_back_changes_nothing(
    before: list[Runs], after: list[Runs], stored: tuple[VnodePosition | None, ...]
) -> None:
    held = dealt_out(before, stored)
    assert redistributed(redistributed(held, after), before) == held


@given(owners(), owners(), STORED)
def test_what_was_not_told_yet_is_told_by_the_new_owner(
    before: list[Runs], after: list[Runs], stored: tuple[VnodePosition | None, ...]
) -> None:
    held = dealt_out(before, stored)
    for actor in held:
        actor.changed.update(actor.by_vnode)
    told = [one for actor in redistributed(held, after) for one in actor.take_changed()]
    assert sorted(told, key=lambda one: one.vnode) == [one for one in stored if one is not None]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([((0, 2),)], id="lost"),
        pytest.param([((0, 4),)], id="made"),
        pytest.param([((0, 2),), ((2, 3),)], id="shared"),
        pytest.param([((0, 1), (1, 3))], id="owned twice"),
    ],
)
def test_a_layout_that_is_not_the_same_vnodes_is_no_rescale(after: list[Runs]) -> None:
    with pytest.raises(AssertionError):
        redistributed([Positions(((0, 1),)), Positions(((2, 3),))], after)


@given(owners(), owners(), st.data())
def test_a_finished_scan_whose_positions_were_left_out_loses_nothing(
    before: list[Runs], after: list[Runs], data: st.DataObject
) -> None:
    """I11: it is as finished as it was, with as many rows, and so it is after a rescale."""
    rows = data.draw(st.lists(st.integers(0, 1_000_000), min_size=len(before), max_size=len(before)))
    actors = tuple(ActorPlan(id=ActorId(n), vnodes=runs, rows=rows[n]) for n, runs in enumerate(before))
    plan = SCAN.model_copy(update={"actors": actors, "finished": True})
    scan = ScanState.of(plan, now=0.0)
    assert (scan.finished, [actor.positions.rows for actor in scan.actors]) == (True, rows)
    assert not scan.may_read(paused=False)
    scan.rescale([ActorPlan(id=ActorId(n), vnodes=runs) for n, runs in enumerate(after)], now=1.0)
    assert (scan.finished, sum(actor.positions.rows for actor in scan.actors)) == (True, sum(rows))


def test_new_actors_take_the_present_limit_and_start_with_empty_buckets() -> None:
    """I4: the limit is per actor, and outlives a rescale; what the old actors had saved up does not."""
    done = VnodePosition(vnode=Vnode(1), state=PositionState.COMPLETED, rows=7)
    old = ActorState(ActorId(1), Positions(((0, 1),), {1: done}), Budget(limit=10, at=0.0, tokens=9.0))
    scan = ScanState(FragmentId(1), [old], waiting=True)
    scan.throttle(4, now=1.0)
    scan.rescale([ActorPlan(id=ActorId(one), vnodes=((one - 2, one - 2),)) for one in (2, 3)], now=2.0)
    assert [(actor.id, actor.budget) for actor in scan.actors] == [
        (ActorId(2), Budget(4, 2.0)),
        (ActorId(3), Budget(4, 2.0)),
    ]
    assert [actor.positions.rows for actor in scan.actors] == [0, 7]
    assert (scan.waiting, scan.finished) == (True, False)
