"""Runs of vnodes, and the vnode of a key."""

from hypothesis import given, settings
from hypothesis import strategies as st

from service.protocol.vnodes import runs_of, vnode_of, vnodes_of


@settings(max_examples=300, derandomize=True)
@given(st.sets(st.integers(0, 300)))
def test_runs_and_vnodes_are_inverse(vnodes: set[int]) -> None:
    runs = runs_of(vnodes)
    assert vnodes_of(runs) == tuple(sorted(vnodes))
    assert runs_of(vnodes_of(runs)) == runs


@settings(derandomize=True)
@given(st.lists(st.integers(0, 30)))
def test_runs_are_ascending_apart_and_each_vnode_is_in_one(vnodes: list[int]) -> None:
    runs = runs_of(vnodes)
    assert all(first <= last for first, last in runs)
    assert all(runs[i][1] + 1 < runs[i + 1][0] for i in range(len(runs) - 1))
    assert len(vnodes_of(runs)) == len(set(vnodes))


def test_the_vnode_is_for_ever() -> None:
    """Stored rows carry it: a change of the function would lose them."""
    keys = [("1",), ("", "é"), (None,), ("N",), ("a", None, "\U0001f409")]
    assert [vnode_of(key, 256) for key in keys] == [189, 158, 156, 183, 127]


@settings(derandomize=True)
@given(st.lists(st.none() | st.text(), min_size=1, max_size=4), st.integers(1, 2**15))
def test_a_vnode_is_in_range(texts: list[str | None], count: int) -> None:
    assert 0 <= vnode_of(texts, count) < count
