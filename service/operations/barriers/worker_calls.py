"""The worker's calls: register, take the next barrier, answer it, take and answer questions. Every call is a
heartbeat.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final, TypeVar

from service.domain.errors import Conflict
from service.operations.polling import until
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.signals import Signals
from service.protocol.api import VERSION, Registered, Registration
from service.protocol.barrier import Barrier
from service.protocol.ids import Epoch, GraphId, WorkerId
from service.protocol.report import Collected, Failed
from service.protocol.request import Analyzed, Rejected, Request, Verified

T = TypeVar("T")

_REREAD: Final = timedelta(milliseconds=1500)
"""What another service process has for a worker that polls here comes so late at most."""


async def register(world: World, registration: Registration) -> Registered:
    """A warm worker presents itself. Raises Conflict for another protocol version, Stale where nobody waits for it."""
    if registration.version != VERSION:
        raise Conflict(f"worker speaks protocol version {registration.version}, this service {VERSION}")
    async with world.stores.begin() as tx:
        await tx.workers.register(registration, now=world.clock.now())
        facts = {"worker": registration.worker, "graph": registration.graph, "host": registration.host}
        await tx.events.append("worker.registered", facts, now=world.clock.now())
    world.signals.notify()
    return Registered(
        wait_seconds=world.poll_wait.total_seconds(),
        lease_seconds=world.worker_lease.total_seconds(),
        dml_url=world.dml_url,
    )


async def next_barrier(world: World, worker: WorkerId, taken: Mapping[GraphId, Epoch]) -> Barrier | None:
    """Return a barrier that `worker` has yet to answer, besides those it has taken, once there is one; None after the
    wait. Raises Stale.
    """
    return await _poll(world, worker, lambda tx: tx.barriers.for_worker(worker, taken), world.barrier_signals)


async def answer(world: World, answer: Collected | Failed) -> None:
    """Store an answer; a repetition is confirmed. Raises Stale when worker, generation or epoch is of the past (I7).

    An answer that takes back rows is stored as the failure that it is: it cannot be committed (I6).
    """
    with world.timed("collect"):
        async with world.stores.begin() as tx:
            await tx.workers.seen(answer.worker, now=world.clock.now())
            await tx.barriers.answer(await _checked(tx, answer), now=world.clock.now())
    world.signals.notify(answer.graph)


async def _checked(tx: Transaction, answer: Collected | Failed) -> Collected | Failed:
    receded = await tx.fragments.receded(answer.actors) if isinstance(answer, Collected) else None
    if receded is None:
        return answer
    return Failed(
        worker=answer.worker,
        graph=answer.graph,
        generation=answer.generation,
        epoch=answer.epoch,
        error=str(receded),
        job=receded.job,
        deterministic=True,
    )


async def next_request(world: World, worker: WorkerId, graph: GraphId) -> Request | None:
    """Return the oldest question nobody works on, once there is one; None after the wait. Raises Stale."""

    def claim(tx: Transaction) -> Awaitable[Request | None]:
        return tx.requests.claim(graph, worker, now=world.clock.now(), lease=world.patience())

    return await _poll(world, worker, claim, world.request_signals)


async def respond(world: World, worker: WorkerId, response: Analyzed | Verified | Rejected) -> None:
    """Store the response to a question. Raises Stale."""
    async with world.stores.begin() as tx:
        await tx.workers.seen(worker, now=world.clock.now())
        await tx.requests.answer(response)
    world.signals.notify()


async def _poll(
    world: World, worker: WorkerId, find: Callable[[Transaction], Awaitable[T | None]], signals: Signals
) -> T | None:
    """Return what there is for a worker, once there is something; None after the wait. The first look is its
    heartbeat.
    """
    seen = False

    async def look() -> T | None:
        nonlocal seen
        async with world.stores.begin() as tx:
            if not seen:
                await tx.workers.seen(worker, now=world.clock.now())
            found = await find(tx)
        seen = True
        return found

    return await until(world, look, limit=world.poll_wait, signals=signals, reread=_REREAD)
