"""Workers that registered."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import and_, func, not_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.errors import Stale
from service.meta_store.models import worker as workers
from service.ports.records import WorkerRecord
from service.protocol.api import Registration
from service.protocol.ids import GraphId, WorkerId


class PostgresWorkers:
    """See `service.ports.meta_store.Workers`."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def register(self, registration: Registration, *, now: datetime) -> None:
        """A repetition (its answer was lost) is a sign of life. Raises Stale when the worker was given up."""
        new = insert(workers).values(
            id=registration.worker,
            graph=registration.graph,
            host=registration.host,
            pid=registration.pid,
            parallelism=registration.parallelism,
            registered_at=now,
            seen_at=now,
        )
        again = new.on_conflict_do_update(index_elements=["id"], set_={"seen_at": now}, where=not_(workers.c.given_up))
        if (await self._connection.execute(again.returning(workers.c.id))).first() is None:
            raise Stale

    async def seen(self, worker: WorkerId, *, now: datetime) -> None:
        known = and_(workers.c.id == worker, not_(workers.c.given_up))
        sign = update(workers).where(known).values(seen_at=func.greatest(workers.c.seen_at, now))
        if (await self._connection.execute(sign.returning(workers.c.id))).first() is None:
            raise Stale

    async def give_up(self, worker: WorkerId) -> None:
        await self._connection.execute(update(workers).where(workers.c.id == worker).values(given_up=True))

    async def all(self, *, now: datetime, lease: timedelta) -> Sequence[WorkerRecord]:
        """Newest first."""
        rows = await self._connection.execute(select(workers).order_by(workers.c.registered_at.desc(), workers.c.id))
        return [
            WorkerRecord(
                worker=WorkerId(row.id),
                graph=GraphId(row.graph),
                host=row.host,
                pid=row.pid,
                parallelism=row.parallelism,
                registered_at=row.registered_at,
                seen_at=row.seen_at,
                alive=not row.given_up and row.seen_at > now - lease,
            )
            for row in rows
        ]
