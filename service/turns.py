"""Bound how many callers do expensive work concurrently, and how many wait for it (I13)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from service.domain.errors import Unavailable
from service.domain.shares import Shares

CALLER: Final[ContextVar[str | None]] = ContextVar("caller", default=None)
"""The actor of the call in which this code runs. None in the loops of the service and in calls of workers."""
T = TypeVar("T")
Within = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]


@dataclass(eq=False, slots=True)
class _Waiting:
    caller: str
    may: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns:
    """Let at most `running` callers run and at most `waiting` more wait, each for `seconds` at most.

    Both kinds of places are shared out among the callers (`service.domain.shares`). `what` names the work in error
    messages. Of few places that are held for long, `each` caller has so many at most: two of them would take all three.
    """

    def __init__(
        self, what: str, *, running: int, waiting: int, seconds: float | None = None, each: int | None = None
    ) -> None:
        self._what, self._seconds = what, seconds
        self._running, self._places = Shares(running, each), Shares(waiting)
        self._queue: list[_Waiting] = []

    @asynccontextmanager
    async def turn(self, caller: str | None = None, within: Within | None = None) -> AsyncGenerator[None]:
        """Wait for a turn and keep it. Raises Unavailable if too many wait or if the wait takes too long.

        Without a `caller`, it is the one in whose call this runs. `within` runs the wait, and may end it with an error
        of its own.
        """
        caller = CALLER.get() or "" if caller is None else caller
        if self._running.room(caller):
            self._running.take(caller)
        else:
            await self._wait(caller, within)
        try:
            yield
        finally:
            self._running.free(caller)
            self._start()

    async def _wait(self, caller: str, within: Within | None) -> None:
        if not self._places.room(caller):
            raise self._busy(caller)
        one = _Waiting(caller)
        self._queue.append(one)
        self._places.take(caller)
        try:
            async with asyncio.timeout(self._seconds):
                await (_until(one.may) if within is None else within(_until(one.may)))
        except BaseException as error:
            if one in self._queue:
                self._queue.remove(one)
            else:  # Its turn has come, and it cannot take it any more.
                self._running.free(caller)
                self._start()
            if isinstance(error, TimeoutError):
                raise self._busy(caller) from error
            raise
        finally:
            self._places.free(caller)

    def _start(self) -> None:
        """Give free turns to those that wait."""
        while (number := self._running.next([one.caller for one in self._queue])) is not None:
            one = self._queue.pop(number)
            self._running.take(one.caller)
            one.may.set_result(None)

    def _busy(self, caller: str) -> Unavailable:
        own, others = self._running.held[caller], self._running.taken - self._running.held[caller]
        return Unavailable(f"{own} {self._what} of this caller run, and {others} of others: try again later")


def for_nobody(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run work that many callers wait for: it takes no turn of the one that began it."""
    context = copy_context()
    context.run(CALLER.set, None)
    return asyncio.create_task(work, context=context)


async def _until(may: asyncio.Future[None]) -> None:
    # The future of a task that is being cancelled would be cancelled before the task leaves the queue.
    await asyncio.shield(may)
