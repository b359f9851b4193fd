"""Comparing a table with the external one that it follows, while both change: what is a part, and what truly differs.

A part of the external table is read in one statement, and what follows it is read once the log has been applied up to
where it then ended. Keys that differ may have changed in between: they are read again, on both sides, until they are
equal, or the same on both sides as the time before, and then they truly differ. Source: the reconciliation of pgCopyDB
and `pt-table-checksum`, with the log's position in the place of locks. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from service.domain.placement import blocks

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

    If the two servers order keys differently, or a range holds too many rows, a part has the rows of the vnodes from
    `first` to `last` instead.
    """

    after: Key | None = None
    upto: Key | None = None
    vnodes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Digest:
    """How many rows, and the sum of their digests."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(self.rows + other.rows, self.total + other.total)

    def __str__(self) -> str:
        return f"{self.total % (1 << 128):032x}"


@dataclass(frozen=True, slots=True)
class Pair:
    """What was read of one key, there and here: a digest, or None where there is no row."""

    wanted: int | None
    held: int | None

    @property
    def equal(self) -> bool:
        return self.wanted == self.held


@dataclass(frozen=True, slots=True)
class Settled:
    """`differing` truly differ, with what was read of them; of `open` nothing can be said yet."""

    differing: Mapping[Key, Pair] = field(default_factory=dict[Key, Pair])
    open: Mapping[Key, Pair] = field(default_factory=dict[Key, Pair])


def pairs(wanted: Rows, held: Rows) -> dict[Key, Pair]:
    """Return what was read of every key that differs."""
    found = {key: Pair(wanted.get(key), held.get(key)) for key in wanted.keys() | held.keys()}
    return {key: pair for key, pair in found.items() if not pair.equal}


def settled(before: Mapping[Key, Pair], now: Mapping[Key, Pair]) -> Settled:
    """Tell keys that differ as they did before from those that changed since."""
    same = {key: pair for key, pair in now.items() if before.get(key) == pair}
    return Settled(same, {key: pair for key, pair in now.items() if key not in same})


def cut(part: Part, vnode_count: int, rows: int) -> list[Part]:
    """Cut a part of about so many rows by vnode. A part of one vnode is returned as it is."""
    first, last = part.vnodes or (0, vnode_count - 1)
    count = min(max(ceil(rows / PART_ROWS), 1), last - first + 1)
    return [replace(part, vnodes=(first + low, first + high)) for ((low, high),) in blocks(last - first + 1, count)]
