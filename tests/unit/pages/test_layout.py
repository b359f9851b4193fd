"""Where the boxes of a graph stand."""

import random
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from service.pages.layout import GAP_Y, HEIGHT, WIDTH, layout

edges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=80)


def test_a_view_stands_right_of_what_it_reads() -> None:
    found = layout(["view", "orders", "customers"], [("orders", "view"), ("customers", "view")])
    at = {one.key: one for one in found.placed}
    assert at["orders"].x == at["customers"].x < at["view"].x
    assert at["orders"].y < at["view"].y < at["customers"].y
    assert len(found.paths) == 2


def test_nothing_is_a_picture_without_boxes() -> None:
    found = layout([], [])
    assert found.placed == ()
    assert (found.width, found.height) == (16, 16)


def test_a_cycle_is_drawn_and_an_unknown_node_is_not() -> None:
    found = layout(["a", "b"], [("a", "b"), ("b", "a"), ("a", "gone"), ("a", "a")])
    assert len(found.placed) == 2
    assert len(found.paths) == 2


@given(edges)
def test_every_edge_goes_right_and_no_boxes_overlap(drawn: list[tuple[int, int]]) -> None:
    forward = [(min(pair), max(pair)) for pair in drawn if pair[0] != pair[1]]
    found = layout(range(31), forward)
    at = {one.key: (one.x, one.y) for one in found.placed}
    assert all(at[one][0] + WIDTH < at[other][0] for one, other in forward)
    for (x, y), (other_x, other_y) in combinations(at.values(), 2):
        assert x != other_x or abs(y - other_y) >= HEIGHT + GAP_Y
    assert all(x >= 0 and x + WIDTH <= found.width and y >= 0 and y + HEIGHT <= found.height for x, y in at.values())


def test_three_hundred_relations_have_few_crossings() -> None:
    chance = random.Random(7)
    chains = [(f"{chain}-{step}", f"{chain}-{step + 1}") for chain in range(50) for step in range(5)]
    nodes = sorted({one for edge in chains for one in edge}, key=lambda _: chance.random())
    found = layout(nodes, chains)
    at = {one.key: one for one in found.placed}
    assert len(found.placed) == 300
    ordered = [[at[one].y, at[other].y] for one, other in chains]
    crossings = sum(
        (one[0] - other[0]) * (one[1] - other[1]) < 0
        for (edge, one), (its, other) in combinations(zip(chains, ordered, strict=True), 2)
        if edge[0][-1] == its[0][-1]
    )
    assert crossings == 0
