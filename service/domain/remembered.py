"""Remember for a short time what was read, also that there was nothing, or that something has happened."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

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

    def due(self, key: K, *, now: float) -> bool:
        """Return whether nothing is remembered of the key, and if so remember it: it may happen now."""
        known, _ = self.of(key, now=now)
        if not known:
            self.keep(key, None, now=now)
        return not known

    def forget(self, key: K) -> None:
        """Have the key read anew, or due at once."""
        self.kept.pop(key, None)


Spaced: TypeAlias = Remembered[Hashable, None]
"""Events that may happen at most once in `seconds` for each key. A forgotten key comes early."""
