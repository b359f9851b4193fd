"""Cut the history of an external table into splits: ranges of one key column, planned once."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from service.protocol.cdc import SPLITS_MAX, Split

WHOLE: Final = (Split(),)
"""One split for the whole table: one actor reads it in key order."""


def wanted_splits(rows: int | None, *, rows_per_split: int, parallelism: int) -> int:
    """Return the number of splits to cut, at least one per actor."""
    needed = 0 if rows is None else -(-rows // rows_per_split)
    return min(max(needed, parallelism, 1), SPLITS_MAX)


def even_splits(low: int, high: int, wanted: int) -> tuple[Split, ...]:
    """Cut a range of integers into equal parts. The outer splits include later values below `low` or above `high`."""
    count = min(wanted, max(high - low + 1, 1))
    return _between([str(low + (high - low + 1) * number // count) for number in range(1, count)])


def sampled_splits(values: Sequence[str], wanted: int) -> tuple[Split, ...]:
    """Cut at `values`, sorted in the external server's order, so that each split has about as many of them."""
    count = min(wanted, len(values) + 1)
    edges = [values[len(values) * number // count] for number in range(1, count)]
    return _between(list(dict.fromkeys(edges)))


def _between(edges: Sequence[str]) -> tuple[Split, ...]:
    bounds = [None, *edges, None]
    return tuple(Split(left=left, right=right) for left, right in pairwise(bounds))
