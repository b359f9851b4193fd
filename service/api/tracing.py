"""The spans of requests that may change something. Known callers only: others could fill the collector."""

from typing import cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.credentials import BODILESS
from service.domain.trace import parse_traceparent
from service.operations.world import World
from service.telemetry.traces import Traces


class Traced:
    """Gives each request a span below the caller's, and sends it when the request has ended."""

    def __init__(self, app: ASGIApp, *, traces: Traces) -> None:
        self.app, self.traces = app, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if scope["type"] != "http" or scope["method"] in BODILESS or not scope["path"].startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        caller = parse_traceparent(Headers(scope=scope).get("traceparent", ""))
        span = self.traces.request_began(caller)
        scope.setdefault("state", {})["span"] = span
        clock = cast("World", scope["app"].state.world).clock
        began, status = clock.now(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            # The path as such may name things, so a request that has no route has none in its span.
            route = cast("str", getattr(scope.get("route"), "path_format", ""))
            self.traces.request_ended(
                span,
                caller,
                began=began,
                ended=clock.now(),
                method=scope["method"],
                route=route,
                status=status,
            )
