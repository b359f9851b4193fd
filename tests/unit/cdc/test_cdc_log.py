"""How the log is cut into parts, where it may be left, and whose rows are decoded."""

import struct
from collections.abc import Sequence
from itertools import count
from operator import itemgetter

import pytest

from service.protocol.ids import FragmentId
from workers.cdc import log
from workers.cdc.log import LogReader, Part, Picked
from workers.cdc.pgoutput import TableSent, piece_of
from workers.cdc.snapshots import Snapshot

ONE, OTHER = 1, 2
"""Tables by their oids; the fragments that follow them have the same numbers."""


def sent(oid: int) -> bytes:
    return (
        b"R"
        + struct.pack(">I", oid)
        + b"public\0t\0d"
        + struct.pack(">HB", 1, 1)
        + b"id\0"
        + struct.pack(">Ii", 20, -1)
    )


def inserted(oid: int, key: int) -> bytes:
    return b"I" + struct.pack(">I", oid) + b"N" + struct.pack(">H", 1) + b"t" + piece_of(str(key))


def transaction(end: int, *messages: bytes) -> list[bytes]:
    begin = b"B" + struct.pack(">QqI", end - 1, 0, end)
    return [begin, *messages, b"C" + struct.pack(">BQQq", 0, end - 1, end, 0)]


def reader(stops: Sequence[int] = ()) -> LogReader:
    """Return one that is stopped at the commits of these numbers."""
    commits, id_of = count(1), itemgetter(slice(0, 1))

    def describe(table: TableSent) -> list[Picked]:
        return [Picked(FragmentId(table.oid), lambda row: tuple(id_of(row)), lambda row: tuple(id_of(row)))]

    return LogReader(0, Snapshot(1000, 1000), describe, lambda: next(commits) in stops)


def test_a_part_says_whether_a_transaction_ended_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PART_CHANGES", 3)
    first, second = [inserted(ONE, key) for key in range(8)], [inserted(ONE, key) for key in range(8, 10)]
    parts = list(reader().read([sent(ONE), *transaction(10, *first), *transaction(20, *second)]))
    assert [(len(part.changes.get(FragmentId(ONE), ())), part.ended) for part in parts if isinstance(part, Part)] == [
        (1, False),
        (3, False),
        (3, False),
        (2, True),
        (1, True),
    ]


def test_the_log_is_left_at_a_commit() -> None:
    one = reader(stops=(2,))
    messages = iter([sent(ONE), *(each for end in (10, 20, 30) for each in transaction(end, inserted(ONE, end)))])
    (part,) = one.read(messages)
    assert isinstance(part, Part)
    assert (len(part.changes[FragmentId(ONE)]), part.ended, one.at, one.xids) == (2, True, 20, {10, 20})
    assert len(list(messages)) == 3


def test_a_transaction_that_was_read_before_is_no_place_to_stop() -> None:
    one = reader(stops=(1,))
    one.at = 15
    list(one.read([sent(ONE), *(each for end in (10, 20, 30) for each in transaction(end, inserted(ONE, end)))]))
    assert (one.at, one.xids) == (20, {20})


def test_rows_of_a_table_that_is_dropped_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PART_CHANGES", 4)
    one = reader()
    rows = [inserted(oid, key) for key in range(6) for oid in (ONE, OTHER)]
    found: list[tuple[int, ...]] = []
    for part in one.read([sent(ONE), sent(OTHER), *transaction(10, *rows)]):
        assert isinstance(part, Part)
        found.append(tuple(part.changes))
        one.drop({FragmentId(ONE)})
    assert found[1:] == [(OTHER,)] * (len(found) - 1)
    assert one.changes == 6 + 1
