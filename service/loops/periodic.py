"""Run a tick, wait, and run it again. A tick reads the state again, so a failed one costs only time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from service.domain.backoff import CHORES
from service.domain.errors import Deposed, Unavailable
from service.telemetry.log import logger

log = logger("loops")


@dataclass(frozen=True, slots=True)
class Pauses:
    """The waiting time after a successful tick, and after failures in a row."""

    interval: timedelta

    def after(self, failures: int) -> float:
        """Return the seconds to wait after `failures` failures in a row."""
        return (CHORES.after(failures) if failures else self.interval).total_seconds()


async def run_periodically(
    tick: Callable[[], Awaitable[object]], pauses: Pauses, stop: asyncio.Event, *, name: str
) -> None:
    """Run `tick` until `stop` is set. An exception of a tick is logged, and the next tick tries again."""
    failures = 0
    while not stop.is_set():
        try:
            await tick()
        except (Unavailable, Deposed) as error:
            failures += 1
            log.warning("tick.failed", loop=name, error=str(error), failures=failures)
        except Exception:
            # A tick is level-triggered: the next one starts from the stored state, whatever made this one fail.
            failures += 1
            log.exception("tick.broke", loop=name, failures=failures)
        else:
            failures = 0
        await wait(stop, pauses.after(failures))


async def wait(stop: asyncio.Event, seconds: float) -> None:
    """Return after `seconds`, or at once when `stop` is set."""
    try:
        # Not `wait_for`, because that makes a task each time.
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
