"""Share reads between callers that wait for the same kind of state.

Each call of `get` joins the next read, which begins when the one before has ended. There is one transaction at a time,
however many callers wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Read = Callable[[Collection[K]], Awaitable[Mapping[K, V]]]


class Together(Generic[K, V]):
    """Reads of one kind of thing by key."""

    def __init__(self) -> None:
        self._next: dict[K, asyncio.Future[V | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def get(self, key: K, read: Read[K, V]) -> V | None:
        """Return what a read that begins after this call finds for a key. Raises what the read raises."""
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = asyncio.get_running_loop().create_future()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(read))
        return await asyncio.shield(found)

    async def _read(self, read: Read[K, V]) -> None:
        while self._next:
            asked, self._next = self._next, {}
            try:
                found = await read(asked.keys())
            except Exception as error:  # noqa: BLE001 - each caller raises it
                for future in asked.values():
                    future.set_exception(error)
                    future.exception()  # a caller that has left does not look
            else:
                for key, future in asked.items():
                    future.set_result(found.get(key))
