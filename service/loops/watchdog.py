"""Measures how long the event loop stood still: leases, barriers and every caller waited for so long.

`tidefill_event_loop_stall_seconds` has every stall, the log each that is worth a look. A stall also counts as time in
which workers' signs of life could not be noticed (`service.domain.attention`).
"""

import asyncio
from typing import Final

from service.loops.periodic import wait
from service.operations.world import World
from service.telemetry.log import logger

EVERY_SECONDS: Final = 0.1
"""A stall is measured up to this much too short. Oftener would cost an idle service processor time."""
WORTH_LOGGING_SECONDS: Final = 0.5

log = logger("watchdog")


async def watch(world: World, stop: asyncio.Event) -> None:
    """Measure stalls until `stop` is set."""
    while not stop.is_set():
        began = world.clock.monotonic()
        world.workers.attention.awake(began)
        await wait(stop, EVERY_SECONDS)
        if stop.is_set():
            return
        late = world.clock.monotonic() - began - EVERY_SECONDS
        world.metrics.stalls.observe(max(late, 0.0))
        if late > WORTH_LOGGING_SECONDS:
            log.warning("loop.stalled", seconds=round(late, 2))
