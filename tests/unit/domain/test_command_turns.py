"""Whose mutation a barrier carries next."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.command_turns import WAITING_MAX, Asked, CommandTurns, check_waiting
from service.domain.errors import Unavailable
from service.protocol.ids import FragmentId, JobId
from service.protocol.mutation import Mutation, Pause, Resume, StartFragmentBackfill, Stop, Throttle

SCANS = st.sets(st.integers(1, 5).map(FragmentId), min_size=1, max_size=3)
MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    SCANS.map(lambda scans: Throttle(fragments=dict.fromkeys(scans, 7))),
    SCANS.map(lambda scans: StartFragmentBackfill(fragments=tuple(sorted(scans)))),
    st.sampled_from([Pause(), Resume(), Stop(jobs=(JobId(1),))]),
)
QUEUES = st.lists(st.builds(Asked, st.sampled_from("abcd"), MUTATIONS), max_size=30)


def throttle(caller: str, scan: int) -> Asked:
    return Asked(caller, Throttle(fragments={FragmentId(scan): 1}))


def drained(waiting: list[Asked], turns: CommandTurns | None = None) -> list[int]:
    """Return the places of all mutations in the order in which barriers carry them."""
    turns = CommandTurns() if turns is None else turns
    left, order = list(range(len(waiting))), list[int]()
    while left:
        places = turns.next([waiting[one] for one in left])
        order.extend(left[place] for place in places)
        assert places, "none of the mutations that wait is carried"
        left = [one for number, one in enumerate(left) if number not in places]
    return order


def scans(mutation: Mutation) -> set[FragmentId]:
    return set(mutation.fragments) if isinstance(mutation, Throttle | StartFragmentBackfill) else set()


@given(QUEUES)
def test_i4_what_does_not_commute_keeps_its_order(waiting: list[Asked]) -> None:
    order = drained(waiting)
    place = {one: number for number, one in enumerate(order)}
    assert sorted(order) == list(range(len(waiting)))
    for later, after in enumerate(waiting):
        for earlier, before in enumerate(waiting[:later]):
            limits = isinstance(before.mutation, Throttle)
            apart = limits and not scans(before.mutation) & scans(after.mutation) and before.caller != after.caller
            assert apart or place[earlier] < place[later]


@given(st.lists(st.integers(1, 3), min_size=2, max_size=12), st.integers(1, 40))
def test_i13_a_flood_of_limits_delays_each_other_mutation_by_one(others: list[int], flood: int) -> None:
    waiting = [throttle("flood", 100) for _ in range(flood)] + [throttle(f"other {n}", n) for n, _ in enumerate(others)]
    order = drained(waiting)
    places = [order.index(flood + n) for n in range(len(others))]
    assert all(after - before == 1 for before, after in pairwise(places))
    assert places[0] <= 1


def test_i13_callers_take_turns() -> None:
    turns = CommandTurns()
    waiting = [throttle("a", 1), throttle("a", 1), throttle("b", 2), throttle("a", 1), throttle("b", 2)]
    assert drained(waiting, turns) == [0, 2, 1, 4, 3]
    # Who was carried last comes last next time.
    assert drained([throttle("a", 1), throttle("b", 2)], turns) == [1, 0]


def test_i13_so_many_commands_of_a_caller_wait_and_no_more() -> None:
    check_waiting("a", WAITING_MAX - 1)
    with pytest.raises(Unavailable, match=f"{WAITING_MAX} commands of a wait for barriers"):
        check_waiting("a", WAITING_MAX)
