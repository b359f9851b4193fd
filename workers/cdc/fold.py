"""A part of the log of one table, folded to what is left of each key. Pure.

Changes come in the order of their commits. Each has two halves, the row that was (at its old key) and the row that is
(at its new one), and a half counts where its key was read already and the reading does not show it yet: a key that
was read in an earlier epoch takes every change, one that was read in this epoch those that the page's snapshot hides,
one that was not read none. Changes of one key are never seen in another order than they were committed in, because
the second waited until the first was over; so what a page shows, and the changes it hides, are together the row.

A TOASTed value that did not change is not sent. It is the one that the row had before: in this part of the log, or
stored at its old key (`Lacking.base`). Where what is stored there is not the row before, because its key was not read
or because the page already shows the change, the row has to be asked of the external database, by its new key
(`Folded.asked`); what it answers is newer than all that was folded here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from workers.cdc.pgoutput import Piece

Key = tuple[Piece, ...]
Values = tuple[Piece, ...]
Applies = Callable[[Key, int], bool]
"""Whether a half at a key counts that a transaction (64 bits) made."""


Change = tuple[int, Key | None, Key | None, Values | None]
"""One row's change: who made it, where the row was, where it is, and what it is. Without an old key there was no row,
without a key and values there is none afterwards. A plain tuple: there are a hundred thousand a second.
"""


class Lacking(NamedTuple):
    """A row that is there afterwards; what its values lack is stored at the key `base`."""

    values: Values
    base: Key


@dataclass(frozen=True, slots=True)
class Folded:
    """What is left: whole rows, rows that lack values, keys without a row, keys whose row has to be asked for."""

    made: dict[Key, Values] = field(default_factory=dict[Key, Values])
    lacking: dict[Key, Lacking] = field(default_factory=dict[Key, Lacking])
    ended: tuple[Key, ...] = ()
    asked: tuple[Key, ...] = ()


_ENDED: Final = 0
_ASKED: Final = 1
_Left = Values | Lacking | int


def fold(changes: Iterable[Change], applies: Applies) -> Folded:
    """Fold changes in the order of their commits."""
    rows: dict[Key, _Left] = {}
    born: set[Key] = set()
    for xid, old, key, values in changes:
        before: _Left | None = None
        if old is not None:
            kept = applies(old, xid)
            before = rows.get(old) if kept else _ASKED
            if kept and old != key:
                _end(rows, born, old)
        if key is not None and values is not None and applies(key, xid):
            row = values if None not in values else _filled(values, old, before)
            if old != key and key not in rows and row is not _ASKED:
                born.add(key)
            _put(rows, key, row)
    return Folded(
        {key: row for key, row in rows.items() if not isinstance(row, Lacking | int)},
        {key: row for key, row in rows.items() if isinstance(row, Lacking)},
        tuple(key for key, row in rows.items() if row is _ENDED),
        tuple(key for key, row in rows.items() if row is _ASKED),
    )


def _end(rows: dict[Key, _Left], born: set[Key], key: Key) -> None:
    if key in born:
        # There was no row before it came to be here: nothing is left to be told.
        born.remove(key)
        del rows[key]
    else:
        _put(rows, key, _ENDED)


def _put(rows: dict[Key, _Left], key: Key, row: _Left) -> None:
    # What is asked for is newer than this change.
    if rows.get(key) is not _ASKED:
        rows[key] = row


def _filled(values: Values, old: Key | None, before: _Left | None) -> _Left:
    """Give a row what it lacks of the row before it."""
    assert old is not None, "a new row lacks a value"
    if before is None:
        return Lacking(values, old)
    if isinstance(before, int):
        return _ASKED
    known, base = before if isinstance(before, Lacking) else (before, None)
    filled = tuple(was if value is None else value for value, was in zip(values, known, strict=True))
    return filled if base is None or None not in filled else Lacking(filled, base)
