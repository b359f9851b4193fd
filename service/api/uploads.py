"""Bound the number of user calls whose bodies are arriving (I13).

Such a call counts in `service.api.crowd`, and its connection is not closed for another one, because it is in use. So
clients that send slowly could use up all calls for as long as a body may take. Therefore the slowest body of the caller
who sends most of them is ended when a new one begins. A body that has only just begun is never ended, so the bound can
be exceeded for a short time.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.middleware import BODILESS
from service.domain.errors import TimedOut
from service.domain.uploading import Arrival, slowest
from service.ports.audit import Asker


class Uploads:
    """Ends a slow arriving body when another one begins while `uploads_max` are arriving."""

    def __init__(
        self, app: ASGIApp, *, uploads_max: int, monotonic: Callable[[], float], setting: str = "TIDEFILL_UPLOADS_MAX"
    ) -> None:
        self.app, self.uploads_max, self.monotonic, self.setting = app, uploads_max, monotonic, setting
        self.arriving: dict[Arrival, _Upload] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request. Its `receive` raises TimedOut after its body was ended."""
        if scope["type"] != "http" or scope["method"] in BODILESS or scope["path"].startswith("/internal/"):
            await self.app(scope, receive, send)
            return
        if len(self.arriving) >= self.uploads_max:
            slow = slowest(self.arriving, now=self.monotonic())
            if slow is not None:
                self.arriving.pop(slow).end()
        caller = cast("Asker | None", scope.get("state", {}).get("caller"))
        upload = _Upload(self, receive, "" if caller is None else caller.actor)
        self.arriving[upload.arrival] = upload
        try:
            await self.app(scope, upload.receive, send)
        finally:
            self.arriving.pop(upload.arrival, None)


class _Upload:
    """One arriving body."""

    def __init__(self, uploads: Uploads, receive: Receive, caller: str) -> None:
        self.uploads, self.inner = uploads, receive
        self.arrival = Arrival(caller)
        self.complete = self.ended = False
        self.wait: asyncio.Timeout | None = None

    def end(self) -> None:
        """Make the present or the next wait for the body fail."""
        self.ended = True
        if self.wait is not None:
            self.wait.reschedule(asyncio.get_running_loop().time())

    async def receive(self) -> Message:
        """Return the next message of the client. Raises TimedOut."""
        if self.complete:
            return await self.inner()  # After the body, the only message is that the client has disconnected.
        if self.ended:
            raise self._gave_way()
        arrival, monotonic = self.arrival, self.uploads.monotonic
        arrival.waiting_since = monotonic()
        try:
            async with asyncio.timeout(None) as self.wait:
                message = await self.inner()
        except TimeoutError:
            raise self._gave_way() from None
        finally:
            arrival.seconds, arrival.waiting_since, self.wait = arrival.waited(monotonic()), None, None
        arrival.size += len(message.get("body", b""))
        if not message.get("more_body", False):
            self.complete = True
            self.uploads.arriving.pop(arrival, None)
        return message

    def _gave_way(self) -> TimedOut:
        most, setting = self.uploads.uploads_max, self.uploads.setting
        return TimedOut(
            f"the body came more slowly than others of {most}, as many as may arrive at once ({setting}):"
            " send it faster, or again later"
        )
