"""Which loops a service runs: one that holds the lease, one that makes barriers while it does, and the chores.

Next: `service.operations.barriers`.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from service.domain.barrier import Publish, Wait
from service.domain.errors import Deposed
from service.domain.leadership import RENEW_EVERY, Leadership
from service.loops.periodic import Pauses, run_periodically
from service.operations import adaptive, barriers, idempotency, leadership, maintenance, queue, workers
from service.operations.world import World
from service.ports.launcher import Launcher
from service.protocol.ids import DATABASE_GRAPH, Term

_IDLE_SECONDS = 0.5
"""The longest wait between two looks at the graph when nothing is due; a signal ends it."""
_ADAPT_EVERY = timedelta(milliseconds=100)
"""How soon after a publication limits are adapted: before the next barrier, which could carry a change, but not oftener
than probes should be asked.
"""


@dataclass
class Schedule:
    """The loops of one service process. `run` returns when `stop` is set, and resigns the lease on the way out."""

    world: World
    holder: str
    launcher: Launcher | None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    leading: Leadership | None = None
    published: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a barrier was published that limits have not been adapted to."""

    async def run(self) -> None:
        """Run every loop until `stop` is set."""
        loops = [
            run_periodically(self.elect, Pauses(RENEW_EVERY), self.stop, name="elector"),
            run_periodically(self.pulse, Pauses(timedelta(0)), self.stop, name="barriers"),
            run_periodically(self.adapt, Pauses(_ADAPT_EVERY), self.stop, name="adaptive"),
            run_periodically(self.renew, Pauses(idempotency.RENEW_EVERY), self.stop, name="claims"),
            run_periodically(self.tidy, Pauses(timedelta(seconds=5)), self.stop, name="maintenance"),
        ]
        if self.launcher is not None:
            loops.append(
                run_periodically(self.supervise, Pauses(timedelta(milliseconds=200)), self.stop, name="launcher")
            )
        try:
            await asyncio.gather(*loops)
        finally:
            if self.leading is not None:
                await leadership.resign(self.world, self.holder)

    async def elect(self) -> None:
        """Win or renew the lease once."""
        self.leading = await leadership.lead(self.world, self.holder, leading=self.leading)
        self.world.signals.notify()

    async def pulse(self) -> None:
        """Look at the database graph once, and wait for what is due."""
        term = self._term()
        if term is None:
            await self.world.signals.wait(_IDLE_SECONDS)
            return
        try:
            await queue.start_jobs(self.world, term=term)
            effect = await barriers.advance(self.world, DATABASE_GRAPH, term=term)
        except Deposed:
            self.leading = None
            raise
        if isinstance(effect, Publish):
            self.published.set()
        if isinstance(effect, Wait):
            seconds = _IDLE_SECONDS
            if effect.until is not None:
                seconds = min(seconds, (effect.until - self.world.clock.now()).total_seconds())
            if seconds > 0:
                await self.world.signals.wait(seconds)

    async def adapt(self) -> None:
        """Adapt limits to what the newest barrier says. Beside the barriers: a probe may take its time."""
        term = self._term()
        if term is not None and self.published.is_set():
            self.published.clear()
            await adaptive.adapt(self.world, DATABASE_GRAPH, term=term)

    async def renew(self) -> None:
        """Keep the idempotency keys of the calls that run here."""
        await idempotency.renew(self.world)

    async def tidy(self) -> None:
        """Do the chores once."""
        term = self._term()
        if term is not None:
            await maintenance.vacuum(self.world, term=term)
            await maintenance.unstage(self.world, term=term)

    async def supervise(self) -> None:
        """Keep the worker process running."""
        assert self.launcher is not None
        async with self.world.stores.begin() as tx:
            known = await tx.workers.all(now=self.world.clock.now(), lease=self.world.worker_lease)
        for worker in await self.launcher.supervise([record.worker for record in known if not record.alive]):
            await workers.gone(self.world, worker)

    def _term(self) -> Term | None:
        """Return the term while it may be believed."""
        if self.leading is None or not self.leading.trusted(self.world.clock.monotonic()):
            return None
        return self.leading.term
