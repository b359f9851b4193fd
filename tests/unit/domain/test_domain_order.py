"""Which scans wait for their place, from what is recorded."""

from itertools import pairwise

import pytest

from service.domain.order import Order, OrderedScan, awaited, dependents
from service.protocol.ids import FragmentId, RelationId

A, B, C, D = (RelationId(one) for one in range(1, 5))
CHAIN = ((A, B), (B, C))
DIAMOND = ((A, B), (A, C), (B, D), (C, D))


def waits(order: Order, finished: str, *relations: RelationId) -> dict[FragmentId, tuple[RelationId, ...]]:
    """Number the scans of `relations` from 0; those whose number is in `finished` have finished."""
    scans = [OrderedScan(FragmentId(n), one, finished=str(n) in finished) for n, one in enumerate(relations)]
    return dict(awaited(order, scans))


@pytest.mark.parametrize(
    ("order", "finished", "relations", "expected"),
    [
        ((), "", (A, B), {}),
        (CHAIN, "", (A, B, C), {1: (A,), 2: (B,)}),
        (CHAIN, "0", (A, B, C), {2: (B,)}),
        (CHAIN, "01", (A, B, C), {}),
        # b was started by hand and is done: it counts once a is.
        (CHAIN, "1", (A, B, C), {1: (A,), 2: (B,)}),
        (CHAIN, "12", (A, B, C), {1: (A,), 2: (B,)}),
        # Nobody else than the named ones waits.
        (((A, B),), "", (A, B, C), {1: (A,)}),
        # A relation that is scanned twice is one node, before and behind an arrow.
        (((A, B),), "0", (A, B, A, B), {1: (A,), 3: (A,)}),
        (((A, B),), "02", (A, B, A, B), {}),
        (CHAIN, "01", (A, B, B, C), {3: (B,)}),
        (DIAMOND, "0", (A, B, C, D), {3: (B, C)}),
        (DIAMOND, "01", (A, B, C, D), {3: (C,)}),
        (DIAMOND, "012", (A, B, C, D), {}),
        # Said twice is said once.
        (((A, B), (A, B)), "", (A, B), {1: (A,)}),
    ],
)
def test_what_waits_and_for_what(
    order: Order, finished: str, relations: tuple[RelationId, ...], expected: dict[int, tuple[RelationId, ...]]
) -> None:
    assert waits(order, finished, *relations) == expected


@pytest.mark.timeout(60)
def test_i13_a_long_order_takes_little_time() -> None:
    """An order of 18,000 edges stalled the service for 2 s, again and again."""
    nodes = [RelationId(one) for one in range(1, 20_001)]
    chain = tuple(pairwise(nodes))
    assert len(waits(chain, "", *nodes)) == len(chain)
    # The last one of a chain that is through waits for nothing, and each of the others had to be looked at for that.
    done = [OrderedScan(FragmentId(one), one, finished=one != nodes[-1]) for one in nodes]
    assert awaited(chain, done) == {}
    assert waits(chain[:10], "0", *nodes) == {n: (RelationId(n),) for n in range(2, 11)}


def test_dependents_are_those_behind_an_arrow() -> None:
    assert dependents(DIAMOND) == {B, C, D}
    assert dependents(()) == frozenset()
