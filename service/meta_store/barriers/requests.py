"""Questions to workers outside the barrier sequence."""

from datetime import datetime
from typing import Final

from sqlalchemy import bindparam, delete, exists, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.meta_store.documents import stored, text_of
from service.meta_store.schema.core import UNANSWERED
from service.meta_store.schema.core import request as requests
from service.meta_store.schema.core import worker as workers
from service.protocol.ids import GraphId, RequestId, WorkerId
from service.protocol.request import REQUEST, RESPONSE, Analyzed, Rejected, Request, Verified


class PostgresRequests:
    """See `service.ports.meta_store.Requests`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, request: Request, graph: GraphId, *, now: datetime) -> RequestId:
        new = insert(requests).values(graph=graph, body=stored(request), asked_at=now).returning(requests.c.id)
        return RequestId((await self._connection.execute(new)).scalar_one())

    async def claim(self, graph: GraphId, worker: WorkerId, *, now: datetime) -> Request | None:
        values = {"of_graph": graph, "by": worker, "now": now}
        row = (await self._connection.execute(_CLAIM, values)).first()
        return None if row is None else REQUEST.validate_json(row.body).model_copy(update={"id": RequestId(row.id)})

    async def answer(self, response: Analyzed | Verified | Rejected) -> None:
        """The first answer counts; one to a question that was forgotten is dropped."""
        waiting = update(requests).where(requests.c.id == response.id, UNANSWERED)
        await self._connection.execute(waiting.values(response=stored(response)))

    async def response(self, request: RequestId) -> Analyzed | Verified | Rejected | None:
        found = select(text_of(requests.c.response)).where(requests.c.id == request)
        text = (await self._connection.execute(found)).scalar()
        return None if text is None else RESPONSE.validate_json(text)

    async def forget(self, request: RequestId) -> None:
        await self._connection.execute(delete(requests).where(requests.c.id == request))

    async def forget_older(self, than: datetime) -> None:
        await self._connection.execute(delete(requests).where(requests.c.asked_at < than))


_GIVEN_UP: Final = exists().where(workers.c.id == requests.c.worker, workers.c.given_up)
_OLDEST: Final = (
    select(requests.c.id)
    .where(requests.c.graph == bindparam("of_graph"), UNANSWERED, or_(requests.c.worker.is_(None), _GIVEN_UP))
    .order_by(requests.c.id)
    .limit(1)
    .with_for_update(skip_locked=True, of=requests)
)
_CLAIM: Final = (
    update(requests)
    .where(requests.c.id == _OLDEST.scalar_subquery())
    .values(worker=bindparam("by"), claimed_at=bindparam("now"))
    .returning(requests.c.id, text_of(requests.c.body).label("body"))
)
"""Put together once, because every poll of a worker asks it."""
