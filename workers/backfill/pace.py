"""Compute how long an epoch may read history: the interval less the measured time of everything else in the epoch."""

from dataclasses import dataclass, replace
from typing import Final

SLICE_MIN_SECONDS: Final = 0.05
"""One page is read in any case. This minimum keeps a high overhead estimate from reducing the slice to nothing."""
SLICE_SHARE_MIN: Final = 0.2
"""Minimum share of the time available. On a machine so busy that the overhead takes the whole interval, barriers become
a fifth slower so that history still advances.
"""
SPARE_SHARE: Final = 0.04
"""Share of the interval that stays free. Estimates are means, and half of the barriers must still be published within
the interval.
"""
OWN_GRAPH_INTERVALS: Final = 1.6
"""How many intervals an epoch of a partial graph may take. No other job waits for it."""
FORGETTING: Final = 0.3
"""Weight of the newest measurement. The estimate is about right three epochs after a change of load."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`overhead_seconds` estimates a job's time outside its slice: starting the job, flushing rows in flight,
    committing.
    """

    overhead_seconds: float = 0.2

    def slice_seconds(self, available_seconds: float) -> float:
        """Return the time slice of a job that has `available_seconds` of the interval to itself."""
        return max(available_seconds - self.overhead_seconds, available_seconds * SLICE_SHARE_MIN, SLICE_MIN_SECONDS)

    def measured(self, *, job_seconds: float, slice_seconds: float) -> "Pace":
        """Return the pace after a job that used its whole slice. A job that stopped early does not show how long its
        flush takes.
        """
        overhead = max(job_seconds - slice_seconds, 0.0)
        return replace(self, overhead_seconds=self.overhead_seconds * (1 - FORGETTING) + overhead * FORGETTING)


COPYING: Final = Pace(overhead_seconds=0.06)
"""The initial estimate for pages that are copied inside the state store."""


def epoch_seconds(interval_seconds: float, *, alone: bool) -> float:
    """Return how long an epoch may take.

    In a graph that one job has to itself (`alone`) this is longer than the interval of barriers, because no other job
    waits. It is still short enough for a pause to act within two intervals.
    """
    return interval_seconds * (OWN_GRAPH_INTERVALS if alone else 1)


PAGE_ROWS_FIRST: Final = 200
"""The cost of a row is not known yet, and all others wait for the page. It quadruples while pages are quick."""
LATE: Final = 10
"""A page that took so many times its aim tells what a row costs, however few rows it had."""
PAGE_ROWS_MIN: Final = 100
PAGE_BYTES: Final = 4 << 20
"""Size limit of a page. Each actor holds a whole page in memory (I8)."""


@dataclass(frozen=True, slots=True)
class PageAim:
    """The limits of a page: its rows and its time. A slice is overrun by half a page on average."""

    rows_max: int
    seconds: float


ROWS_AIM: Final = PageAim(40_000, 0.1)
STAGE_AIM: Final = PageAim(1_000_000, 0.4)
"""Each page of a stage may read the other inputs whole, so fewer and larger pages are faster. Their rows do not travel.
"""


def page_rows_after(page_rows: int, *, rows: int, size_bytes: int, seconds: float, aim: PageAim = ROWS_AIM) -> int:
    """Return the next page size: it keeps a page near `PAGE_BYTES` and its aim, given the last page's rows, size and
    time.

    The size at most quadruples at once. It does not change after a page that the end of history or the permits cut
    short, unless that was late. A page that was made smaller than `PAGE_ROWS_MIN`, because a larger one did not come
    in time, may stay so.
    """
    if rows * 2 < page_rows and (not rows or seconds < LATE * aim.seconds):
        return page_rows
    wanted = min(PAGE_BYTES * rows // max(size_bytes, 1), int(aim.seconds * rows / max(seconds, 1e-6)))
    return max(min(PAGE_ROWS_MIN, page_rows), min(wanted, aim.rows_max, page_rows * 4))


OPERATOR_ROWS_FIRST: Final = 500
"""A join may make many rows of one, and nobody knows how many before the first page."""
OPERATOR_ROWS_MAX: Final = 200_000
OPERATOR_ROWS_MIN: Final = 10
"""The least page while the epochs of a job take several slices: each of its rows may join a whole other table."""
OPERATOR_LATE: Final = 0.15
"""Below this `fits` an epoch took more than four slices. A job without any page takes less than that."""
OPERATOR_SHARE: Final = 0.6
"""Share of its slice that an operator plans to use. The operators behind it compute its rows in the same epoch."""


@dataclass
class OperatorPace:
    """How well the pages of one job's operators fitted into their slices, in each epoch as a whole.

    The rows of a page go on to the operators behind, so the time of all of them counts, with that of the live changes,
    which come first (I5).
    """

    epoch: int = 0
    fits: float = 1.0
    """How much larger the pages of the epoch before could have been."""
    seconds: float = 0.0
    slice_seconds: float = 0.0
    reading: bool = False
    """Whether an operator that has run in the epoch had history to read."""

    def begin(self, epoch: int) -> float:
        """Return `fits` of the epoch before. The first call in an epoch closes that one."""
        if epoch != self.epoch:
            self.fits = OPERATOR_SHARE * self.slice_seconds / max(self.seconds, 1e-6) if self.slice_seconds else 1.0
            self.epoch, self.seconds, self.slice_seconds, self.reading = epoch, 0.0, 0.0, False
        return self.fits

    def measured(self, *, seconds: float, slice_seconds: float, reading: bool = False) -> None:
        """Add the time of one operator. One of which no scan may read has no slice."""
        self.seconds += seconds
        self.slice_seconds += slice_seconds
        self.reading = self.reading or reading


def operator_rows_after(page_rows: int, *, rows: int, wanted: int, fits: float) -> int:
    """Return the next page size of an operator's scan that read `rows` of the `wanted` ones.

    Each scan has its own, because one may multiply in a join what another one does not. It at most quadruples at once,
    and does not grow after a page that the end of history or the permits cut short.
    """
    if not rows or (fits > 1 and rows * 2 < wanted):
        return page_rows
    least = OPERATOR_ROWS_MIN if fits < OPERATOR_LATE else PAGE_ROWS_MIN
    return max(min(int(page_rows * min(fits, 4)), OPERATOR_ROWS_MAX), min(least, page_rows))


def share_of(interval_seconds: float, *, elapsed_seconds: float, jobs: int) -> float:
    """Return the time left in an interval for each of `jobs` jobs that still have to run in it, one after the other.

    `elapsed_seconds` is all the time that the barrier has taken so far and will take apart from them.
    """
    return max(interval_seconds * (1 - SPARE_SHARE) - elapsed_seconds, 0.0) / max(jobs, 1)
