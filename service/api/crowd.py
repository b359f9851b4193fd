"""How many calls and streams of users there may be at the same time. Workers and probes do not count."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import RETRY_AFTER_SECONDS, UNAVAILABLE, answer
from service.domain.errors import Unavailable

T = TypeVar("T")
_UNCOUNTED = ("/internal/", "/livez", "/readyz", "/metrics")


class Crowd:
    """Refuses a call when as many are in progress as may be. Each holds its body and waits for its answer."""

    def __init__(self, app: ASGIApp, *, calls_max: int) -> None:
        self.app, self.calls_max, self.calls = app, calls_max, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or refuse it."""
        if scope["type"] != "http" or scope["path"].startswith(_UNCOUNTED):
            await self.app(scope, receive, send)
            return
        if self.calls >= self.calls_max:
            detail = f"{self.calls_max} calls are in progress, as many as may be (TIDEFILL_CALLS_MAX): try again later"
            refusal = answer(UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
            await refusal(scope, receive, send)
            return
        self.calls += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.calls -= 1


@dataclass
class Streams:
    """How many streams of events there are."""

    streams_max: int
    count: int = 0

    def check(self) -> None:
        """Raise Unavailable when there are as many as may be."""
        if self.count >= self.streams_max:
            raise Unavailable(f"there are {self.streams_max} streams, as many as may be (TIDEFILL_STREAMS_MAX)")

    async def held(self, stream: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield what a stream does, and count it meanwhile."""
        self.check()
        self.count += 1
        try:
            async for item in stream:
                yield item
        finally:
            self.count -= 1
