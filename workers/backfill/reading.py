"""What a scan reads in one epoch, as epochs of its upstream; and how a decoupled job follows the change log.

An interleaving scan reads what changed since the last barrier, then pages as of this one. A snapshot job reads pages as
of one pinned epoch, whatever happens meanwhile; then it replays the change log since then, in spans; and once it has
all but caught up it goes on as any other scan of the database graph, from the epoch that it has consumed.

The replay converges: the net changes of a span are at most one per key, and a span that was cut doubles the next one;
so however far behind a job is, some span ends at what is committed, and what is left then is what came while it was
replayed.
"""

from dataclasses import dataclass
from typing import Final

from service.protocol.ids import Epoch

SPAN_FIRST: Final = 10_000 << 16
"""Ten seconds of upstream time, in epochs: small enough that the first spans of a long log fit in memory (I8)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The net changes in `(after, upto]`, none where the two are equal; and pages of the upstream as it was at `at`."""

    after: Epoch
    upto: Epoch
    at: Epoch

    def __post_init__(self) -> None:
        """Time does not run backwards."""
        assert self.after <= self.upto, self

    @property
    def changes(self) -> bool:
        """Whether there may be any."""
        return self.after < self.upto


def interleaved(*, since: Epoch, curr: Epoch) -> Reading:
    """Return what an interleaving scan reads: `since` is the epoch that it has consumed, `curr` if nothing changed."""
    return Reading(since, curr, curr)


@dataclass
class Replay:
    """How far a snapshot job has come in a generation. `consumed` None: its snapshot at `epoch` is still read."""

    epoch: Epoch
    consumed: Epoch | None = None
    span: int = SPAN_FIRST

    def reading(self, upto: Epoch | None) -> Reading:
        """Return what its scans read while the log may be replayed up to `upto`, or None while it may not."""
        if upto is None:
            return Reading(self.epoch, self.epoch, self.epoch)
        after = self.epoch if self.consumed is None else self.consumed
        return Reading(after, Epoch(max(after, min(upto, after + self.span))), self.epoch)

    def replayed(self, reading: Reading, upto: Epoch) -> None:
        """Take over what every scan of the job has read and written."""
        self.consumed = reading.upto
        if reading.changes and reading.upto < upto:
            self.span *= 2
