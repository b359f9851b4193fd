"""Bound how many callers do expensive work concurrently, and how many wait for it (I13)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from service.domain.errors import Unavailable
from service.operations.leaving import Gone, unless


class Turns:
    """Let at most `running` callers run and at most `waiting` more wait. `what` names the work in error messages."""

    def __init__(self, what: str, *, running: int, waiting: int) -> None:
        self._what, self._waiting_max = what, waiting
        self._free = asyncio.Semaphore(running)
        self._waiting = 0

    @asynccontextmanager
    async def turn(self, gone: Gone | None = None) -> AsyncGenerator[None]:
        """Wait for a turn and keep it. Raises Unavailable if too many callers wait or if the caller leaves first."""
        if self._free.locked() and self._waiting >= self._waiting_max:
            raise Unavailable(f"{self._waiting} {self._what} wait for their turn: try again later")
        self._waiting += 1
        try:
            await unless(gone, self._free.acquire())
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()
