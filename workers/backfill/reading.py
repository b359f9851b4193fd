"""The epochs of its upstream that a scan reads in one epoch, and how a snapshot job replays the change log.

An interleaving scan reads the changes since the last barrier, then pages as of this one. A snapshot job reads pages as
of one pinned epoch, whatever happens meanwhile. Then it replays the change log since that epoch, in spans. When it has
almost caught up it continues in the database graph as any other scan, from the epoch that it has consumed.

The replay converges. A span yields at most one net change per key, and after a span that ended before the committed
epoch the next one is twice as long. However far behind a job is, some span therefore reaches the committed epoch. Only
the changes that arrived during its replay are left then.
"""

from dataclasses import dataclass
from typing import Final

from service.protocol.ids import Epoch

SPAN_FIRST: Final = 10_000 << 16
"""Ten seconds of upstream time, in epochs. The first spans of a long change log are small enough for memory (I8)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A read window: the net changes in `(after, upto]`, and pages of the upstream as of `at`. There are no changes
    when `after == upto`.
    """

    after: Epoch
    upto: Epoch
    at: Epoch

    def __post_init__(self) -> None:
        """Assert that the window does not run backwards."""
        assert self.after <= self.upto, self

    @property
    def changes(self) -> bool:
        """Whether the window may hold changes."""
        return self.after < self.upto


def interleaved(*, since: Epoch, curr: Epoch) -> Reading:
    """Return the read window of an interleaving scan. `since` is the epoch that it has consumed; `curr` if nothing
    changed since.
    """
    return Reading(since, curr, curr)


@dataclass
class Replay:
    """A snapshot job's progress in one generation. While `consumed` is None, its snapshot at `epoch` is still being
    read.
    """

    epoch: Epoch
    consumed: Epoch | None = None
    span: int = SPAN_FIRST

    def reading(self, upto: Epoch | None) -> Reading:
        """Return the read window of the job's scans. `upto` is the epoch up to which the log may be replayed; None
        forbids a replay.
        """
        if upto is None:
            return Reading(self.epoch, self.epoch, self.epoch)
        after = self.epoch if self.consumed is None else self.consumed
        return Reading(after, Epoch(max(after, min(upto, after + self.span))), self.epoch)

    def replayed(self, reading: Reading, upto: Epoch) -> None:
        """Record that every scan of the job has read and written `reading`."""
        self.consumed = reading.upto
        if reading.changes and reading.upto < upto:
            self.span *= 2
