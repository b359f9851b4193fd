"""Whose mutation a barrier carries next."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.command_turns import (
    ADDED_TOGETHER,
    ASKED_TOGETHER,
    WAITING_MAX,
    Asked,
    CommandTurns,
    check_waiting,
    counted_with,
)
from service.domain.commuting import merged
from service.domain.errors import Unavailable
from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.ids import ActorId, FragmentId, JobId, RelationId
from service.protocol.mutation import Add, Mutation, Pause, Resume, StartFragmentBackfill, Stop, Throttle, Update
from service.protocol.plan import ActorPlan, JobPlan, ScanType, TableScanPlan
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Input, Join, JoinKind, Stage

JOBS, ADDED = (1, 2, 3), (4, 5, 6)
"""The jobs that exist, and those that a queue may add. Job 5 reads job 4, the others read job 1."""
FLOODS: dict[str, Sequence[Mutation]] = {
    "pauses": [Pause(), Resume()],
    "resumes": [Resume()],
    "starts": [StartFragmentBackfill(fragments=(FragmentId(10),))],
    "limits": [Throttle(fragments={FragmentId(10): 1})],
    "updates": [Update(fragments={FragmentId(10): ()})],
    "stops": [Stop(jobs=(JobId(100),)), Stop(jobs=(JobId(101),))],
}


def relation(number: int) -> Relation:
    columns = (Column(name="id", type=ColumnType(TypeName.BIGINT)),)
    kind, key = RelationKind.MATERIALIZED_VIEW, (KeyColumn(name="id"),)
    return Relation(id=RelationId(number), name=f"r{number}", kind=kind, columns=columns, key=key)


def scan(job: int) -> FragmentId:
    return FragmentId(10 * job)


def plan(job: int) -> JobPlan:
    upstream = relation(4 if job == 5 else 1)
    query = Stage(joins=(Join(kind=JoinKind.INNER, inputs=(Input(alias="a", relation=upstream.id),)),))
    reading = TableScanPlan(
        id=scan(job), actors=(), upstream=upstream, query=query, scan_type=ScanType.ARRANGEMENT_BACKFILL
    )
    return JobPlan(id=JobId(job), relation=relation(job), fragments=(reading,))


def add(job: int) -> Add:
    return Add(jobs=(plan(job),))


def limits(scans: set[FragmentId], limit: int) -> Throttle:
    return Throttle(fragments=dict.fromkeys(sorted(scans), limit))


def adapted(scans: set[FragmentId]) -> Throttle:
    return Throttle(fragments=dict.fromkeys(sorted(scans), 7), auto=tuple(sorted(scans)))


def update(job: int, actor: int) -> Update:
    return Update(fragments={scan(job): (ActorPlan(id=ActorId(actor), vnodes=()),)})


ANY_JOB = st.sampled_from([*JOBS, *ADDED])
SCANS = st.sets(ANY_JOB.map(scan), min_size=1, max_size=3)
MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    st.builds(limits, SCANS, st.integers(0, 9)),
    SCANS.map(adapted),
    SCANS.map(lambda scans: StartFragmentBackfill(fragments=tuple(sorted(scans)))),
    st.sampled_from([Pause(), Resume()]),
    ANY_JOB.map(lambda job: Stop(jobs=(JobId(job),))),
    st.sampled_from(ADDED).map(add),
    st.builds(update, ANY_JOB, st.integers(1, 9)),
)


def jobs_of(mutation: Mutation) -> frozenset[JobId]:
    return frozenset(JobId(one // 10) for one in mutation.fragments) if isinstance(mutation, Update) else frozenset()


def asked(caller: str, mutation: Mutation) -> Asked:
    return Asked(caller, mutation, jobs_of(mutation))


QUEUES = st.lists(st.builds(asked, st.sampled_from("abcd"), MUTATIONS), max_size=30)


@dataclass
class Graph:
    """What mutations do: what each scan of a job that runs is told, and what its job found when it began."""

    paused: bool = False
    scans: dict[FragmentId, list[object]] = field(default_factory=lambda: {scan(one): [None, True, ()] for one in JOBS})
    found: dict[int, bool] = field(default_factory=dict[int, bool])

    def apply(self, mutation: Mutation) -> None:
        match mutation:
            case Pause() | Resume():
                self.paused = isinstance(mutation, Pause)
            case Stop(jobs=stopped):
                for job in stopped:
                    self.scans.pop(scan(job), None)
            case Add(jobs=plans):
                for one in plans:
                    self.found[one.id] = scan(one.table_scans[0].upstream.id) in self.scans
                    self.scans[scan(one.id)] = [None, True, ()]
            case _:
                for one, (what, said) in self._said(mutation).items():
                    if one in self.scans:
                        self.scans[one][what] = said

    def _said(self, mutation: Mutation) -> dict[FragmentId, tuple[int, object]]:
        match mutation:
            case Throttle(fragments=limits, auto=auto):
                return {one: (0, (limit, one in auto)) for one, limit in limits.items()}
            case StartFragmentBackfill(fragments=started):
                return dict.fromkeys(started, (1, False))
            case Update(fragments=fragments):
                return {one: (2, actors) for one, actors in fragments.items()}
            case _:
                raise AssertionError(mutation)


def together(mutations: Sequence[Mutation]) -> Mutation:
    adds = [plan for one in mutations if isinstance(one, Add) for plan in one.jobs]
    return Add(jobs=tuple(adds)) if adds else merged(mutations)


def throttle(caller: str, scan: int) -> Asked:
    return Asked(caller, Throttle(fragments={FragmentId(scan): 1}))


def barriers(waiting: Sequence[Asked], turns: CommandTurns | None = None) -> list[list[int]]:
    """Return the places of the mutations that each barrier carries, until none waits."""
    turns = CommandTurns() if turns is None else turns
    left, order = list(range(len(waiting))), list[list[int]]()
    while left:
        places = turns.next([waiting[one] for one in left])
        order.append([left[place] for place in places])
        assert places, "none of the mutations that wait is carried"
        left = [one for number, one in enumerate(left) if number not in places]
    return order


def carrying(order: Sequence[Sequence[int]], one: int) -> int:
    return next(number for number, carried in enumerate(order) if one in carried)


@given(QUEUES)
def test_i4_the_state_is_that_of_the_order_of_asking(waiting: list[Asked]) -> None:
    expected, found = Graph(), Graph()
    waiting = _added_once(waiting)
    for one in waiting:
        expected.apply(one.mutation)
    for carried in barriers(waiting):
        found.apply(together([waiting[place].mutation for place in carried]))
    assert found == expected


def _added_once(waiting: Sequence[Asked]) -> list[Asked]:
    """A job is added before all else that names it, and nothing updates or stops what it reads or is no more."""
    added, kept = set[int](), list[Asked]()
    for one in waiting:
        if isinstance(one.mutation, Add):
            job = one.mutation.jobs[0].id
            if job in added or (job == 5 and 4 not in added):
                continue
            added.add(job)
        if isinstance(one.mutation, Stop) and one.mutation.jobs[0] in (1, 4):
            continue  # a job with readers is not stopped before them
        kept.append(one)
    return kept


@given(QUEUES)
def test_i4_a_caller_keeps_its_order_and_a_pause_its_place_among_resumes(waiting: list[Asked]) -> None:
    order = [place for carried in barriers(waiting) for place in carried]
    assert sorted(order) == list(range(len(waiting)))
    for caller in "abcd":
        its = [place for place in order if waiting[place].caller == caller]
        assert its == sorted(its)
    paused = [place for place in order if isinstance(waiting[place].mutation, Pause | Resume)]
    assert paused == sorted(paused)


@given(QUEUES)
def test_i4_a_barrier_carries_one_kind_and_only_so_many(waiting: list[Asked]) -> None:
    for carried in barriers(waiting):
        kinds = {type(waiting[place].mutation) for place in carried}
        assert len(kinds) == 1
        assert len(carried) == 1 or kinds.isdisjoint({Stop, Update})
        assert len(carried) <= (ADDED_TOGETHER if kinds == {Add} else ASKED_TOGETHER)


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("other", [add(4), Stop(jobs=(JobId(2),)), Throttle(fragments={scan(3): 1})])
def test_i13_a_flood_of_any_kind_delays_the_mutation_of_another_by_one(flood: str, other: Mutation) -> None:
    kinds = FLOODS[flood]
    waiting = [asked("flood", kinds[number % len(kinds)]) for number in range(200)]
    order = barriers([*waiting, asked("other", other)])
    assert carrying(order, len(waiting)) <= 1


def test_i13_a_flood_of_adds_delays_the_add_of_another_by_one() -> None:
    """I13: eight of 60 tables fill a barrier, and the table of another is in the next one."""
    waiting = [asked("flood", Add(jobs=(plan(100 + number),))) for number in range(60)]
    turns = CommandTurns()
    assert turns.next(waiting) == list(range(ADDED_TOGETHER))
    waiting = [*waiting[ADDED_TOGETHER:], asked("other", add(4))]
    assert len(waiting) - 1 in turns.next(waiting)


def test_i13_equal_mutations_are_answered_with_one_barrier() -> None:
    waiting = [*([asked("a", Resume())] * 5), asked("b", Resume()), asked("a", Pause()), asked("b", Resume())]
    assert barriers(waiting) == [[0, 1, 2, 3, 4, 5], [6], [7]]


def test_i4_limits_that_share_a_barrier_end_as_the_last_one() -> None:
    one, two, three = (FragmentId(number) for number in (1, 2, 3))
    limits = [Throttle(fragments={one: 5, two: 6}, auto=(one, two)), Throttle(fragments={two: 7, three: 8}, auto=())]
    assert merged(limits) == Throttle(fragments={one: 5, two: 7, three: 8}, auto=(one,))
    starts = [StartFragmentBackfill(fragments=(one, two)), StartFragmentBackfill(fragments=(two, three))]
    assert merged(starts) == StartFragmentBackfill(fragments=(one, two, three))


@given(st.lists(st.integers(1, 3), min_size=2, max_size=12), st.integers(1, 40))
def test_i13_a_flood_of_limits_delays_each_other_mutation_by_one(others: list[int], flood: int) -> None:
    waiting = [throttle("flood", 100) for _ in range(flood)] + [throttle(f"other {n}", n) for n, _ in enumerate(others)]
    order = barriers(waiting)
    places = [carrying(order, flood + n) for n in range(len(others))]
    assert all(after - before <= 1 for before, after in pairwise(places))
    assert places[0] <= 1


def test_i13_callers_take_turns() -> None:
    turns = CommandTurns()
    one, two = Stop(jobs=(JobId(1),)), Stop(jobs=(JobId(2),))
    waiting = [asked("a", one), asked("a", one), asked("b", two), asked("a", one), asked("b", two)]
    assert barriers(waiting, turns) == [[0], [2], [1], [4], [3]]
    # Who was carried last comes last next time.
    assert barriers([asked("a", one), asked("b", two)], turns) == [[1], [0]]


def test_i13_so_many_commands_of_a_caller_wait_and_no_more() -> None:
    check_waiting("a", WAITING_MAX - 1)
    with pytest.raises(Unavailable, match=f"{WAITING_MAX} commands of a wait for barriers"):
        check_waiting("a", WAITING_MAX)
    kinds, most = counted_with("resume") or (frozenset[str](), 0)
    assert (kinds, most) == ({"pause", "resume", "start_fragment_backfill"}, 20)
    with pytest.raises(Unavailable, match="20 commands of a wait for barriers, and at most 20 may"):
        check_waiting("a", 20, most=most)
    assert counted_with(None) is None
