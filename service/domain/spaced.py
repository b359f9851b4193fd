"""Let something happen at most once in a while for each key."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

KEYS_MAX: Final = 10_000


@dataclass(slots=True)
class Spaced:
    """The times at which something last happened, by key. `seconds` is the minimum distance.

    At most `KEYS_MAX` keys are kept. Beyond that, the oldest is forgotten, and its next time comes early.
    """

    seconds: float
    last: dict[Hashable, float] = field(default_factory=dict[Hashable, float])

    def due(self, key: Hashable, *, now: float) -> bool:
        """Return whether it may happen now, and if so note that it does. `now` is in monotonic seconds."""
        if self.since(key, now=now):
            return False
        self.last.pop(key, None)
        if len(self.last) >= KEYS_MAX:
            del self.last[next(iter(self.last))]
        self.last[key] = now
        return True

    def since(self, key: Hashable, *, now: float) -> bool:
        """Return whether it happened less than `seconds` ago."""
        before = self.last.get(key)
        return before is not None and now - before < self.seconds

    def forget(self, key: Hashable) -> None:
        """Note that it did not happen after all."""
        self.last.pop(key, None)
