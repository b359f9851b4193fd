"""Remember for a short time what was read, also that there was nothing."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ENTRIES_MAX: Final = 10_000


@dataclass(slots=True)
class Remembered(Generic[K, V]):
    """What was read, by key, for `seconds`. At most `ENTRIES_MAX` keys are kept, the newest. Times are monotonic."""

    seconds: float
    kept: dict[K, tuple[V | None, float]] = field(default_factory=dict[K, tuple[V | None, float]])

    def of(self, key: K, *, now: float) -> tuple[bool, V | None]:
        """Return whether something was read within the time, and what."""
        value, at = self.kept.get(key, (None, None))
        if at is None or now - at >= self.seconds:
            return False, None
        return True, value

    def keep(self, key: K, value: V | None, *, now: float) -> None:
        """Remember what was read."""
        self.kept.pop(key, None)
        if len(self.kept) >= ENTRIES_MAX:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = value, now

    def forget(self, key: K) -> None:
        """Have the key read anew."""
        self.kept.pop(key, None)
