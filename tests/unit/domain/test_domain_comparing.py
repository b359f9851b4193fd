"""What truly differs between a table and the one that it follows, and what is only late."""

from service.domain.comparing import Pair, Part, cut, pairs, settled


def test_only_keys_that_differ_are_read_again() -> None:
    wanted, held = {("1",): 5, ("2",): 6, ("3",): 7}, {("1",): 5, ("2",): 8, ("4",): 9}
    assert pairs(wanted, held) == {("2",): Pair(6, 8), ("3",): Pair(7, None), ("4",): Pair(None, 9)}


def test_a_key_differs_when_it_did_so_in_the_same_way_before() -> None:
    before = {("late",): Pair(1, None), ("lost",): Pair(2, None), ("moving",): Pair(3, 4)}
    now = {("lost",): Pair(2, None), ("moving",): Pair(5, 4)}
    said = settled(before, now)
    assert said.differing == {("lost",): Pair(2, None)}
    assert said.open == {("moving",): Pair(5, 4)}


def test_parts_by_vnode_hold_every_vnode_once() -> None:
    assert cut(Part(), 256, 0) == [Part(vnodes=(0, 255))]
    parts = [part.vnodes for part in cut(Part(), 256, 130_000)]
    assert parts == [(0, 84), (85, 169), (170, 255)]
    assert len(cut(Part(), 2, 10**9)) == 2


def test_a_part_is_cut_within_its_bounds() -> None:
    part = Part(("a",), ("b",), (4, 6))
    assert cut(part, 256, 100_000) == [Part(("a",), ("b",), (4, 4)), Part(("a",), ("b",), (5, 6))]
    assert cut(Part(("a",), None, (7, 7)), 256, 10**9) == [Part(("a",), None, (7, 7))]
