"""What a barrier takes outside its worker: being handed over, collected, committed and published, as measured."""

from dataclasses import dataclass
from typing import Final

_FORGETTING: Final = 0.3
"""Weight of the newest measurement: three barriers after a change of load the estimate is about right."""


@dataclass
class Overhead:
    """The estimate of the process that leads; a new leader starts with what an idle machine takes."""

    seconds: float = 0.05

    def measured(self, *, latency_seconds: float, epoch_seconds: float) -> None:
        """Take in a published barrier: injected to published, of which the worker took `epoch_seconds`."""
        outside = max(latency_seconds - epoch_seconds, 0.0)
        self.seconds += (outside - self.seconds) * _FORGETTING
