"""Wait until the meta store is in a wanted state: read it at every signal, and at intervals without signals."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from service.operations.world import Context
from service.ports.signals import Signals

T = TypeVar("T")

REREAD: Final = timedelta(milliseconds=500)
"""The longest time between two reads. Signals of other processes, which may make the change, do not arrive here."""


async def until(
    world: Context,
    look: Callable[[], Awaitable[T | None]],
    *,
    limit: timedelta | None = None,
    signals: Signals | None = None,
    reread: timedelta | None = None,
) -> T | None:
    """Return the first result of `look` that is not None, or None after `limit`.

    `signals` trigger the calls of `look`. None means the signals of every change. `reread` is the longest time between
    two calls; None means `REREAD`.
    """
    signals, between = signals or world.signals, reread or REREAD
    deadline = None if limit is None else world.clock.monotonic() + limit.total_seconds()
    while True:
        heard = signals.heard()
        found = await look()
        if found is not None:
            return found
        left = between.total_seconds()
        if deadline is not None:
            left = min(left, deadline - world.clock.monotonic())
        if left <= 0:
            return None
        await signals.wait(left, since=heard)


async def rest(world: Context, pause: timedelta) -> None:
    """Return after `pause`, whatever is signalled meanwhile."""
    await until(world, _never, limit=pause)


async def _never() -> None:
    """Return None, so that `until` waits for its full limit."""
