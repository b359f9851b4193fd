"""Limit the concurrent calls and event streams of users, of all together and of each. Calls of workers and probes do
not count.
"""

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import cast

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import RETRY_AFTER_SECONDS, UNAVAILABLE, answer, answer_to
from service.domain.errors import Unavailable
from service.domain.quotas import too_many_calls
from service.domain.shares import Shares
from service.operations import quotas
from service.operations.world import World
from service.ports.audit import Asker

_PROBES = frozenset({"/livez", "/readyz", "/metrics"})


class Crowd:
    """Refuses a call when its caller's share of `calls` is taken, because each call keeps its body in memory while it
    waits for its answer. Refuses it also when its caller has as many in progress as the quota of its role.
    """

    def __init__(self, app: ASGIApp, *, calls: Shares) -> None:
        self.app, self.calls = app, calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or refuse it."""
        uncounted = scope["type"] != "http" or scope["path"].startswith("/internal/")
        if uncounted or (scope["path"] in _PROBES and scope["method"] == "GET"):
            await self.app(scope, receive, send)
            return
        caller = cast("Asker | None", scope.get("state", {}).get("caller"))
        actor = "" if caller is None else caller.actor
        refusal = self._full(actor)
        if refusal is None and caller is not None:
            world = cast("World", scope["app"].state.world)
            bound = await quotas.calls_bound(world, caller.role)
            # Nothing is awaited between these comparisons and the count.
            if bound is not None and (calls := self.calls.held[actor]) >= bound.value:
                refusal = answer_to(quotas.counted(world, too_many_calls(bound, actor, calls)))
            else:
                refusal = self._full(actor)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        self.calls.take(actor)
        try:
            await self.app(scope, receive, send)
        finally:
            self.calls.free(actor)

    def _full(self, actor: str) -> Response | None:
        """Return the refusal of a call, if its caller's share is taken."""
        if self.calls.room(actor):
            return None
        detail = (
            f"{self.calls.held[actor]} calls of this caller are in progress, of {self.calls.taken} in all"
            f" ({self.calls.places} may be: TIDEFILL_CALLS_MAX): try again later"
        )
        return answer(UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


class Streams:
    """Counts the open event streams."""

    def __init__(self, streams_max: int) -> None:
        self.streams = Shares(streams_max)

    @contextmanager
    def place(self, caller: str) -> Generator[None]:
        """Count a stream as open while the block runs. Raises Unavailable when the caller's share is open."""
        if not self.streams.room(caller):
            raise Unavailable(
                f"{self.streams.held[caller]} streams of this caller are open, of {self.streams.taken} in all"
                f" ({self.streams.places} may be: TIDEFILL_STREAMS_MAX)"
            )
        self.streams.take(caller)
        try:
            yield
        finally:
            self.streams.free(caller)


class CountedStream(StreamingResponse):
    """An event stream that takes its place in the step before its head is sent, so that a refusal is an answer."""

    def __init__(self, frames: AsyncIterator[str], streams: Streams, caller: str) -> None:
        super().__init__(frames, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.streams, self.caller = streams, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. Raises what `Streams.place` raises, before anything is sent."""
        with self.streams.place(self.caller):
            await super().__call__(scope, receive, send)
