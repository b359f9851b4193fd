"""Share reads between callers that wait for the same kind of state, and remember for a short time what was read.

Each call of `get` joins the next read, which starts when the current one ends. At most one transaction is open, however
many callers wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from service.turns import for_nobody

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
ENTRIES_MAX: Final = 10_000
Read = Callable[[Collection[K]], Awaitable[Mapping[K, V]]]


class Together(Generic[K, V]):
    """Shared reads of one kind of object by key."""

    def __init__(self) -> None:
        self._next: dict[K, asyncio.Future[V | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def get(self, key: K, read: Read[K, V]) -> V | None:
        """Return the value of a key from a read that starts after this call. Raises the errors of that read."""
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = asyncio.get_running_loop().create_future()
        if self._reading is None or self._reading.done():
            self._reading = for_nobody(self._read(read))
        return await asyncio.shield(found)

    async def _read(self, read: Read[K, V]) -> None:
        while self._next:
            asked, self._next = self._next, {}
            try:
                found = await read(asked.keys())
            except Exception as error:  # noqa: BLE001 - each caller raises it
                for future in asked.values():
                    future.set_exception(error)
                    future.exception()  # avoids a warning if every caller has left
            else:
                for key, future in asked.items():
                    future.set_result(found.get(key))


@dataclass(slots=True)
class Remembered(Generic[K, V]):
    """Values read, by key, for `seconds`. At most `ENTRIES_MAX` keys are kept, the newest. Times are monotonic."""

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


class Recent(Generic[K, V]):
    """Shared reads whose values are used for `seconds`. That there is no value is remembered too."""

    def __init__(self, seconds: float) -> None:
        self._kept, self._reads = Remembered[K, V](seconds), Together[K, V]()

    async def get(self, key: K, read: Read[K, V], monotonic: Callable[[], float]) -> tuple[bool, V | None]:
        """Return whether the value was remembered, and the value. Raises the errors of the read."""
        remembered, value = self._kept.of(key, now=monotonic())
        if not remembered:
            value = await self._reads.get(key, read)
            self._kept.keep(key, value, now=monotonic())
        return remembered, value

    def forget(self, key: K) -> None:
        """Have the key read anew."""
        self._kept.forget(key)
