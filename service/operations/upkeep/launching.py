"""Start and stop workers as processes of this service. `service.operations.upkeep.cluster` does so in a cluster.

Every service keeps a worker of the database graph running. The leader starts a worker for a serverless job after the
job has its permit and its graph. It starts none if a worker of that graph is alive, for example one of the previous
leader. The service that started a worker keeps it until the job has merged or ended. Next:
`service.launchers.subprocess`.
"""

from datetime import datetime

from service.domain.graph import OwnWorker
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.launcher import Ended, Launcher
from service.ports.meta_store import Transaction
from service.protocol.ids import DATABASE_GRAPH


async def supervise(world: World, launcher: Launcher, *, leading: bool) -> None:
    """Run one tick of the launcher and record the workers that ended.

    Raises Unavailable if the meta store is unavailable. Then no worker is ended.
    """
    began, now = world.clock.monotonic(), world.clock.now()
    async with world.stores.begin() as tx:
        # While the meta store was unavailable, no heartbeat could be stored. `now` was read before the wait for it.
        world.workers.attention.missed(began, world.clock.monotonic())
        known = await tx.workers.all(now=now, lease=world.patience())
        wanted = await tx.workers.wanted()
    served = {record.graph for record in known if record.alive}
    missing = [DATABASE_GRAPH, *(graph for graph in wanted if leading and graph not in served)]
    given_up = [record.worker for record in known if not record.alive]
    for ended in await launcher.supervise(given_up, kept=[DATABASE_GRAPH, *wanted], missing=missing):
        await gone(world, ended)


@retried
async def gone(world: Context, ended: Ended) -> None:
    """Evict a worker whose process the launcher saw end, without waiting for its lease."""
    async with world.stores.begin() as tx:
        await record(tx, ended, now=world.clock.now())
    world.signals.notify()


async def record(tx: Transaction, ended: Ended, *, now: datetime) -> None:
    """Record the end of a worker in the transaction of the caller."""
    facts: dict[str, object] = {"worker": ended.worker, "graph": ended.graph, "reason": ended.reason}
    if ended.graph is not None and ended.graph != DATABASE_GRAPH and not ended.asked:
        facts["failures"] = ended.failures
        await tx.workers.start_failed(ended.graph, OwnWorker(ended.failures, ended.reason, now + ended.wait))
    await tx.workers.give_up(ended.worker)
    await tx.events.append("worker.stopped" if ended.asked else "worker.lost", facts, now=now)
