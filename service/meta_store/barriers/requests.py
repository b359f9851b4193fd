"""Store requests to workers that no barrier carries, and their responses."""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import and_, bindparam, case, delete, exists, not_, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from service.meta_store.documents import stored, text_of
from service.meta_store.engine import OnConnection
from service.meta_store.schema.launches import UNANSWERED
from service.meta_store.schema.launches import request as requests
from service.meta_store.schema.launches import worker as workers
from service.ports.workers import REQUEST_TRIES_MAX
from service.protocol.ids import GraphId, RequestId, WorkerId
from service.protocol.request import REQUEST, RESPONSE, Rejected, Request, Response

NOBODY: Final = "nobody waits for the answer any more"


class Requests(OnConnection):
    """Requests to workers, which are independent of barriers."""

    async def add(self, request: Request, graph: GraphId, *, now: datetime, hold: timedelta) -> RequestId:
        """Store a request, whose id is assigned here. After `hold` without an answer another worker gets it too."""
        new = insert(requests).values(graph=graph, body=stored(request), asked_at=now, hold=hold)
        return RequestId((await self._connection.execute(new.returning(requests.c.id))).scalar_one())

    async def claim(self, graph: GraphId, worker: WorkerId, *, now: datetime, lease: timedelta) -> Request | None:
        """Return the oldest request for a worker and record that it has it.

        The request is new, or its worker was evicted or has been silent for `lease`, or another worker has had it for
        too long. At most `REQUEST_TRIES_MAX` workers get it.
        """
        values = {"of_graph": graph, "by": worker, "now": now, "silent_since": now - lease}
        row = (await self._connection.execute(_CLAIM, values)).first()
        return None if row is None else REQUEST.validate_json(row.body).model_copy(update={"id": RequestId(row.id)})

    async def lost(self, request: RequestId, *, now: datetime, lease: timedelta) -> bool:
        """Whether the last worker that may get the request was evicted or has been silent for `lease`."""
        found = await self._connection.execute(_LOST, {"request": request, "silent_since": now - lease})
        return found.first() is not None

    async def answer(self, response: Response) -> None:
        """Store the first response. A later one, or one to a forgotten request, changes nothing."""
        waiting = update(requests).where(requests.c.id == response.id, UNANSWERED)
        await self._connection.execute(waiting.values(response=stored(response)))

    async def response(self, request: RequestId) -> Response | None:
        found = select(text_of(requests.c.response)).where(requests.c.id == request)
        text = (await self._connection.execute(found)).scalar()
        return None if text is None else RESPONSE.validate_json(text)

    async def withdraw(self, request: RequestId) -> None:
        """Have the worker that has a request stop computing its answer. One that no worker has is rejected here."""
        rejected = stored(Rejected(id=request, error=NOBODY))
        untaken = case((requests.c.worker.is_(None), rejected), else_=requests.c.response)
        waiting = update(requests).where(requests.c.id == request, UNANSWERED)
        await self._connection.execute(waiting.values(withdrawn=True, response=untaken))

    async def wanted(self, request: RequestId) -> bool:
        """Whether somebody waits for the answer."""
        found = select(requests.c.id).where(requests.c.id == request, UNANSWERED, _WANTED)
        return (await self._connection.execute(found)).first() is not None

    async def forget(self, request: RequestId) -> None:
        await self._connection.execute(delete(requests).where(requests.c.id == request))

    async def forget_older(self, than: datetime) -> None:
        await self._connection.execute(delete(requests).where(requests.c.asked_at < than))


_WANTED: Final = not_(requests.c.withdrawn)
_INSTANT: Final = requests.c.claimed_at.type
_AWAY: Final = exists().where(
    workers.c.id == requests.c.worker,
    or_(workers.c.given_up, workers.c.seen_at <= bindparam("silent_since", type_=_INSTANT)),
)
_HELD_LONG: Final = and_(
    requests.c.worker != bindparam("by"),
    requests.c.claimed_at + requests.c.hold <= bindparam("now", type_=_INSTANT),
)
_FREE: Final = or_(
    requests.c.worker.is_(None),
    and_(requests.c.tries < REQUEST_TRIES_MAX, or_(_AWAY, _HELD_LONG)),
)
_OLDEST: Final = (
    select(requests.c.id)
    .where(requests.c.graph == bindparam("of_graph"), UNANSWERED, _WANTED, _FREE)
    .order_by(requests.c.id)
    .limit(1)
    .with_for_update(skip_locked=True, of=requests)
)
_CLAIM: Final = (
    update(requests)
    .where(requests.c.id == _OLDEST.scalar_subquery())
    .values(worker=bindparam("by"), claimed_at=bindparam("now"), tries=requests.c.tries + 1)
    .returning(requests.c.id, text_of(requests.c.body).label("body"))
)
"""Built once, because every poll of a worker runs it."""
_LOST: Final = select(requests.c.id).where(
    requests.c.id == bindparam("request"),
    UNANSWERED,
    or_(requests.c.tries >= REQUEST_TRIES_MAX, requests.c.withdrawn),
    _AWAY,
)
