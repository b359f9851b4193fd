"""What a snapshot shows, and what was read of a table's splits."""

from itertools import pairwise

import pytest

from service.protocol.cdc import Split, lsn_of
from service.protocol.ids import Vnode
from service.protocol.plan import PositionState, VnodePosition
from workers.cdc.keys import Stretch, stretches
from workers.cdc.snapshots import Snapshot


def test_a_snapshot_shows_what_is_over() -> None:
    snapshot = Snapshot.parse("10:20:12,15")
    assert [xid for xid in range(8, 23) if not snapshot.shows(xid)] == [12, 15, 20, 21, 22]
    assert snapshot.hidden([15, 9, 21, 15]) == (15, 21)
    assert Snapshot.parse(snapshot.text()) == snapshot
    assert Snapshot.parse("5:5:") == Snapshot(5, 5)


@pytest.mark.parametrize("said", ["5:4:", f"5:{1 << 63}:", "-1:5:", "5", "a:b:", "5:6:7"])
def test_i13_a_server_may_say_what_is_no_snapshot_and_no_place_in_a_log(said: str) -> None:
    with pytest.raises(ValueError, match=r"snapshot|unpack|invalid"):
        Snapshot.parse(said)
    assert lsn_of("7FFFFFFF/FFFFFFFF") == (1 << 63) - 1
    with pytest.raises(ValueError, match="no place in a log"):
        lsn_of("80000000/0")


@pytest.mark.parametrize(
    ("xmax", "xid", "full"),
    [
        (1_000, 990, 990),
        (1_000, 1_005, 1_005),
        ((3 << 32) + 5, 7, (3 << 32) + 7),
        ((3 << 32) + 5, (1 << 32) - 2, (3 << 32) - 2),
        ((3 << 32) - 5, 3, (3 << 32) + 3),
    ],
)
def test_the_log_says_half_of_an_id(xmax: int, xid: int, full: int) -> None:
    """Also where the other half changed in between."""
    assert Snapshot(xmax, xmax).full(xid) == full


def done(split: int) -> VnodePosition:
    return VnodePosition(vnode=Vnode(split), state=PositionState.COMPLETED, rows=1)


def at(split: int, key: str) -> VnodePosition:
    return VnodePosition(vnode=Vnode(split), state=PositionState.IN_PROGRESS, key=(key,), rows=1)


def test_neighbours_that_were_read_out_are_one_stretch() -> None:
    bounds = [None, "10", "20", "30", "40", None]
    splits = [Split(left=left, right=right) for left, right in pairwise(bounds)]
    read = {0: done(0), 1: done(1), 2: at(2, "25"), 4: done(4)}
    assert stretches(splits, read) == [
        Stretch(Split(right="20")),
        Stretch(splits[2], ("25",)),
        Stretch(Split(left="40")),
    ]
    assert stretches(splits, {number: done(number) for number in range(5)}) == [Stretch(Split())]
    assert stretches(splits, {3: done(3)}) == [Stretch(splits[3])]
    assert stretches(splits, {}) == []
