"""The stream that tells an open page that something has happened, so that it reads itself again.

It carries no data: a browser that falls behind gets one word about everything that it missed, and holds nobody up. It
reads events together with the streams of `/v1/events`, and needs nothing of the stores for a page that nobody has open.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final

from fastapi import APIRouter, Request

from service.api.access import AskedBy, needs
from service.api.calling import Here
from service.api.crowd import CountedStream
from service.api.routes.events import KEEP_ALIVE
from service.domain.roles import Role
from service.operations.polling import rest
from service.operations.status import history
from service.operations.world import World
from service.pages.door import bearer
from service.pages.sessions import Sessions

router = APIRouter()
PACE: Final = timedelta(seconds=1)
"""A page is told at most once in this time, however much happens."""
_EVENTS_MAX: Final = 500


@router.get("/live", dependencies=needs(Role.VIEWER))
async def stream_changes(request: Request, world: Here, asked_by: AskedBy) -> CountedStream:
    """Stream the word `changed`, until the client leaves or its session ends."""
    frames = stream(world, await history.newest_event(world), partial(_admitted, request))
    return CountedStream(frames, request.app.state.streams, asked_by.actor)


async def stream(world: World, after: int, admitted: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    """Yield a frame when events have happened after `after`, at most one for each `PACE`."""
    yield ": connected\n\n"
    while await admitted():
        found = await history.next_events(world, after=after, limit=_EVENTS_MAX, patience=KEEP_ALIVE, discreet=True)
        if not found:
            yield ": still here\n\n"
            continue
        yield "event: changed\ndata: -\n\n"
        await rest(world, PACE)
        # Events of the pause are told by the next frame, and more than a page of them by the same one.
        after = found[-1].id if len(found) < _EVENTS_MAX else await history.newest_event(world)


async def _admitted(request: Request) -> bool:
    """Whether the caller may still read, as the door decided at first."""
    id_: str | None = request.state.session
    if id_ is None:
        return True
    sessions: Sessions = request.app.state.sessions
    session = sessions.called(id_)
    if session is None:
        return False
    return await bearer(request.app.state.credentials, request.scope, session.token.get_secret_value()) is not None
