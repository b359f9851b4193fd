"""Hand out the one sequence of epochs in the leader's process, where several graphs make barriers concurrently."""

from dataclasses import dataclass
from datetime import datetime

from service.protocol.epoch import NEVER, following
from service.protocol.ids import Epoch


@dataclass
class Epochs:
    """Hands out each epoch once. A new leader continues after the recorded epochs."""

    last: Epoch = NEVER

    def next(self, newest: Epoch, *, now: datetime) -> Epoch:
        """Return an epoch after `newest`, the newest recorded one, and after every epoch returned here."""
        self.last = following(max(self.last, newest), now=now)
        return self.last
