"""End sessions of users' own tools that exceed their limits, so that none holds up others for longer (I13).

A login that wrote is closed for some time: it could do that again at once.
"""

from service.operations.read_logins import bar
from service.operations.world import World
from service.protocol.ids import Term
from service.telemetry.log import logger

log = logger("sessions")


async def end_overdue(world: World, *, term: Term) -> int:
    """End them, record each, and return their number. Raises Deposed, Unavailable."""
    if world.read_sessions is None:
        return 0
    ended = await world.read_sessions.end_overdue()
    for one in ended:
        facts = {"pid": one.pid, "login": one.login, "reason": one.reason}
        log.warning("session.ended", **facts)
        async with world.stores.begin(term) as tx:
            await tx.events.append("session.ended", facts, now=world.clock.now())
        if one.wrote:
            await bar(world, one.login)
    return len(ended)
