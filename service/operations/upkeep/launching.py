"""Which graphs have a worker running, as far as a launcher keeps them.

Every service keeps a worker of the database graph. The leader starts one for each serverless job, once the job holds
its permit and has a graph, and only where none of that graph is alive: that of a leader before it may well be. Whoever
started a worker keeps it until its job has merged or ended. Next: `service.launchers.subprocess`.
"""

from service.domain.barrier import OwnWorker
from service.operations.world import World
from service.ports.launcher import Ended, Launcher
from service.protocol.ids import DATABASE_GRAPH


async def supervise(world: World, launcher: Launcher, *, leading: bool) -> None:
    """Have the launcher look once, and record what became of its workers. Raises Unavailable: then nothing is ended."""
    began, now = world.clock.monotonic(), world.clock.now()
    async with world.stores.begin() as tx:
        # A meta store that was away kept signs of life from being stored. `now` is from before the wait for it.
        world.attention.missed(began, world.clock.monotonic())
        known = await tx.workers.all(now=now, lease=world.patience())
        wanted = await tx.workers.wanted()
    served = {record.graph for record in known if record.alive}
    missing = [DATABASE_GRAPH, *(graph for graph in wanted if leading and graph not in served)]
    given_up = [record.worker for record in known if not record.alive]
    for ended in await launcher.supervise(given_up, kept=[DATABASE_GRAPH, *wanted], missing=missing):
        await gone(world, ended)


async def gone(world: World, ended: Ended) -> None:
    """The launcher saw the worker's process end: do not wait for its lease."""
    now = world.clock.now()
    facts: dict[str, object] = {"worker": ended.worker, "graph": ended.graph, "reason": ended.reason}
    async with world.stores.begin() as tx:
        await tx.workers.give_up(ended.worker)
        if ended.graph is not None and ended.graph != DATABASE_GRAPH and not ended.asked:
            facts["failures"] = ended.failures
            await tx.workers.start_failed(ended.graph, OwnWorker(ended.failures, ended.reason, now + ended.wait))
        await tx.events.append("worker.stopped" if ended.asked else "worker.lost", facts, now=now)
    world.signals.notify()
