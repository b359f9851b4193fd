"""Gain, renew and release the leader lease."""

from service.domain.leadership import LEASE, Leadership
from service.operations.world import World


async def lead(world: World, holder: str, *, leading: Leadership | None) -> Leadership | None:
    """Try once to gain or renew the lease. Return the new leadership, or None for a follower.

    A new term claims the state store before this returns (I7).
    """
    started = world.clock.monotonic()
    async with world.stores.begin() as tx:
        term = await tx.leases.gain(holder, lease=LEASE)
        if term is not None and (leading is None or leading.term != term):
            await tx.events.append("leader.gained", {"term": term, "holder": holder}, now=world.clock.now())
    if term is None:
        return None
    if leading is None or leading.term != term:
        await world.fences.claim(term)
    return Leadership.gained(term, attempt_started=started)


async def resign(world: World, holder: str) -> None:
    """Release the lease, so that another process can take over at once."""
    async with world.stores.begin() as tx:
        await tx.leases.release(holder)
