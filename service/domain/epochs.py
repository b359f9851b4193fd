"""Hand out the one sequence of epochs in the leader's process, where several graphs make barriers concurrently."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from service.protocol.epoch import NEVER, SEQUENCE_BITS, UNIX_EPOCH
from service.protocol.ids import Epoch


@dataclass
class Epochs:
    """Hands out each epoch once. A new leader continues after the recorded epochs."""

    last: Epoch = NEVER

    def next(self, newest: Epoch, *, now: datetime) -> Epoch:
        """Return an epoch after `newest`, the newest recorded one, and after every epoch returned here."""
        self.last = following(max(self.last, newest), now=now)
        return self.last


def following(last: Epoch, *, now: datetime) -> Epoch:
    """Return the epoch after `last`: the present instant, or `last + 1` if the clock is not ahead of `last`."""
    return Epoch(max(last + 1, ((now - UNIX_EPOCH) // timedelta(milliseconds=1)) << SEQUENCE_BITS))
