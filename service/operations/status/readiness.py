"""Compute the answer of `/readyz`: for every check `ok` or the fault.

The probe has its own connections. If all connections of readers are in use, the service still serves writes and
control, and is therefore ready.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.errors import Invalid, Unavailable
from service.domain.graph import GraphStatus
from service.domain.launching import Launch
from service.domain.parameters import SystemParameters
from service.domain.readiness import of_barriers
from service.operations.world import World
from service.ports.state_store import Reader
from service.protocol.ids import DATABASE_GRAPH
from service.turns import for_nobody

_PROBE_MS: Final = 2_000


@dataclass
class Readiness:
    """Run the checks once for all concurrent callers, because the route needs no token."""

    world: World
    probe: Reader
    leads: Callable[[], bool]
    """Whether this service leads, which readiness does not need."""
    looking: "asyncio.Task[Mapping[str, str]] | None" = None

    async def __call__(self) -> Mapping[str, str]:
        """Return the result of every check."""
        if self.looking is None or self.looking.done():
            self.looking = for_nobody(readiness(self.world, self.probe))
        return await asyncio.shield(self.looking)


async def readiness(world: World, probe: Reader) -> Mapping[str, str]:
    """Return `ok` or the fault for everything that a request needs."""
    found: dict[str, str] = dict.fromkeys(("meta_store", "state_store", "leader", "worker", "graph", "barriers"), "ok")
    try:
        async with world.stores.begin() as tx:
            now = world.clock.now()
            known = await tx.workers.all(now=now, lease=world.workers.lease)
            state = await tx.graphs.state(DATABASE_GRAPH)
            parameters = SystemParameters.of(await tx.parameters.all())
            led = await tx.leases.held()
            served = any(worker.alive and worker.graph == DATABASE_GRAPH for worker in known)
            launches = () if served else await tx.launches.all()
    except Unavailable as error:
        return {**found, "meta_store": str(error)}
    try:
        await probe.query("select 1", row_limit=1, timeout_ms=_PROBE_MS)
    except (Unavailable, Invalid) as error:
        found["state_store"] = str(error)
    if not led:
        found["leader"] = "no service leads"
    if not served:
        found["worker"] = _without_worker(launches)
    if state.status is not GraphStatus.RUNNING:
        found["graph"] = f"{state.status}: {state.last_error or 'starting'}"
    found["barriers"] = of_barriers(state.published, parameters, now=now)
    return found


def _without_worker(launches: Sequence[Launch]) -> str:
    """Return why no worker serves the database graph, as far as a cluster says so."""
    newest = next((launch for launch in reversed(launches) if launch.graph == DATABASE_GRAPH), None)
    if newest is not None and newest.held is not None:
        return f"no worker is alive: it is held up: {newest.held.text}"
    if newest is not None and newest.end is not None:
        return f"no worker is alive: {newest.end.reason}"
    return "no worker is alive"
