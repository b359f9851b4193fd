"""Limit the concurrent calls and event streams of users, of all together and of each. Calls of workers and probes do
not count.
"""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeVar, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import RETRY_AFTER_SECONDS, UNAVAILABLE, answer, answer_to
from service.domain.errors import Unavailable
from service.domain.quotas import too_many_calls
from service.operations import quotas
from service.operations.world import World
from service.ports.audit import Asker

T = TypeVar("T")
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})


class Crowd:
    """Refuses a call when `calls_max` are in progress, because each keeps its body in memory while it waits for its
    answer. Refuses it also when its caller has as many in progress as the quota of its role.
    """

    def __init__(self, app: ASGIApp, *, calls_max: int) -> None:
        self.app, self.calls_max, self.calls = app, calls_max, 0
        self.by_caller: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or refuse it."""
        uncounted = scope["type"] != "http" or scope["path"].startswith("/internal/")
        if uncounted or (scope["path"] in _PROBES and scope["method"] == "GET"):
            await self.app(scope, receive, send)
            return
        if self.calls >= self.calls_max:
            detail = f"{self.calls_max} calls are in progress, as many as may be (TIDEFILL_CALLS_MAX): try again later"
            refusal = answer(UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
            await refusal(scope, receive, send)
            return
        self.calls += 1
        try:
            caller = scope.get("state", {}).get("caller")
            if caller is None:
                await self.app(scope, receive, send)
            else:
                await self._counted(cast("Asker", caller), scope, receive, send)
        finally:
            self.calls -= 1

    async def _counted(self, caller: Asker, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request of a known caller, or refuse it."""
        world, actor = cast("World", scope["app"].state.world), caller.actor
        bound = await quotas.calls_bound(world, caller.role)
        # Nothing is awaited between this comparison and the count.
        if bound is not None and (calls := self.by_caller.get(actor, 0)) >= bound.value:
            refusal = quotas.counted(world, too_many_calls(bound, actor, calls))
            await answer_to(refusal)(scope, receive, send)
            return
        self.by_caller[actor] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.by_caller[actor] -= 1
            if not self.by_caller[actor]:
                del self.by_caller[actor]


@dataclass
class Streams:
    """Counts the open event streams."""

    streams_max: int
    count: int = 0

    def check(self) -> None:
        """Raise Unavailable when `streams_max` streams are open."""
        if self.count >= self.streams_max:
            raise Unavailable(f"there are {self.streams_max} streams, as many as may be (TIDEFILL_STREAMS_MAX)")

    async def held(self, stream: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield the items of `stream`, and count it as open meanwhile. Raises what `check` raises."""
        self.check()
        self.count += 1
        try:
            async for item in stream:
                yield item
        finally:
            self.count -= 1
