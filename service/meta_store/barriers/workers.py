"""Store the registered workers."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import and_, bindparam, delete, exists, func, literal_column, not_, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.errors import Stale
from service.domain.graph import OwnWorker
from service.domain.launching import OwnJob
from service.meta_store.documents import printable
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import graph as graphs
from service.meta_store.schema.core import job, snapshot_backfill
from service.meta_store.schema.launches import launch as launches
from service.meta_store.schema.launches import request
from service.meta_store.schema.launches import worker as workers
from service.ports.records import WorkerRecord
from service.ports.workers import FORGOTTEN_AFTER
from service.protocol.api import Registration
from service.protocol.ids import GraphId, JobId, WorkerId

LISTED: Final = 50
"""How many of the newest workers are listed, in addition to all present ones."""


class PostgresWorkers(OnConnection):
    """See `service.ports.meta_store.Workers`."""

    async def register(self, registration: Registration, *, now: datetime) -> None:
        """Register a worker. A repeated registration, whose answer was lost, counts as a heartbeat.

        Raises Stale where the graph is retired, the worker was evicted, or its launch has ended.
        """
        its_graph = select(graphs.c.id).where(graphs.c.id == registration.graph)
        over = exists().where(launches.c.worker == registration.worker, launches.c.ended_at.is_not(None))
        if (await self._connection.execute(its_graph.where(~over))).first() is None:
            raise Stale
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
        # Lock the graph, so that it is not retired while a worker registers for it.
        held = its_graph.with_for_update(read=True, key_share=True)
        if (await self._connection.execute(held)).first() is None:
            raise Stale

    async def seen(self, worker: WorkerId, *, now: datetime) -> None:
        if (await self._connection.execute(_SIGN_OF_LIFE, {"worker": worker, "now": now})).first() is None:
            raise Stale

    async def leave(self, worker: WorkerId) -> bool:
        stays = and_(workers.c.id == worker, not_(workers.c.leaving))
        left = update(workers).where(stays).values(leaving=True).returning(workers.c.id)
        return (await self._connection.execute(left)).first() is not None

    async def give_up(self, worker: WorkerId) -> None:
        await self._connection.execute(update(workers).where(workers.c.id == worker).values(given_up=True))

    async def all(self, *, now: datetime, lease: timedelta) -> Sequence[WorkerRecord]:
        """Newest first."""
        newest_first = (workers.c.registered_at.desc(), workers.c.id)
        newest = select(workers.c.id).order_by(*newest_first).limit(LISTED)
        present = and_(not_(workers.c.given_up), workers.c.seen_at > now - FORGOTTEN_AFTER)
        wanted = or_(present, workers.c.id.in_(newest))
        serving = exists().where(graphs.c.worker == workers.c.id).label("serving")
        rows = await self._connection.execute(select(workers, serving).where(wanted).order_by(*newest_first))
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
                leaving=row.leaving,
                serving=row.serving,
            )
            for row in rows
        ]

    async def forget(self, *, now: datetime) -> int:
        used = or_(
            exists().where(graphs.c.worker == workers.c.id),
            exists().where(request.c.worker == workers.c.id),
        )
        old = and_(workers.c.seen_at < now - FORGOTTEN_AFTER, not_(used))
        gone = await self._connection.execute(delete(workers).where(old).returning(workers.c.id))
        return len(gone.all())

    async def wanted(self) -> Mapping[GraphId, OwnJob]:
        rows = snapshot_backfill.join(job, job.c.id == snapshot_backfill.c.job)
        stays = and_(job.c.own_graph.is_not(None), job.c.state == literal_column("'Created'"))
        runs = or_(job.c.state == literal_column("'Creating'"), stays)
        creating = and_(job.c.serverless, runs, not_(snapshot_backfill.c.merged))
        found = select(snapshot_backfill.c.graph, job.c.id, job.c.resource_group).select_from(rows).where(creating)
        listed = await self._connection.execute(found.order_by(snapshot_backfill.c.graph))
        return {GraphId(row.graph): OwnJob(JobId(row.id), row.resource_group) for row in listed}

    async def start_failed(self, graph: GraphId, failed: OwnWorker) -> None:
        told = update(snapshot_backfill).where(snapshot_backfill.c.graph == graph)
        error = None if failed.error is None else printable(failed.error)
        await self._connection.execute(
            told.values(start_failures=failed.failures, start_error=error, start_due=failed.due)
        )


# The statements that every barrier runs are built once, because building them costs more than running them.
_SIGN_OF_LIFE: Final = (
    update(workers)
    .where(workers.c.id == bindparam("worker"), not_(workers.c.given_up))
    .where(exists().where(graphs.c.id == workers.c.graph))
    .values(seen_at=func.greatest(workers.c.seen_at, bindparam("now", type_=workers.c.seen_at.type)))
    .returning(workers.c.id)
)
