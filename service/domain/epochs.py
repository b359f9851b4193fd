"""The one sequence of epochs, as the process that leads hands them out: several graphs make barriers side by side."""

from dataclasses import dataclass
from datetime import datetime

from service.protocol.epoch import NEVER, following
from service.protocol.ids import Epoch


@dataclass
class Epochs:
    """Gives each epoch once. A new leader goes on from what is recorded."""

    last: Epoch = NEVER

    def next(self, newest: Epoch, *, now: datetime) -> Epoch:
        """Return an epoch after `newest`, the newest that is recorded, and after all that were given here."""
        self.last = following(max(self.last, newest), now=now)
        return self.last
