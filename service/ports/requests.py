"""Store the requests to workers, which are independent of barriers. Part of `service.ports.meta_store`."""

from datetime import datetime, timedelta
from typing import Final, Protocol

from service.protocol.ids import GraphId, RequestId, WorkerId
from service.protocol.request import Analyzed, Rejected, Request, Verified

REQUEST_TRIES_MAX: Final = 3
"""The maximum number of workers that get one request, because the request may be what kills them."""


class Requests(Protocol):
    """Requests to workers, which are independent of barriers."""

    async def add(self, request: Request, graph: GraphId, *, now: datetime, hold: timedelta) -> RequestId:
        """Store a request, whose id is assigned here. After `hold` without an answer another worker gets it too."""
        ...

    async def claim(self, graph: GraphId, worker: WorkerId, *, now: datetime, lease: timedelta) -> Request | None:
        """Return the oldest request for a worker and record that it has it.

        The request is new, or its worker was evicted or has been silent for `lease`, or another worker has had it for
        too long. At most `REQUEST_TRIES_MAX` workers get it.
        """
        ...

    async def lost(self, request: RequestId, *, now: datetime, lease: timedelta) -> bool:
        """Whether the last worker that may get the request was evicted or has been silent for `lease`."""
        ...

    async def answer(self, response: Analyzed | Verified | Rejected) -> None: ...

    async def response(self, request: RequestId) -> Analyzed | Verified | Rejected | None: ...

    async def forget(self, request: RequestId) -> None: ...

    async def forget_older(self, than: datetime) -> None: ...
