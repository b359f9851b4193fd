"""Store barriers in flight and their history, and fence the answers of workers (I7).

States: INJECTED -> COLLECTED | FAILED, and COLLECTED -> COMMITTED, directly or through ATTACHED. A recovery moves a
barrier that is not committed to ABANDONED.
Next: `workers.agent`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import Row, and_, bindparam, delete, exists, func, insert, null, select, update
from sqlalchemy import case as case_

from service.domain.errors import Invalid, Stale
from service.meta_store.documents import Ids, among, printable, stored, text_of
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import IN_FLIGHT, UNCOMMITTED, command, graph, statement
from service.meta_store.schema.core import barrier as barriers
from service.meta_store.schema.launches import worker
from service.ports.records import BarrierRecord
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.dml import InsertStaged
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch, Generation, GraphId, WorkerId
from service.protocol.mutation import MUTATION, Add
from service.protocol.report import Collected, Failed

KEPT: Final = 1_000
"""How many of a graph's newest barriers stay readable: a quarter of an hour at one per second."""


_NONE: Final[Mapping[GraphId, Epoch]] = {}

# The statements that every barrier runs are built once, because building them costs more than running them.
_OF_GRAPH: Final = barriers.c.graph == bindparam("of_graph")
_TAKEN: Final = (
    func.unnest(bindparam("graphs", type_=Ids()), bindparam("epochs", type_=Ids()))
    .table_valued("graph", "epoch")
    .render_derived("taken")
)
_FOR_WORKER: Final = (
    select(text_of(barriers.c.payload))
    .where(barriers.c.worker == bindparam("by"), barriers.c.state == "INJECTED", IN_FLIGHT)
    .where(~exists().where(_TAKEN.c.graph == barriers.c.graph, _TAKEN.c.epoch == barriers.c.epoch))
    # Every statement waits for the database graph. Graphs of views may be many.
    .order_by(barriers.c.graph != DATABASE_GRAPH, barriers.c.epoch)
    .limit(1)
)
_ASKED: Final = and_(
    _OF_GRAPH,
    barriers.c.epoch == bindparam("of_epoch"),
    barriers.c.state != "ABANDONED",
    barriers.c.worker == bindparam("by"),
    barriers.c.generation == bindparam("in"),
    ~exists().where(worker.c.id == bindparam("by"), worker.c.given_up),
)
_COVERED: Final = and_(
    _OF_GRAPH, barriers.c.epoch <= bindparam("upto"), UNCOMMITTED, barriers.c.state.in_(("COLLECTED", "ATTACHED"))
)
_COLLECTED: Final = (
    select(text_of(barriers.c.payload), text_of(barriers.c.answer)).where(_COVERED).order_by(barriers.c.epoch)
)
_COMMIT: Final = (
    update(barriers)
    .where(_COVERED)
    .values(state="COMMITTED", committed_at=bindparam("now"), payload=null(), answer=null())
    .returning(barriers.c.epoch)
)
_INJECT: Final = (
    update(graph)
    .where(graph.c.id == bindparam("of_graph"), graph.c.generation == bindparam("in"))
    .where(graph.c.newest < bindparam("curr"))
    .values(newest=bindparam("curr"), last_injected_at=bindparam("now"))
    .returning(graph.c.id)
)
_WORKED: Final = exists().where(_COVERED, barriers.c.kind != BarrierKind.INITIAL).correlate(None)
_ADVANCE: Final = (
    update(graph)
    .where(graph.c.id == bindparam("of_graph"))
    .values(
        committed=bindparam("upto"),
        attempts=case_((_WORKED, 0), else_=graph.c.attempts),
        recovering_since=case_((_WORKED, null()), else_=graph.c.recovering_since),
    )
)
"""Store the committed epoch. A commit that covers initial barriers only does not reset the count of failed attempts,
because a start may have had no work. Otherwise a graph that always fails at its second barrier would restart without a
back-off.
"""
_OLDEST_KEPT: Final = (
    select(barriers.c.epoch).where(_OF_GRAPH).order_by(barriers.c.epoch.desc()).offset(KEPT - 1).limit(1)
)
_TRIM: Final = delete(barriers).where(_OF_GRAPH, barriers.c.epoch < _OLDEST_KEPT.correlate(None).scalar_subquery())


class PostgresBarriers(OnConnection):
    """See `service.ports.meta_store.Barriers`."""

    async def record(self, barrier: Barrier, *, worker: WorkerId, now: datetime, commands: Sequence[CommandId]) -> None:
        """Raises Stale where the graph is not in the barrier's generation, or has a newer epoch: epochs only grow."""
        injected = {"of_graph": barrier.graph, "in": barrier.generation, "curr": barrier.curr, "now": now}
        if (await self._connection.execute(_INJECT, injected)).first() is None:
            raise Stale(barrier.generation)
        await self._connection.execute(_row(barrier, worker, now))
        if commands:
            carried = update(command).where(among(command.c.id, commands)).values(epoch=barrier.curr)
            await self._connection.execute(carried)
        await self._carry(barrier)

    async def for_worker(self, worker: WorkerId, taken: Mapping[GraphId, Epoch] = _NONE) -> Barrier | None:
        values = {"by": worker, "graphs": _array(taken), "epochs": _array(taken.values())}
        payload = (await self._connection.execute(_FOR_WORKER, values)).scalar()
        return None if payload is None else Barrier.model_validate_json(payload)

    async def answer(self, answer: Collected | Failed, *, now: datetime) -> bool:
        """Return whether this is the barrier's first answer. Raises Stale.

        An answer and a recovery that abandons the barrier lock the same row. The first of the two takes effect.
        """
        values: dict[str, Any] = {"answer": stored(answer), "collected_at": now}
        match answer:
            case Collected():
                values |= {"state": "COLLECTED", "timings": answer.timings_ms}
            case Failed():
                values |= {"state": "FAILED", "failure": printable(answer.error)}
        of = {"of_graph": answer.graph, "of_epoch": answer.epoch, "by": answer.worker, "in": answer.generation}
        first = update(barriers).where(_ASKED, barriers.c.state == "INJECTED").values(values)
        if (await self._connection.execute(first.returning(barriers.c.epoch), of)).first() is not None:
            return True
        if (await self._connection.execute(select(barriers.c.epoch).where(_ASKED), of)).first() is None:
            raise Stale(answer.generation)
        return False

    async def collected(self, graph: GraphId, upto: Epoch) -> Sequence[tuple[Barrier, Collected]]:
        rows = await self._connection.execute(_COLLECTED, {"of_graph": graph, "upto": upto})
        try:
            return [(Barrier.model_validate_json(one), Collected.model_validate_json(other)) for one, other in rows]
        except ValidationError as error:
            raise Invalid("another version of tidefill collected this epoch") from error

    async def attach(self, graph: GraphId, epoch: Epoch) -> None:
        collected = and_(barriers.c.graph == graph, barriers.c.epoch == epoch, barriers.c.state == "COLLECTED")
        await self._connection.execute(update(barriers).where(collected).values(state="ATTACHED"))

    async def commit(self, graph: GraphId, epoch: Epoch, *, now: datetime) -> None:
        await self._connection.execute(_ADVANCE, {"of_graph": graph, "upto": epoch})
        rows = (await self._connection.execute(_COMMIT, {"of_graph": graph, "upto": epoch, "now": now})).scalars().all()
        assert epoch in rows, (graph, epoch, rows)
        await self._connection.execute(_TRIM, {"of_graph": graph})

    async def history(self, graph: GraphId, *, limit: int, before: Epoch | None = None) -> Sequence[BarrierRecord]:
        """Newest first. The records have no statements, and an Add has no plans."""
        found = select(barriers).where(barriers.c.graph == graph).order_by(barriers.c.epoch.desc()).limit(limit)
        if before is not None:
            found = found.where(barriers.c.epoch < before)
        return [_record(row) for row in await self._connection.execute(found)]

    async def _carry(self, barrier: Barrier) -> None:
        if not barrier.statements:
            return
        values: dict[str, Any] = {"carried_by": barrier.curr}
        slices = {one.id: one.last for one in barrier.statements if isinstance(one, InsertStaged)}
        if slices:
            values["carried_to"] = case_(
                *((statement.c.id == one, last) for one, last in slices.items()), else_=statement.c.carried_to
            )
        carried = among(statement.c.id, (one.id for one in barrier.statements))
        await self._connection.execute(update(statement).where(carried).values(values))


def _array(numbers: Iterable[int]) -> str:
    """Return the numbers as the text of an array, in this order."""
    return f"{{{','.join(map(str, numbers))}}}"


def _row(barrier: Barrier, worker_id: WorkerId, now: datetime) -> Any:
    # The history keeps an Add without its plans, because they may be megabytes.
    kept = barrier.mutation.model_copy(update={"jobs": ()}) if isinstance(barrier.mutation, Add) else barrier.mutation
    return insert(barriers).values(
        graph=barrier.graph,
        epoch=barrier.curr,
        prev=barrier.prev,
        kind=barrier.kind,
        generation=barrier.generation,
        worker=worker_id,
        state="INJECTED",
        mutation=None if kept is None else stored(kept),
        payload=stored(barrier),
        injected_at=now,
    )


def _record(row: Row[*tuple[Any, ...]]) -> BarrierRecord:
    return BarrierRecord(
        barrier=Barrier(
            graph=GraphId(row.graph),
            generation=Generation(row.generation),
            prev=Epoch(row.prev),
            curr=Epoch(row.epoch),
            kind=BarrierKind(row.kind),
            mutation=None if row.mutation is None else MUTATION.validate_python(row.mutation),
        ),
        injected_at=row.injected_at,
        collected_at=row.collected_at,
        committed_at=row.committed_at,
        published_at=row.published_at,
        failure=row.failure,
        timings_ms=row.timings,
    )
