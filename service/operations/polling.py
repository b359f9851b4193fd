"""Wait until the meta store is in a wanted state: read it at every signal, and at intervals without one."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from service.operations.world import World
from service.ports.signals import Signals

T = TypeVar("T")

REREAD: Final = timedelta(milliseconds=500)
"""Another service process may have changed what this one waits for; its signal does not reach us."""


async def until(
    world: World,
    look: Callable[[], Awaitable[T | None]],
    *,
    limit: timedelta | None = None,
    signals: Signals | None = None,
    reread: timedelta = REREAD,
) -> T | None:
    """Return what `look` gives once it is not None, or None when `limit` has passed. `signals` say when to look; None:
    those of every change. `reread` is the longest time between two looks.
    """
    signals = signals or world.signals
    deadline = None if limit is None else world.clock.monotonic() + limit.total_seconds()
    while True:
        heard = signals.heard()
        found = await look()
        if found is not None:
            return found
        left = reread.total_seconds()
        if deadline is not None:
            left = min(left, deadline - world.clock.monotonic())
        if left <= 0:
            return None
        await signals.wait(left, since=heard)
