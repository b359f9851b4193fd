"""Store graphs: status, generation, committed and published epochs, pause flag."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Join,
    Label,
    Row,
    ScalarSelect,
    Select,
    and_,
    any_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    update,
)

from service.domain.dml import SINGLY
from service.domain.errors import NotFound
from service.domain.graph import (
    DATABASE_POLICY,
    FailedIndex,
    GraphPolicy,
    GraphStatus,
    GraphView,
    InFlight,
    Line,
    OwnWorker,
)
from service.domain.job import HOLDS_PERMIT, JobState, needs_graph
from service.meta_store.documents import Ids, among, list_of, printable, text_of
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.queue import LINE, line_of
from service.meta_store.schema.core import (
    IN_FLIGHT,
    OPEN,
    RESCALE_DUE,
    TAKEN,
    UNCOMMITTED,
    UNFINISHED,
    UNSHOWN,
    WAITING,
    barrier,
    cleanup,
    command,
    fragment,
    job,
    relation,
    scan_progress,
    snapshot_backfill,
    statement,
    system_parameter,
)
from service.meta_store.schema.core import graph as graphs
from service.meta_store.schema.launches import worker as workers
from service.ports.records import GraphState
from service.protocol.barrier import BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId, RelationId, WorkerId
from service.protocol.report import Failed


class PostgresGraphs(OnConnection):
    """See `service.ports.meta_store.Graphs`."""

    async def view(self, graph: GraphId, *, now: datetime, lease: timedelta) -> GraphView:
        """Read the view with one statement, so that it is one database snapshot. It reads by index; history adds no
        cost.

        Raises NotFound.
        """
        found = await self.views([graph], now=now, lease=lease)
        if graph not in found:
            raise NotFound(f"graph {graph} not found", kind="graph")
        return found[graph]

    async def views(
        self, wanted: Collection[GraphId], *, now: datetime, lease: timedelta
    ) -> Mapping[GraphId, GraphView]:
        rows = await self._connection.execute(_VIEWS, {"wanted": list_of(wanted), "alive_after": now - lease})
        return {GraphId(row.id): _graph_view(row) for row in rows}

    async def set_status(
        self,
        graph: GraphId,
        status: GraphStatus,
        *,
        now: datetime,
        reason: str | None = None,
        worker: WorkerId | None = None,
    ) -> Generation:
        values: dict[str, Any] = {"status": status}
        text = None if reason is None else printable(reason)
        match status:
            case GraphStatus.RECOVERING:
                await self._hold_workers(graph)
                values |= _end_of_generation(text, now)
            case GraphStatus.RUNNING:
                assert worker is not None
                values |= {"worker": worker, "attempts": graphs.c.attempts + 1}
            case GraphStatus.WAITING:
                pass
        changed = update(graphs).where(graphs.c.id == graph).values(values).returning(graphs.c.generation)
        generation = Generation((await self._connection.execute(changed)).scalar_one())
        if status is GraphStatus.RECOVERING:
            await self._forget(graph, text)
        return generation

    async def set_paused(self, graph: GraphId, *, paused: bool, now: datetime, by: str | None = None) -> None:
        # Pausing a paused graph keeps the time and the actor of the first pause.
        since = case((graphs.c.paused, graphs.c.paused_since), else_=now) if paused else None
        actor = case((graphs.c.paused, graphs.c.paused_by), else_=by) if paused else None
        changed = update(graphs).where(graphs.c.id == graph)
        await self._connection.execute(changed.values(paused=paused, paused_since=since, paused_by=actor))

    async def state(self, graph: GraphId) -> GraphState:
        found = await self.states([graph])
        if graph not in found:
            raise NotFound(f"graph {graph} not found", kind="graph")
        return found[graph]

    async def states(self, wanted: Collection[GraphId]) -> Mapping[GraphId, GraphState]:
        rows = await self._connection.execute(select(graphs).where(among(graphs.c.id, wanted)))
        return {GraphId(row.id): _state(row) for row in rows}

    async def ask_recovery(self, graph: GraphId, reason: str | None) -> None:
        asked = update(graphs).where(graphs.c.id == graph)
        if reason is not None:
            asked = asked.where(graphs.c.status == GraphStatus.RUNNING)
        await self._connection.execute(asked.values(recover_asked=None if reason is None else printable(reason)))

    async def _hold_workers(self, graph: GraphId) -> None:
        """Lock the workers, because a worker's answer locks the worker and then the barrier."""
        held = select(workers.c.id).where(_serves(graph), not_(workers.c.given_up)).order_by(workers.c.id)
        await self._connection.execute(held.with_for_update(key_share=True))

    async def _forget(self, graph: GraphId, reason: str | None) -> None:
        """Abandon the uncommitted barriers. Their commands and statements wait for a barrier again."""
        ended = (
            update(barrier)
            .where(barrier.c.graph == graph, UNCOMMITTED)
            .values(state="ABANDONED", failure=func.coalesce(barrier.c.failure, reason), payload=None, answer=None)
            .returning(barrier.c.epoch)
        )
        # Update the barriers first: their row locks keep out a late answer while commands and statements are put back.
        epochs = list((await self._connection.execute(ended)).scalars())
        if not epochs:
            return
        await self._connection.execute(
            update(command)
            .where(command.c.graph == graph, UNFINISHED, among(command.c.epoch, epochs))
            .values(epoch=None)
        )
        await self._connection.execute(
            update(statement).where(among(statement.c.carried_by, epochs)).values(carried_by=None, carried_to=None)
        )


def _end_of_generation(reason: str | None, now: datetime) -> dict[str, Any]:
    return {
        "generation": graphs.c.generation + 1,
        "recoveries": graphs.c.recoveries + 1,
        "last_error": reason,
        "recovering_since": now,
        "worker": None,
        "last_injected_at": None,
        "recover_asked": None,
    }


def _state(row: Row[*tuple[Any, ...]]) -> GraphState:
    return GraphState(
        status=GraphStatus(row.status),
        generation=Generation(row.generation),
        committed=Epoch(row.committed),
        published=Epoch(row.published),
        paused=row.paused,
        paused_since=row.paused_since,
        recoveries=row.recoveries,
        last_error=row.last_error,
        paused_by=row.paused_by,
    )


_OF_ITS_SNAPSHOT: Final = (
    snapshot_backfill.c.merged,
    snapshot_backfill.c.indexed,
    snapshot_backfill.c.start_failures,
    snapshot_backfill.c.start_error,
    snapshot_backfill.c.start_due,
    snapshot_backfill.c.index_failures,
    snapshot_backfill.c.index_error,
    snapshot_backfill.c.index_due,
)


def _views() -> Select[*tuple[Any, ...]]:
    wanted = any_(bindparam("wanted", type_=Ids()))
    in_flight = and_(barrier.c.graph == graphs.c.id, IN_FLIGHT)
    database = graphs.c.id == DATABASE_GRAPH
    moving = or_(fragment.c.rate_limit.is_(None), fragment.c.rate_limit > 0)
    return (
        select(
            graphs,
            select(func.max(graphs.c.newest)).correlate(None).scalar_subquery().label("newest_of_all"),
            *_alive(),
            _attached(func.count()).label("uncommitted"),
            _attached(func.max(barrier.c.epoch)).label("attached"),
            *_asked(database),
            _unsettled().label("unsettled"),
            _PARAMETERS.label("parameters"),
            _backfilling(moving).label("backfilling"),
            and_(not_(graphs.c.paused), _backfilling(fragment.c.rate_limit.is_(None))).label("hurries"),
            and_(database, exists().select_from(cleanup)).label("cleanups_waiting"),
            *LINE,
            *_OF_ITS_SNAPSHOT,
            select(func.count()).select_from(snapshot_backfill.alias()).scalar_subquery().label("partial_graphs"),
            job.c.serverless,
            not_(_reading()).label("loaded"),
            job.c.state.label("job_state"),
            job.c.relation.label("job_relation"),
            job.c.own_graph,
            exists().where(relation.c.id == job.c.relation, TAKEN).correlate(job).label("job_kept"),
            barrier.c.epoch,
            barrier.c.kind,
            barrier.c.state,
            barrier.c.injected_at,
            case((barrier.c.state == "FAILED", text_of(barrier.c.answer))).label("failed"),
        )
        .select_from(_with_its_job(graphs.outerjoin(barrier, in_flight)))
        .where(graphs.c.id == wanted)
    )


def _asked(database: ColumnElement[bool]) -> Sequence[Label[bool]]:
    """Return the columns that say what waits for a barrier of the graph."""
    mine = and_(command.c.graph == graphs.c.id, UNFINISHED)
    waiting = and_(mine, command.c.epoch.is_(None))
    return (
        exists().where(waiting, command.c.hurried).label("commands_waiting"),
        exists().where(waiting, command.c.stops).label("stops_waiting"),
        exists().where(mine).label("commands_open"),
        # Only the database graph runs DML; a partial graph runs none. A statement that is carried alone does not hasten
        # a barrier, because no other statement would be answered sooner.
        and_(database, exists().where(WAITING, statement.c.tries < SINGLY)).label("statements_waiting"),
        and_(database, exists().where(WAITING)).label("statements_queued"),
    )


def _unsettled() -> ColumnElement[bool]:
    shown_later = exists().where(UNSHOWN, job.c.relation == relation.c.id, job.c.state == literal_column("'Created'"))
    # A partial index finds the first row of each at once, and one row is enough.
    first = (select(literal(value=True)).where(which).limit(1).scalar_subquery() for which in (OPEN, RESCALE_DUE))
    return or_(shown_later.correlate(None), *(func.coalesce(one, false()) for one in first))


_PARAMETERS: Final = (
    select(func.json_object_agg(system_parameter.c.name, system_parameter.c.value)).correlate(None).scalar_subquery()
)


def _with_its_job(graph: Join) -> Join:
    """Join each partial graph with the rows of its snapshot backfill and of its job."""
    snapshot = graph.outerjoin(snapshot_backfill, snapshot_backfill.c.graph == graphs.c.id)
    return snapshot.outerjoin(job, job.c.id == snapshot_backfill.c.job)


def _serves(graph: GraphId | ColumnElement[int]) -> ColumnElement[bool]:
    """Return whether a worker runs the graph's epochs.

    The workers of the database graph also run the partial graphs, except those of serverless jobs.
    """
    snapshot, its_job = snapshot_backfill.alias(), job.alias()
    jobs = snapshot.join(its_job, its_job.c.id == snapshot.c.job)
    found = select(its_job.c.id).select_from(jobs).where(snapshot.c.graph == graph, its_job.c.serverless)
    # Of this graph: else any serverless job would take their worker from all other graphs.
    own = exists(found.correlate(graphs))
    return workers.c.graph == case((own, graph), else_=DATABASE_GRAPH)


def _reading() -> ColumnElement[bool]:
    """Return whether a scan of a partial graph's job has history left."""
    left = and_(fragment.c.job == snapshot_backfill.c.job, scan_progress.c.fragment == fragment.c.id, OPEN)
    return exists(select(fragment.c.id).where(left))


def _alive() -> Sequence[Label[Any]]:
    """Return the columns with the workers that serve the graph, and with those of them that leave."""
    after = bindparam("alive_after", type_=DateTime(timezone=True))
    alive = and_(_serves(graphs.c.id), not_(workers.c.given_up), workers.c.seen_at > after)
    found = {"alive": alive, "leaving": and_(alive, workers.c.leaving)}
    return [
        func.array(select(workers.c.id).where(which).correlate(graphs).scalar_subquery()).label(name)
        for name, which in found.items()
    ]


def _attached(of: ColumnElement[int]) -> ScalarSelect[int]:
    attached = and_(barrier.c.graph == graphs.c.id, UNCOMMITTED, barrier.c.state == literal_column("'ATTACHED'"))
    return select(of).select_from(barrier).where(attached).correlate(graphs).scalar_subquery()


def _backfilling(how: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return whether a running scan has history left and fulfils `how`.

    Created jobs count too, because a followed table reads its history after its creation. A broken scan does not count:
    its history is never read.
    """
    running = job.c.state.in_(("Creating", "Created"))
    reading = (
        select(literal(value=True))
        .select_from(job)
        .join(fragment, fragment.c.job == job.c.id)
        .join(scan_progress, scan_progress.c.fragment == fragment.c.id)
        .where(OPEN, job.c.graph == graphs.c.id, running, not_(fragment.c.waiting), fragment.c.broken.is_(None), how)
        .correlate(graphs)
    )
    # With EXISTS the planner would join all scans of all jobs, including the queued ones.
    return func.coalesce(reading.limit(1).scalar_subquery(), false())


_VIEWS: Final = _views()
"""Built once: it is the most frequent statement, and the longest."""


def _graph_view(row: Row[*tuple[Any, ...]]) -> GraphView:
    return GraphView(
        graph=GraphId(row.id),
        status=GraphStatus(row.status),
        generation=Generation(row.generation),
        committed=Epoch(row.committed),
        published=Epoch(row.published),
        newest=Epoch(row.newest_of_all),
        worker=None if row.worker is None else WorkerId(row.worker),
        alive=frozenset(WorkerId(worker) for worker in row.alive),
        leaving=frozenset(WorkerId(worker) for worker in row.leaving),
        in_flight=_in_flight(row),
        uncommitted=row.uncommitted,
        attached=None if row.attached is None else Epoch(row.attached),
        last_injected_at=row.last_injected_at,
        attempts=row.attempts,
        recovering_since=row.recovering_since,
        commands_waiting=row.commands_waiting,
        stops_waiting=row.stops_waiting,
        commands_open=row.commands_open,
        statements_waiting=row.statements_waiting,
        statements_queued=row.statements_queued,
        backfilling=row.backfilling,
        hurries=row.hurries,
        recover_asked=row.recover_asked,
        cleanups_waiting=row.cleanups_waiting,
        unsettled=row.unsettled,
        line=line_of(row) if row.id == DATABASE_GRAPH else Line(),
        policy=_policy(row),
        parameters=row.parameters or {},
    )


def _policy(row: Row[*tuple[Any, ...]]) -> GraphPolicy:
    if row.id == DATABASE_GRAPH:
        return DATABASE_POLICY
    return GraphPolicy(
        relation=RelationId(row.job_relation),
        over=not needs_graph(JobState(row.job_state), stays=row.own_graph is not None, kept=row.job_kept),
        stays=row.own_graph is not None,
        created=row.own_graph is not None and row.job_state not in HOLDS_PERMIT,
        merged=bool(row.merged),
        unindexed=bool(row.loaded) and not row.indexed,
        index_failed=None if row.index_due is None else FailedIndex(row.index_failures, row.index_error, row.index_due),
        own_worker=OwnWorker(row.start_failures, row.start_error, row.start_due) if row.serverless else None,
        graphs=row.partial_graphs,
    )


def _in_flight(row: Row[*tuple[Any, ...]]) -> InFlight | None:
    if row.epoch is None:
        return None
    return InFlight(
        epoch=Epoch(row.epoch),
        kind=BarrierKind(row.kind),
        injected_at=row.injected_at,
        collected=row.state == "COLLECTED",
        failure=None if row.failed is None else Failed.model_validate_json(row.failed),
    )
