"""`/v1/events`: the event log, live as server-sent events, or page by page as JSON.

A stream resumes after `Last-Event-ID` or `after`; without either it starts now. A page starts at the beginning.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from service.api.access import AskedBy, needs
from service.api.calling import Here, Limit
from service.api.credentials import Credentials
from service.api.crowd import CountedStream
from service.domain.roles import Role, permits
from service.operations.status import history
from service.operations.world import World
from service.ports.records import Event
from service.protocol.ids import BIGINT_MAX

router = APIRouter(prefix="/v1", tags=["events"])

KEEP_ALIVE: Final = timedelta(seconds=10)
"""A comment is sent after this silence. Proxies cut silent connections after about a minute."""
_PAGE: Final = 100
_FRAMES_CHARACTERS: Final = 64 << 10
"""How much is written at once: all of it stays in memory until the client has read it."""

_STREAM: Final[dict[str, Any]] = {"text/event-stream": {"schema": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, oldest first. Pass `next` as `after` to get the following page; it is null on the last one."""

    items: Sequence[Event]
    next: str | None


EventId = Annotated[int, Field(ge=0, le=BIGINT_MAX)]


@router.get(
    "/events",
    response_model=EventPage,
    responses={200: {"description": "A page of events, or a stream of them", "content": _STREAM}},
    dependencies=needs(Role.VIEWER),
)
async def list_events(
    world: Here,
    request: Request,
    asked_by: AskedBy,
    after: EventId | None = None,
    limit: Limit = 100,
    last_event_id: Annotated[EventId | None, Header()] = None,
) -> Response:
    """List events, oldest first, with `Accept: application/json`. Otherwise stream them as server-sent events, each
    with its `id`, its kind as `event` and an item of a page as `data`. The stream never ends. It resumes after
    `Last-Event-ID` or `after`, or else starts now. Only admins see events of tokens and secrets.
    """
    cursor = after if last_event_id is None else last_event_id
    discreet = permits(asked_by.role, Role.ADMIN)
    if _wants_json(request.headers.get("accept", "")):
        items, last = await history.events(world, _text, after=cursor or 0, limit=limit, discreet=discreet)
        following = "null" if last is None else f'"{last}"'
        return Response(f'{{"items":[{",".join(items)}],"next":{following}}}', media_type="application/json")
    if cursor is None:
        cursor = await history.newest_event(world)
    frames = stream(world, cursor, partial(_admitted, request), discreet=discreet)
    return CountedStream(frames, request.app.state.streams, asked_by.actor)


async def _admitted(request: Request) -> bool:
    credentials = cast("Credentials", request.app.state.credentials)
    return await credentials.caller(request.scope) is not None


async def stream(
    world: World, after: int, admitted: Callable[[], Awaitable[bool]], *, discreet: bool
) -> AsyncIterator[str]:
    """Yield a frame for every event after `after`, until the client leaves or its token is no longer valid."""
    # Sent at once, so that a client knows that it is connected before any event happens.
    yield ": connected\n\n"
    while await admitted():
        found = await history.next_events(world, after=after, limit=_PAGE, patience=KEEP_ALIVE, discreet=discreet)
        for frames in _frames(found):
            yield frames
        if not found:
            yield ": still here\n\n"
        after = found[-1].id if found else after


def _frames(found: Sequence[Event]) -> Iterator[str]:
    """Yield the frames of events, many together while they are small."""
    frames = ""
    for event in found:
        frames += f"id: {event.id}\nevent: {event.kind}\ndata: {_text(event)}\n\n"
        if len(frames) > _FRAMES_CHARACTERS:
            yield frames
            frames = ""
    if frames:
        yield frames


def _text(event: Event) -> str:
    """Return an event as JSON. A general encoder takes ten times as long, and clients may ask for 1,000."""
    fields = {"id": event.id, "at": event.at.isoformat(), "kind": event.kind, "facts": event.facts}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _wants_json(accept: str) -> bool:
    """Whether the client accepts JSON by name, and not a stream."""
    return "application/json" in accept and "text/event-stream" not in accept
