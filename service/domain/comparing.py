"""Compare a followed table with its external table while both change.

A part of the external table is read in one statement. The follower's part is read once the log has been applied up to
its end at that moment. Keys that differ may have changed in between, so both sides read them again. A key is settled if
both sides are equal, or if both sides are the same as the time before: then it truly differs. Source: the
reconciliation of pgCopyDB and `pt-table-checksum`, with the log's position in place of locks. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from service.domain.parallelism import blocks

Key = tuple[str, ...]
Rows = Mapping[Key, int]
"""The digest of each row by its key, as Postgres texts."""

PART_ROWS: Final = 50_000
ROWS_MAX: Final = 2 * PART_ROWS
"""How many rows of a part that differs are read, on either side. A larger part is cut."""
KEPT_MAX: Final = 10_000
"""How many keys that differ are kept. The rest is counted."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows whose key is after `after` and up to `upto`, in the server's order; None is without a bound.

    If the two servers order keys differently, or if a range has too many rows, a part has only the rows of the vnodes
    from `first` to `last`.
    """

    after: Key | None = None
    upto: Key | None = None
    vnodes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows, and the sum of their digests."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(self.rows + other.rows, self.total + other.total)

    def __str__(self) -> str:
        return f"{self.total % (1 << 128):032x}"


@dataclass(frozen=True, slots=True)
class Pair:
    """The digests of one key in the external table (`wanted`) and in the follower (`held`); None if there is no row."""

    wanted: int | None
    held: int | None

    @property
    def equal(self) -> bool:
        return self.wanted == self.held


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of a repeated read: `differing` keys truly differ, `open` keys have to be read again."""

    differing: Mapping[Key, Pair] = field(default_factory=dict[Key, Pair])
    open: Mapping[Key, Pair] = field(default_factory=dict[Key, Pair])


def pairs(wanted: Rows, held: Rows) -> dict[Key, Pair]:
    """Return the digests of every key whose rows differ."""
    found = {key: Pair(wanted.get(key), held.get(key)) for key in wanted.keys() | held.keys()}
    return {key: pair for key, pair in found.items() if not pair.equal}


def settled(before: Mapping[Key, Pair], now: Mapping[Key, Pair]) -> Settled:
    """Split the keys that still differ: those with the same digests as `before` truly differ, the others are open."""
    same = {key: pair for key, pair in now.items() if before.get(key) == pair}
    return Settled(same, {key: pair for key, pair in now.items() if key not in same})


def cut(part: Part, vnode_count: int, rows: int) -> list[Part]:
    """Split a part of about `rows` rows into parts by vnode. A part of one vnode is returned unchanged."""
    first, last = part.vnodes or (0, vnode_count - 1)
    count = min(max(ceil(rows / PART_ROWS), 1), last - first + 1)
    return [replace(part, vnodes=(first + low, first + high)) for ((low, high),) in blocks(last - first + 1, count)]
