"""Store the launches of workers in a cluster."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, delete, select
from sqlalchemy.dialects.postgresql import insert

from service.domain.launching import End, Hold, Launch
from service.meta_store.documents import printable
from service.meta_store.engine import OnConnection
from service.meta_store.schema.launches import launch as launches
from service.protocol.ids import GraphId, WorkerId


class PostgresLaunches(OnConnection):
    """See `service.ports.launches.Launches`."""

    async def all(self) -> Sequence[Launch]:
        found = await self._connection.execute(select(launches).order_by(launches.c.graph, launches.c.attempt))
        return [_launch(row) for row in found]

    async def put(self, launch: Launch) -> None:
        held, end = launch.held, launch.end
        progress = {
            "posted_at": launch.posted_at,
            "held_cause": None if held is None else held.cause,
            "held_text": None if held is None else printable(held.text),
            "held_since": None if held is None else held.since,
            "ended_at": None if end is None else end.at,
            "reason": None if end is None else printable(end.reason),
            "failures": None if end is None else end.failures,
            "due": None if end is None else end.due,
        }
        identity = {"graph": launch.graph, "attempt": launch.attempt, "asked_at": launch.asked_at}
        new = insert(launches).values(worker=launch.worker, **identity, **progress)
        await self._connection.execute(new.on_conflict_do_update(index_elements=["worker"], set_=progress))

    async def forget(self, workers: Collection[WorkerId]) -> None:
        await self._connection.execute(delete(launches).where(launches.c.worker.in_(list(workers))))


def _launch(row: Row[Any]) -> Launch:
    return Launch(
        worker=WorkerId(row.worker),
        graph=GraphId(row.graph),
        attempt=row.attempt,
        asked_at=row.asked_at,
        posted_at=row.posted_at,
        held=None if row.held_cause is None else Hold(row.held_cause, row.held_text, row.held_since),
        end=None if row.ended_at is None else End(row.ended_at, row.reason, row.failures, row.due),
    )
