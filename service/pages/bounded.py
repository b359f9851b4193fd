"""Keep values of browsers in the memory of the process: at most so many, of those with most the oldest goes first."""

from collections import Counter
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """Values by key, each of an owner. A new one beyond `size_max` replaces the oldest of the owner that has most, so
    that nobody makes those of others go (I13).
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._kept: dict[str, tuple[str, T]] = {}

    def get(self, key: str) -> T | None:
        """Return the value, or None if there is none or it was forgotten."""
        found = self._kept.get(key)
        return None if found is None else found[1]

    def put(self, key: str, value: T, *, owner: str) -> None:
        """Keep a value as the newest one."""
        self.forget(key)
        self._kept[key] = owner, value
        if len(self._kept) > self.size_max:
            ((most, _),) = Counter(one for one, _ in self._kept.values()).most_common(1)
            self.forget(next(old for old, (one, _) in self._kept.items() if one == most))

    def newest(self, prefix: str) -> T | None:
        """Return the newest value whose key begins so."""
        return next((one for key, (_, one) in reversed(self._kept.items()) if key.startswith(prefix)), None)

    def forget(self, key: str) -> None:
        """Forget a value, if it is kept."""
        self._kept.pop(key, None)
