"""Folding the log part by part gives what replaying it gives, for every way to cut it and to read pages of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.cdc.fold import Change, Key, Values, fold
from workers.cdc.pgoutput import piece_of

KEYS = 8


def key_at(number: int) -> Key:
    return (piece_of(str(number)),)


def number_of(key: Key) -> int:
    return int((key[0] or b"")[4:])


def row(number: int, short: str, long: str | None) -> Values:
    return (piece_of(str(number)), piece_of(short), None if long is None else piece_of(long))


@dataclass
class Plain:
    """A table as it is after each of its transactions, which have one change each; the first xid is 1."""

    states: list[dict[int, Values]] = field(default_factory=lambda: [{}])
    changes: list[Change] = field(default_factory=list[Change])

    def apply(self, verb: str, key: int, other: int, value: str) -> None:
        """Do what is asked where it is possible."""
        rows, xid = dict(self.states[-1]), len(self.states)
        if verb == "insert" and key not in rows:
            rows[key] = row(key, value, value)
            self._told((xid, None, key_at(key), rows[key]), rows)
        elif key not in rows:
            return
        elif verb == "delete":
            del rows[key]
            self._told((xid, key_at(key), None, None), rows)
        elif verb == "long":
            rows[key] = (*rows[key][:2], piece_of(value))
            self._told((xid, key_at(key), key_at(key), rows[key]), rows)
        elif verb == "move" and other not in rows:
            held = rows.pop(key)
            rows[other] = (piece_of(str(other)), piece_of(value), held[2])
            self._told((xid, key_at(key), key_at(other), (*rows[other][:2], None)), rows)
        elif verb == "short":
            rows[key] = (rows[key][0], piece_of(value), rows[key][2])
            self._told((xid, key_at(key), key_at(key), (*rows[key][:2], None)), rows)

    def _told(self, change: Change, rows: dict[int, Values]) -> None:
        self.states.append(rows)
        self.changes.append(change)


@dataclass
class Stored:
    """What a worker holds: keys up to `settled` were read before, those up to `fresh` by a page that shows the first
    `shown` transactions.
    """

    plain: Plain
    settled: int
    fresh: int
    shown: int
    stale: set[int] | None = None
    """Where a reload has found other rows stored, of which it has removed those without an external row."""
    rows: dict[Key, Values] = field(default_factory=dict[Key, Values])
    patched: dict[Key, int] = field(default_factory=dict[Key, int])

    def __post_init__(self) -> None:
        # Without a page it is the epoch that removes, with what the first `shown` transactions have left.
        seen = self.plain.states[0 if self.fresh >= 0 else self.shown]
        for number in seen.keys() & (self.stale or set()):
            self.rows[key_at(number)] = row(number, "stale", "stale")
        for number, values in self.plain.states[0].items():
            if number <= self.settled:
                self.rows[key_at(number)] = values
        for number, values in self.plain.states[self.shown].items():
            if self.settled < number <= self.fresh:
                self.rows[key_at(number)] = values

    def applies(self, key: Key, xid: int) -> bool:
        if key in self.patched:
            return xid > self.patched[key]
        number = number_of(key)
        return number <= self.settled or (xid > self.shown if number <= self.fresh else self.stale is not None)

    def may_be_stale(self, key: Key) -> bool:
        return self.stale is not None and key not in self.patched and number_of(key) > self.settled

    def take(self, changes: Sequence[Change], until: int) -> None:
        """Fold a part; rows are asked for when `until` transactions are visible."""
        folded = fold(changes, self.applies, self.may_be_stale)
        assert not (folded.made.keys() | folded.lacking.keys()) & set(folded.ended)
        assert not any(None in values for values in folded.made.values())
        filled, asked = dict(folded.made), [*folded.asked]
        for key, (values, base) in folded.lacking.items():
            assert None in values
            stored = self.rows.get(base)
            if stored is None:
                assert self.stale is not None
                asked.append(key)
                continue
            filled[key] = tuple(stored[place] if value is None else value for place, value in enumerate(values))
        for key in folded.ended:
            self.rows.pop(key, None)
        self.rows |= filled
        now = {key_at(number): values for number, values in self.plain.states[until].items()}
        for key in asked:
            self.patched[key] = until
            self.rows.pop(key, None)
            if key in now:
                self.rows[key] = now[key]


NUMBER = st.integers(0, KEYS - 1)
STEP = st.tuples(st.sampled_from(("insert", "insert", "delete", "long", "short", "move", "move")), NUMBER, NUMBER)


@settings(max_examples=400)
@given(
    before=st.lists(STEP, max_size=10),
    steps=st.lists(STEP, max_size=25),
    bounds=st.just((-1, -1)) | st.tuples(st.integers(-1, KEYS - 1), st.integers(-1, KEYS - 1)),
    shown=st.integers(0, 25),
    stale=st.none() | st.just(set(range(KEYS))) | st.sets(NUMBER),
    cuts=st.sets(st.integers(1, 24)),
    ahead=st.integers(0, 5),
)
def test_f6_parts_give_what_the_replay_gives(
    before: list[tuple[str, int, int]],
    steps: list[tuple[str, int, int]],
    bounds: tuple[int, int],
    shown: int,
    stale: set[int] | None,
    cuts: set[int],
    ahead: int,
) -> None:
    """Of what a reload has not read again only the keys count: its pages will write the rows, and remove none."""
    plain = Plain()
    for number, (verb, key, other) in enumerate(before):
        plain.apply(verb, key, other, f"old {number}")
    plain.states, plain.changes = [plain.states[-1]], []
    for number, (verb, key, other) in enumerate(steps):
        plain.apply(verb, key, other, f"new {number}")
    last = len(plain.changes)
    stored = Stored(plain, min(bounds), max(bounds), shown % (last + 1), stale)
    places = [0, *sorted(cut for cut in cuts if cut < last), last]
    for first, end in pairwise(places):
        # A row that is asked for may be newer than the part.
        stored.take(plain.changes[first:end], min(end + ahead, last))
    expected = {key_at(number): values for number, values in plain.states[-1].items()}
    for key in expected.keys() | stored.rows.keys():
        if number_of(key) <= max(bounds):
            assert stored.rows.get(key) == expected.get(key)
        else:
            assert key not in stored.rows or (stale is not None and key in expected)


def test_what_comes_and_goes_within_a_part_is_not_told() -> None:
    changes = [
        (1, None, key_at(1), row(1, "a", "a")),
        (2, key_at(1), key_at(2), row(2, "b", None)),
        (3, key_at(2), None, None),
        (4, key_at(3), None, None),
        (5, None, key_at(3), row(3, "c", "c")),
        (6, key_at(3), None, None),
    ]
    folded = fold(changes, lambda _key, _xid: True)
    assert (folded.made, folded.ended, folded.asked) == ({}, (key_at(3),), ())


def test_an_unchanged_value_follows_its_row_through_moves() -> None:
    """Within a part from row to row; before it from what is stored at the key that the row had then."""
    moves = [
        (1, key_at(1), key_at(2), row(2, "a", None)),
        (1, key_at(2), key_at(3), row(3, "b", None)),
    ]
    folded = fold(moves, lambda _key, _xid: True)
    assert folded.made == {}
    assert folded.lacking[key_at(3)].base == key_at(1)
    assert folded.ended == (key_at(1),), "nothing was ever at the key between"
    assert folded.asked == ()


def test_a_row_that_moves_in_from_beyond_is_asked_for() -> None:
    moved = [(1, key_at(9), key_at(1), row(1, "a", None))]
    folded = fold(moved, lambda key, _xid: key != key_at(9))
    assert folded.asked == (key_at(1),)
    assert (folded.made, folded.lacking, folded.ended) == ({}, {}, ())
