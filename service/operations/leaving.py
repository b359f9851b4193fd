"""End the work of a caller that disconnects."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from service.domain.errors import Unavailable

T = TypeVar("T")
LEFT: Final = "the caller has left"
"""An error that no client receives."""
Gone = Callable[[], Awaitable[None]]
"""A function that returns when the caller has disconnected."""


async def unless(gone: Gone | None, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`.

    If the caller disconnects first, cancel `work` and raise Unavailable.
    """
    if gone is None:
        return await work
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Unavailable(LEFT)
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
