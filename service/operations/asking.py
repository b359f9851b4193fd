"""Send a request to a worker in a turn of its caller, and wait for its answer (I13).

A request takes threads and Spark's slots of the worker that also answers barriers, so nobody asks without a turn. A
turn lasts until the worker has stopped, also that of a caller that has left.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from service.domain.errors import Invalid, Moved, Unavailable
from service.operations.leaving import LEFT, Gone, unless
from service.operations.polling import until
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.workers import REQUEST_TRIES_MAX
from service.protocol.ids import DATABASE_GRAPH, RequestId
from service.protocol.request import Done, Rejected, Request, Response, Selected, TableDescribed, Verified
from service.turns import Turns

NO_WORKER: Final = "no worker is alive"


@dataclass(frozen=True, slots=True)
class Asking:
    """The turn of a caller, in which it asks workers."""

    world: World
    gone: Gone | None = None
    """Returns when nobody waits for the answers any more: the worker then stops what it computes."""

    async def ask(self, request: Request, *, limit: timedelta) -> Verified | Selected | Done | TableDescribed:
        """Return a worker's answer. Raises Invalid with the worker's reason if it rejects the request, and Unavailable.

        The Unavailable is a Moved if the worker says that the same question may be answered later.
        """
        return await _ask(self.world, request, self.gone, limit=limit)


@asynccontextmanager
async def computing(world: World, asked_by: Asker, gone: Gone | None = None) -> AsyncGenerator[Asking]:
    """Wait for a turn to have Spark compute something, and keep it. Raises Unavailable."""
    async with _turn(world.calls.verifications, asked_by, gone):
        yield Asking(world, gone)


@asynccontextmanager
async def looking(world: World, asked_by: Asker, gone: Gone | None = None) -> AsyncGenerator[Asking]:
    """Wait for a turn to have a worker look at a table in a lake, and keep it. Raises Unavailable."""
    async with _turn(world.calls.looks, asked_by, gone):
        yield Asking(world)


def _turn(turns: Turns, asker: Asker, gone: Gone | None) -> AbstractAsyncContextManager[None]:
    return turns.turn(asker.actor, partial(unless, gone))


async def _ask(
    world: World, request: Request, gone: Gone | None, *, limit: timedelta
) -> Verified | Selected | Done | TableDescribed:
    async with world.stores.begin() as tx:
        if not world.workers.startable and not await _served(world, tx):
            raise Unavailable(f"{NO_WORKER}, and this service starts none (TIDEFILL_LAUNCHER): start one and try again")
        hold = limit / REQUEST_TRIES_MAX
        asked = await tx.requests.add(request, DATABASE_GRAPH, now=world.clock.now(), hold=hold)
    world.workers.requests.notify()

    async def look() -> Response | None:
        async with world.stores.begin() as tx:
            answer = await tx.requests.response(asked)
            if answer is None and await tx.requests.lost(asked, now=world.clock.now(), lease=world.patience()):
                raise Unavailable(f"{REQUEST_TRIES_MAX} workers took the question and went silent: try again later")
        return answer

    try:
        async with _withdrawn(world, asked, gone) as leaving:
            response = await until(world, look, limit=limit)
    finally:
        async with world.stores.begin() as tx:
            await tx.requests.forget(asked)
            served = await _served(world, tx)
    if leaving.is_set():
        raise Unavailable(LEFT)
    if response is None:
        raise Unavailable("no worker answered in time" if served else f"{NO_WORKER}: try again when one is")
    if isinstance(response, Rejected) and response.again:
        raise Moved(response.error)
    if isinstance(response, Rejected):
        raise Invalid(response.error)
    return response


@asynccontextmanager
async def _withdrawn(world: World, asked: RequestId, gone: Gone | None) -> AsyncGenerator[asyncio.Event]:
    """Withdraw a request when its caller has left. The event tells of it."""
    leaving = asyncio.Event()

    async def withdraw(gone: Gone) -> None:
        await gone()
        leaving.set()
        async with world.stores.begin() as tx:
            await tx.requests.withdraw(asked)
        world.signals.notify()

    task = None if gone is None else asyncio.create_task(withdraw(gone))
    try:
        yield leaving
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _served(world: World, tx: Transaction) -> bool:
    known = await tx.workers.all(now=world.clock.now(), lease=world.workers.lease)
    return any(worker.alive and worker.graph == DATABASE_GRAPH for worker in known)
