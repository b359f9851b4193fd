"""Fold a part of one table's log into the final state of each key. Pure.

Changes come in commit order. Each has two halves: the old row at its old key, and the new row at its new key. A half
counts where its key was read and the page does not show the change yet:

- A key that was read in an earlier epoch takes every change.
- A key that was read in this epoch takes the changes that the page's snapshot hides.
- A key that was not read takes none.

Changes of one key become visible in commit order, because the second transaction waits for the first one. So the row of
a page together with the changes that its snapshot hides is the current row.

Postgres does not send an unchanged TOASTed value. The previous row has it: in this part of the log, or stored at the
old key (`Lacking.base`). The stored row may not be the previous one: its key was not read, or the page already shows
the change. The row is then requested from the external database by its new key (`Folded.asked`). Its answer is newer
than all changes that were folded here.

A reload reads pages over stored rows, so a change counts also at a key that was not read again. The stored rows of the
keys that were not read again in an earlier epoch are *stale*:

- Even a new row may have a stale row at its key, so its end is never left out.
- A page that shows the end of a row has no such row, but does not remove a stored one. The old key is requested.
- The values of a stale row must not move to another key, where they would stay. The row is requested by its new key.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from workers.cdc.pgoutput import Piece

Key = tuple[Piece, ...]
Values = tuple[Piece, ...]
Applies = Callable[[Key, int], bool]
"""Returns whether a half counts: its key, and its transaction's 64-bit id."""

Change = tuple[int, Key | None, Key | None, Values | None]
"""One row's change: transaction, old key, new key, new values. An insert has no old key; a delete has no new key and no
values. It is a plain tuple because there may be a hundred thousand per second.
"""


class Lacking(NamedTuple):
    """A new row. Its missing values (None) are those of the row stored at the key `base`."""

    values: Values
    base: Key


@dataclass(frozen=True, slots=True)
class Folded:
    """The result: whole rows, rows with missing values, keys without a row, keys whose row must be requested."""

    made: dict[Key, Values] = field(default_factory=dict[Key, Values])
    lacking: dict[Key, Lacking] = field(default_factory=dict[Key, Lacking])
    ended: tuple[Key, ...] = ()
    asked: tuple[Key, ...] = ()


_ENDED: Final = 0
_ASKED: Final = 1
_Left = Values | Lacking | int


def fold(changes: Iterable[Change], applies: Applies, stale: Callable[[Key], bool] = lambda _: False) -> Folded:
    """Fold changes in the order of their commits. `stale` returns whether the row stored at a key may be stale."""
    rows: dict[Key, _Left] = {}
    born: set[Key] = set()
    for xid, old, key, values in changes:
        before: _Left | None = None
        if old is not None:
            kept = applies(old, xid)
            moved_stale = old != key and stale(old)
            before = _known(rows.get(old), stale=moved_stale) if kept else _ASKED
            if kept and old != key:
                _end(rows, born, old)
            elif moved_stale:
                rows[old] = _ASKED
        if key is not None and values is not None and applies(key, xid):
            row = values if None not in values else _filled(values, old, before)
            if old != key and key not in rows and row is not _ASKED and not stale(key):
                born.add(key)
            _put(rows, key, row)
    return Folded(
        {key: row for key, row in rows.items() if not isinstance(row, Lacking | int)},
        {key: row for key, row in rows.items() if isinstance(row, Lacking)},
        tuple(key for key, row in rows.items() if row is _ENDED),
        tuple(key for key, row in rows.items() if row is _ASKED),
    )


def _known(row: _Left | None, *, stale: bool) -> _Left | None:
    """Return the row as a base of another one: unknown where values of a stale row are needed."""
    return _ASKED if stale and (row is None or isinstance(row, Lacking)) else row


def _end(rows: dict[Key, _Left], born: set[Key], key: Key) -> None:
    if key in born:
        # The row began in this part of the log, so its end leaves no change.
        born.remove(key)
        del rows[key]
    else:
        _put(rows, key, _ENDED)


def _put(rows: dict[Key, _Left], key: Key, row: _Left) -> None:
    # The requested row will be newer than this change.
    if rows.get(key) is not _ASKED:
        rows[key] = row


def _filled(values: Values, old: Key | None, before: _Left | None) -> _Left:
    """Fill the missing values of a row from the row before it, as far as that row is known."""
    assert old is not None, "a new row lacks a value"
    if before is None:
        return Lacking(values, old)
    if isinstance(before, int):
        return _ASKED
    known, base = before if isinstance(before, Lacking) else (before, None)
    filled = tuple(was if value is None else value for value, was in zip(values, known, strict=True))
    return filled if base is None or None not in filled else Lacking(filled, base)
