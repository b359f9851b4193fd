"""Serve the calls of workers: register, leave, take and answer barriers, take and answer requests.

Every call is a heartbeat.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final, TypeVar

from service.domain.errors import Conflict
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.meta_store import Transaction
from service.ports.signals import Signals
from service.protocol.api import VERSION, Gone, Left, Registered, Registration
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, RequestId, WorkerId
from service.protocol.report import ActorReport, Collected, Failed
from service.protocol.request import Request, Response

T = TypeVar("T")

_REREAD: Final = timedelta(milliseconds=1500)
"""The interval of reads during a long poll. It bounds the delay of work from another service process."""


@retried
async def register(world: World, registration: Registration) -> Registered:
    """Register a started worker.

    Raises Conflict for another protocol version, and Stale if the worker was evicted or its graph is gone.
    """
    if registration.version != VERSION:
        raise Conflict(f"worker speaks protocol version {registration.version}, this service {VERSION}")
    async with world.stores.begin() as tx:
        await tx.workers.register(registration, now=world.clock.now())
        facts = {"worker": registration.worker, "graph": registration.graph, "host": registration.host}
        await tx.events.append("worker.registered", facts, now=world.clock.now())
    world.signals.notify()
    return Registered(
        wait_seconds=world.workers.poll_wait.total_seconds(),
        lease_seconds=world.workers.lease.total_seconds(),
        dml_url=world.workers.dml_url,
    )


@retried
async def leave(world: World, worker: WorkerId) -> Left:
    """Record that a worker is about to end, and wait until its graphs run elsewhere. Raises Stale."""
    async with world.stores.begin() as tx:
        await tx.workers.seen(worker, now=world.clock.now())
        if new := await tx.workers.leave(worker):
            await tx.events.append("worker.leaving", {"worker": worker}, now=world.clock.now())
    if new:
        world.signals.notify()

    async def relieved(tx: Transaction) -> bool | None:
        known = {one.worker: one for one in await tx.workers.all(now=world.clock.now(), lease=world.patience())}
        own = known[worker]
        successors = (one for one in known.values() if one.graph == own.graph and one.alive and not one.leaving)
        return True if not own.serving and any(successors) else None

    return Left(relieved=await _poll(world, worker, relieved, world.signals) or False)


async def next_barrier(world: World, worker: WorkerId, taken: Mapping[GraphId, Epoch]) -> Barrier | Gone | None:
    """Wait for a barrier that `worker` has neither taken nor answered, or until a graph of `taken` is gone.

    Return None after the wait. Raises Stale.
    """

    async def find(tx: Transaction) -> Barrier | Gone | None:
        barrier = await tx.barriers.for_worker(worker, taken)
        passing = taken.keys() - {DATABASE_GRAPH}
        if barrier is not None or not passing:
            return barrier
        gone = passing - (await tx.graphs.states(passing)).keys()
        return Gone(gone=tuple(sorted(gone))) if gone else None

    return await _poll(world, worker, find, world.workers.barriers)


@retried
async def answer(world: Context, answer: Collected | Failed) -> None:
    """Store the answer to a barrier. A repeated answer is accepted. Raises Stale for an old worker, generation or epoch
    (I7).

    An answer whose row counts go back cannot be committed (I6), so it is stored as a failure.
    """
    with world.timed("collect"):
        async with world.stores.begin() as tx:
            await tx.workers.seen(answer.worker, now=world.clock.now())
            await tx.barriers.answer(await _checked(tx, answer), now=world.clock.now())
    world.signals.notify(answer.graph)


async def _checked(tx: Transaction, answer: Collected | Failed) -> Collected | Failed:
    if isinstance(answer, Failed) or not answer.reports:
        return answer
    receded = await tx.fragments.receded(answer.of(ActorReport))
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
    """Wait for the oldest request that no live worker has claimed. Return None after the wait. Raises Stale."""

    def claim(tx: Transaction) -> Awaitable[Request | None]:
        return tx.requests.claim(graph, worker, now=world.clock.now(), lease=world.patience())

    return await _poll(world, worker, claim, world.workers.requests)


async def wanted(world: Context, request: RequestId) -> bool:
    """Return whether somebody waits for the answer to a request."""
    async with world.stores.begin() as tx:
        return await tx.requests.wanted(request)


@retried
async def respond(world: Context, worker: WorkerId, response: Response) -> None:
    """Store a worker's response to a request. Raises Stale."""
    async with world.stores.begin() as tx:
        await tx.workers.seen(worker, now=world.clock.now())
        await tx.requests.answer(response)
    world.signals.notify()


@retried
async def _poll(
    world: World, worker: WorkerId, find: Callable[[Transaction], Awaitable[T | None]], signals: Signals
) -> T | None:
    """Wait until `find` returns something for the worker. Return None after the wait. The first read is a heartbeat."""
    seen = False

    async def look() -> T | None:
        nonlocal seen
        async with world.stores.begin() as tx:
            if not seen:
                await tx.workers.seen(worker, now=world.clock.now())
            found = await find(tx)
        seen = True
        return found

    return await until(world, look, limit=world.workers.poll_wait, signals=signals, reread=_REREAD)
