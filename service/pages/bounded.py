"""Keep values of browsers in the memory of the process: at most so many, the oldest is forgotten first."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """Values by key. A new one beyond `size_max` replaces the oldest one."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._kept: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> T | None:
        """Return the value, or None if there is none or it was forgotten."""
        return self._kept.get(key)

    def put(self, key: str, value: T) -> None:
        """Keep a value as the newest one."""
        self._kept.pop(key, None)
        self._kept[key] = value
        while len(self._kept) > self.size_max:
            self._kept.popitem(last=False)

    def items(self) -> Sequence[tuple[str, T]]:
        """Return what is kept, oldest first."""
        return tuple(self._kept.items())

    def forget(self, key: str) -> None:
        """Forget a value, if it is kept."""
        self._kept.pop(key, None)
