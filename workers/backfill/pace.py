"""How long an epoch may read history: the interval less what the epoch takes besides, as measured."""

from dataclasses import dataclass, replace
from typing import Final

SLICE_MIN_SECONDS: Final = 0.05
"""One page at least is read anyway; this keeps the estimate of the rest from starving the slice altogether."""
SLICE_SHARE_MIN: Final = 0.2
"""On a machine so busy that an epoch's overhead takes the whole interval, barriers become a fifth slower rather than
history standing still.
"""
SPARE_SHARE: Final = 0.04
"""Left of the interval: estimates are means, and half of the barriers shall still be published within it."""
OWN_GRAPH_INTERVALS: Final = 1.6
"""How many intervals an epoch may take where nobody else waits for it."""
FORGETTING: Final = 0.3
"""Weight of the newest measurement: three epochs after a change of load the estimate is about right."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`overhead_seconds` estimates a job's time outside the slice: starting the job, flushing what is in flight,
    committing.
    """

    overhead_seconds: float = 0.2

    def slice_seconds(self, available_seconds: float) -> float:
        """Return the time slice of a job that has so much of the interval to itself."""
        return max(available_seconds - self.overhead_seconds, available_seconds * SLICE_SHARE_MIN, SLICE_MIN_SECONDS)

    def measured(self, *, job_seconds: float, slice_seconds: float) -> "Pace":
        """Return the pace after a job that used its whole slice. Jobs that stopped early say nothing of the
        flush.
        """
        overhead = max(job_seconds - slice_seconds, 0.0)
        return replace(self, overhead_seconds=self.overhead_seconds * (1 - FORGETTING) + overhead * FORGETTING)


COPYING: Final = Pace(overhead_seconds=0.06)
"""Before anything was measured, of pages that are copied inside the store."""


def epoch_seconds(interval_seconds: float, *, alone: bool) -> float:
    """Return how long an epoch may take: in a graph that one job has to itself, so that nobody else is held up, longer
    than the interval of barriers, but so that a pause acts within two.
    """
    return interval_seconds * (OWN_GRAPH_INTERVALS if alone else 1)


PAGE_ROWS_FIRST: Final = 2_000
PAGE_ROWS_MIN: Final = 100
PAGE_ROWS_MAX: Final = 40_000
PAGE_BYTES: Final = 4 << 20
"""A page lives in memory whole, once per actor (I8)."""
PAGE_SECONDS: Final = 0.1
"""The slice is overrun by half a page on average."""


def page_rows_after(page_rows: int, *, rows: int, size_bytes: int, seconds: float) -> int:
    """Return the page size that keeps a page near its bytes and its time, given what the last one was; it at most
    quadruples at once. A page that history or the permits cut short says nothing of either.
    """
    if rows * 2 < page_rows:
        return page_rows
    wanted = min(PAGE_BYTES * rows // max(size_bytes, 1), int(PAGE_SECONDS * rows / max(seconds, 1e-6)))
    return max(PAGE_ROWS_MIN, min(wanted, PAGE_ROWS_MAX, page_rows * 4))


def share_of(interval_seconds: float, *, elapsed_seconds: float, jobs: int) -> float:
    """Return what is left of an interval for each of `jobs` jobs that still have to run in it, one after the other.

    `elapsed_seconds` is all that the barrier has taken so far and will take without them.
    """
    return max(interval_seconds * (1 - SPARE_SHARE) - elapsed_seconds, 0.0) / max(jobs, 1)
