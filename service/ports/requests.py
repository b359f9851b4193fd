"""Questions to workers outside the barrier sequence; part of `service.ports.meta_store`."""

from datetime import datetime, timedelta
from typing import Final, Protocol

from service.protocol.ids import GraphId, RequestId, WorkerId
from service.protocol.request import Analyzed, Rejected, Request, Verified

REQUEST_TRIES_MAX: Final = 3
"""How many workers are asked one question: it may be what ends them."""


class Requests(Protocol):
    """Questions to workers outside the barrier sequence."""

    async def add(self, request: Request, graph: GraphId, *, now: datetime, hold: timedelta) -> RequestId:
        """Store a question (its id is ignored and assigned). A worker that holds it for `hold` shares it."""
        ...

    async def claim(self, graph: GraphId, worker: WorkerId, *, now: datetime, lease: timedelta) -> Request | None:
        """Hand out the oldest question that nobody works on: it is new, its worker was given up or is silent for
        `lease`, or another worker holds it for too long. `REQUEST_TRIES_MAX` workers get it at most.
        """
        ...

    async def lost(self, request: RequestId, *, now: datetime, lease: timedelta) -> bool:
        """Whether the last worker that may be asked was given up or is silent for `lease`."""
        ...

    async def answer(self, response: Analyzed | Verified | Rejected) -> None: ...

    async def response(self, request: RequestId) -> Analyzed | Verified | Rejected | None: ...

    async def forget(self, request: RequestId) -> None: ...

    async def forget_older(self, than: datetime) -> None: ...
