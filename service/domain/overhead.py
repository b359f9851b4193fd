"""Estimate what a barrier takes outside its worker: handover, collection, commit and publication."""

from dataclasses import dataclass
from typing import Final

_FORGETTING: Final = 0.3
"""Weight of the newest measurement. Three barriers after a change of load the estimate is about right."""


@dataclass
class Overhead:
    """The leader's estimate. A new leader starts with the value of an idle machine."""

    seconds: float = 0.05

    def measured(self, *, latency_seconds: float, epoch_seconds: float) -> None:
        """Record a published barrier of an epoch that was not idle: `latency_seconds` from injection to publication,
        `epoch_seconds` of it in the worker.
        """
        outside = max(latency_seconds - epoch_seconds, 0.0)
        self.seconds += (outside - self.seconds) * _FORGETTING
