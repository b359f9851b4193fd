"""Gain, renew and release the leader lease."""

from service.domain.barrier import Chore
from service.domain.errors import Conflict
from service.domain.leadership import LEASE, Leadership
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker


async def lead(world: World, holder: str, *, leading: Leadership | None) -> Leadership | None:
    """Try once to gain the lease, or to renew that of a leader. Return the new leadership, or None for a follower.

    A new term claims the state store before this returns (I7). A leader whose lease was handed over does not gain it
    back at once: another service has the first attempt.
    """
    started = world.clock.monotonic()
    async with world.stores.begin() as tx:
        attempt = tx.leases.gain if leading is None else tx.leases.renew
        term = await attempt(holder, lease=LEASE)
        if term is not None and (leading is None or leading.term != term):
            await tx.events.append("leader.gained", {"term": term, "holder": holder}, now=world.clock.now())
    if term is None:
        return None
    if leading is None or leading.term != term:
        await world.state_store.fences.claim(term)
    return Leadership.gained(term, attempt_started=started)


async def resign(world: Context, holder: str) -> None:
    """Release the lease, so that another process can take over at once."""
    async with world.stores.begin() as tx:
        await tx.leases.release(holder)
    world.signals.notify(Chore.ELECT)


@retried
async def hand_over(world: Context, *, asked_by: Asker) -> None:
    """Take the lease from the service that leads, whichever it is, so that another one gains it now.

    If there is no other, the same service gains it again after `RENEW_EVERY`. Raises Conflict if no service leads.
    """
    now = world.clock.now()
    async with world.stores.begin(by=asked_by) as tx:
        if not await tx.leases.take():
            raise Conflict("no service leads now")
        await tx.events.append("leader.handed_over", {"asked_by": asked_by.actor}, now=now)
    world.signals.notify(Chore.ELECT)
