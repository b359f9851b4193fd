"""Store jobs with their fragments and actors."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, and_, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.errors import NotFound
from service.domain.job import TERMINAL, Job, JobEvent, JobState, after
from service.domain.order import dependents
from service.domain.parallelism import Parallelism, parse_parallelism
from service.meta_store.documents import among, cut, printable, stored, stored_text
from service.meta_store.engine import OnConnection
from service.meta_store.references import add_relation, hold_read, own, store_references
from service.meta_store.relations import store_columns
from service.meta_store.schema.core import (
    BLAMED,
    OPEN,
    TAKEN,
    TRACED,
    actor,
    backfill_position,
    fragment,
    scan_progress,
)
from service.meta_store.schema.core import job as job_table
from service.meta_store.schema.core import relation as relations
from service.meta_store.sources.followed_tables import followed_again, stored_scan
from service.meta_store.sources.sources import hold_secret
from service.ports.records import (
    THE_RELATION,
    NewDml,
    NewFragment,
    NewJob,
    NewOperator,
    NewSourceScan,
    NewSplitScan,
    NewTableScan,
    hidden_id,
)
from service.protocol.connector import Connector
from service.protocol.ids import GraphId, JobId, RelationId
from service.protocol.plan import FragmentKind, PositionState
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Stage
from service.protocol.vnodes import vnodes_of

_ENDS: Final = TERMINAL | {JobState.CREATED, JobState.FAILED}
_TRACED_TOGETHER: Final = 100
_STATES: Final = {one.value: one for one in JobState}
"""A table, because calling the enum would cost as much as the rest of a row. The same holds for `_KINDS`."""
_KINDS: Final = {one.value: one for one in RelationKind}


class PostgresJobs(OnConnection):
    """See `service.ports.meta_store.Jobs`."""

    async def add(self, new: NewJob, *, now: datetime, by: str = "") -> Job:
        """Lock the upstreams' jobs until the transaction ends. Also raises Conflict where one is being removed."""
        await hold_read(self._connection, new.upstreams.union(new.views))
        # Hidden relations are added first, because a relation must have a lower id than its reader.
        hidden = [await self._add_hidden(new, place, one) for place, one in enumerate(new.hidden, 1)]
        made = new.relation
        relation = await add_relation(
            self._connection, made.name, made.kind, definition=new.statement, vnode_count=made.vnode_count
        )
        await own(self._connection, relation, hidden)
        await store_references(self._connection, relation, new.looked_up.union(new.views))
        await store_columns(self._connection, relation, made)
        for one in [one for one in new.fragments if isinstance(one, NewSourceScan)]:
            await followed_again(self._connection, one.cdc)
        ids = {THE_RELATION: relation} | {hidden_id(place): one for place, one in enumerate(hidden)}
        # Job and relation share one id, as in RisingWave, so that the catalogs can join jobs with relations.
        added = insert(job_table).values(
            id=relation,
            relation=relation,
            statement=new.statement,
            state=JobState.INITIAL,
            background=new.background,
            initialized_at=now,
            state_since=now,
            backfill_order=[(ids.get(before, before), ids.get(after, after)) for before, after in new.order],
            parallelism=parallelism_text(new.parallelism),
            backfill_parallelism=parallelism_text(new.backfill_parallelism),
            # The worker may have another number of slots when the job starts.
            rescale_due=new.parallelism is not None,
            serverless=new.serverless,
            resource_group=new.resource_group,
            traceparent=new.traceparent,
            created_by=printable(by),
            own_graph=new.own_graph,
            plan_bytes=new.plan_bytes,
        )
        job = JobId((await self._connection.execute(added.returning(job_table.c.id))).scalar_one())
        for one in new.fragments:
            await self._add_fragment(job, one, dependents(new.order), ids)
        return await self._there(job)

    async def get(self, job: JobId) -> Job | None:
        row = (await self._connection.execute(WHOLE.where(job_table.c.id == job))).first()
        return None if row is None else job_of_row(row)

    async def hold(self, job: JobId) -> Job | None:
        held = JOBS.where(job_table.c.id == job).with_for_update(of=job_table)
        row = (await self._connection.execute(held)).first()
        return None if row is None else job_of_row(row)

    async def hold_all(self, jobs: Collection[JobId]) -> None:
        held = select(job_table.c.id).where(among(job_table.c.id, jobs)).order_by(job_table.c.id)
        await self._connection.execute(held.with_for_update())
        scans = select(fragment.c.id).where(among(fragment.c.job, jobs)).order_by(fragment.c.id)
        await self._connection.execute(scans.with_for_update(key_share=True))

    async def where(
        self,
        states: Collection[JobState] | None = None,
        *,
        graph: GraphId | None = None,
        ids: Collection[JobId] | None = None,
        kept: bool = False,
    ) -> Sequence[Job]:
        found = JOBS if states is None else JOBS.where(job_table.c.state.in_(states))
        found = found if graph is None else found.where(job_table.c.graph == graph)
        found = found if ids is None else found.where(among(job_table.c.id, ids))
        found = found.where(TAKEN) if kept else found
        return [job_of_row(row) for row in (await self._connection.execute(found.order_by(job_table.c.id))).all()]

    async def backfilling(self) -> Sequence[Job]:
        """Read the jobs with one statement, because every commit runs it to show the progress of these jobs."""
        found = (
            JOBS.join(fragment, fragment.c.job == job_table.c.id)
            .join(scan_progress, scan_progress.c.fragment == fragment.c.id)
            .where(OPEN, fragment.c.kind == FragmentKind.CDC_SCAN, job_table.c.state == JobState.CREATED)
        )
        return [job_of_row(row) for row in await self._connection.execute(found.order_by(job_table.c.id))]

    async def move(self, job: JobId, event: JobEvent, *, now: datetime, error: str | None = None) -> Job:
        """`finished_at` is when the creation ended, with or without success. A later drop does not change it.

        Raises NotFound, and IllegalTransition where the job's state does not allow `event`.
        """
        locked = JOBS.where(job_table.c.id == job).with_for_update(of=job_table)
        row = (await self._connection.execute(locked)).first()
        if row is None:
            raise NotFound(f"job {job} not found", kind="job")
        state = after(JobState(row.state), event)
        values: dict[str, Any] = {"state": state, "state_since": now}
        if event is JobEvent.FINISHED and row.backfill_parallelism is not None:
            values["rescale_due"] = True
        if event is JobEvent.STARTED:
            values |= {"started_at": now, "preparing": None}
        if state in _ENDS and row.finished_at is None:
            values["finished_at"] = now
        if error is not None:
            values["error"] = printable(error)
        await self._connection.execute(update(job_table).where(job_table.c.id == job).values(values))
        return await self._there(job)

    async def _there(self, job: JobId) -> Job:
        found = await self.get(job)
        assert found is not None
        return found

    async def grown(self, rows: int, state: JobState) -> Mapping[JobId, int]:
        view = relations.alias("view")
        its = or_(relations.c.id == view.c.id, relations.c.owner == view.c.id)
        total = func.sum(relations.c.key_count)
        joined = job_table.join(view, view.c.id == job_table.c.relation).join(relations, its)
        found = select(job_table.c.id, total.label("total")).select_from(joined).group_by(job_table.c.id)
        found = found.where(job_table.c.state == state, view.c.kind == RelationKind.MATERIALIZED_VIEW)
        return {JobId(row.id): int(row.total) for row in await self._connection.execute(found.having(total > rows))}

    async def stay(self, job: JobId, reason: str) -> None:
        stays = update(job_table).where(job_table.c.id == job)
        await self._connection.execute(stays.values(own_graph=printable(reason)))

    async def take_traced(self) -> Sequence[tuple[Job, str]]:
        ended = JOBS.add_columns(job_table.c.traceparent).where(TRACED, job_table.c.finished_at.is_not(None))
        locked = ended.order_by(job_table.c.id).limit(_TRACED_TOGETHER).with_for_update(of=job_table, skip_locked=True)
        found = [(job_of_row(row), row.traceparent) for row in await self._connection.execute(locked)]
        if found:
            taken = update(job_table).where(among(job_table.c.id, (job.id for job, _ in found)))
            await self._connection.execute(taken.values(traceparent=None))
        return found

    async def _add_hidden(self, new: NewJob, place: int, relation: Relation) -> RelationId:
        """Store a hidden relation. `own` makes it an internal table as soon as its owner exists."""
        added = await add_relation(
            self._connection,
            f"__{new.relation.name}_{place}",
            new.relation.kind,
            definition=new.statement,
            vnode_count=relation.vnode_count,
        )
        await store_columns(self._connection, added, relation)
        return added

    async def _add_fragment(
        self, job: JobId, new: NewFragment, late: Collection[RelationId], ids: Mapping[RelationId, RelationId]
    ) -> None:
        row = insert(fragment).values(job=job, **_stored(new, late, ids))
        added = (await self._connection.execute(row.returning(fragment.c.id))).scalar_one()
        # One statement, so that the actors get ids in the given order.
        actors = [{"fragment": added, "runs": runs} for runs in new.actors]
        await self._connection.execute(insert(actor).values(actors))
        for name in sorted(_secrets(new)):
            await hold_secret(self._connection, name)
        if isinstance(new, NewTableScan | NewSourceScan):
            await self._connection.execute(insert(scan_progress).values(fragment=added))
        if isinstance(new, NewSourceScan) and new.completed:
            done = [
                {"fragment": added, "vnode": vnode, "state": PositionState.COMPLETED, "rows": 0}
                for runs in new.actors
                for vnode in vnodes_of(runs)
            ]
            await self._connection.execute(insert(backfill_position).values(done))


class PostgresFailures(OnConnection):
    """See `service.ports.jobs.Failures`."""

    async def blame(self, job: JobId | None, *, graph: GraphId) -> int:
        creating = and_(job_table.c.graph == graph, job_table.c.state == JobState.CREATING)
        lived = update(job_table).where(creating).values(recoveries=job_table.c.recoveries + 1)
        await self._connection.execute(lived)
        others = and_(job_table.c.graph == graph, BLAMED)
        if job is not None:
            others = and_(others, job_table.c.id != job)
        await self._connection.execute(update(job_table).where(others).values(failures=0))
        blamed = update(job_table).where(job_table.c.id == job).values(failures=job_table.c.failures + 1)
        failures = (
            None if job is None else (await self._connection.execute(blamed.returning(job_table.c.failures))).scalar()
        )
        return failures or 0

    async def blamed(self, graph: GraphId) -> bool:
        found = select(exists().where(job_table.c.graph == graph, BLAMED))
        return bool((await self._connection.execute(found)).scalar())


def _secrets(new: NewFragment) -> Collection[str]:
    """Return the names of the secrets that a connector uses."""
    match new:
        case (
            NewTableScan(sink=Connector(secrets=secrets))
            | NewSourceScan(lake=Connector(secrets=secrets))
            | NewSplitScan(connector=Connector(secrets=secrets))
        ):
            return frozenset(secrets.values())
        case _:
            return ()


def _stored(new: NewFragment, late: Collection[RelationId], ids: Mapping[RelationId, RelationId]) -> Mapping[str, Any]:
    """Return the columns of a fragment. `ids` are those of the job's own relations, by what stands for them.

    A scan whose node is in `late` starts in the state `waiting`.
    """
    match new:
        case NewDml():
            return {"kind": FragmentKind.DML}
        case NewTableScan():
            return {
                "kind": FragmentKind.STREAM_SCAN,
                "upstream": ids.get(new.upstream, new.upstream),
                "query": stored(new.query.with_ids(ids) if isinstance(new.query, Stage) else new.query),
                "scan_type": new.scan_type,
                "rate_limit": new.rate_limit,
                "auto": new.auto,
                "waiting": new.node in late,
                "output": None if new.output is None else ids[hidden_id(new.output)],
                "connector": None if new.sink is None else new.sink.model_dump(),
            }
        case NewSourceScan():
            return {
                "kind": FragmentKind.CDC_SCAN,
                "source": new.cdc.source.id,
                "cdc": stored_text(stored_scan(new.cdc)),
                "rate_limit": new.rate_limit,
                "auto": new.auto,
                "added": new.added,
                "connector": None if new.lake is None else new.lake.model_dump(),
            }
        case NewSplitScan():
            return {
                "kind": FragmentKind.SOURCE_SCAN,
                "connector": new.connector.model_dump(),
            }
        case NewOperator():
            return {
                "kind": FragmentKind.OPERATOR,
                "query": stored(new.query.with_ids(ids)),
                "output": None if new.output is None else ids[hidden_id(new.output)],
            }


_COLUMNS: Final = (
    job_table.c.id,
    job_table.c.relation,
    relations.c.name,
    relations.c.kind,
    job_table.c.statement,
    job_table.c.state,
    job_table.c.background,
    job_table.c.initialized_at,
    job_table.c.started_at,
    job_table.c.finished_at,
    job_table.c.error,
    job_table.c.parallelism,
    job_table.c.backfill_parallelism,
    job_table.c.failures,
    job_table.c.recoveries,
    job_table.c.graph,
    job_table.c.state_since,
    job_table.c.serverless,
    relations.c.shown,
    relations.c.held_back,
    job_table.c.preparing,
    job_table.c.resource_group,
    job_table.c.created_by,
    job_table.c.own_graph,
)
_LONG: Final = (job_table.c.statement, job_table.c.error)


def _jobs(*columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    return select(*columns).join_from(job_table, relations, relations.c.id == job_table.c.relation)


WHOLE: Final = _jobs(*_COLUMNS)
"""One job, with its whole texts."""
JOBS: Final = _jobs(*(cut(one) if any(one is each for each in _LONG) else one for one in _COLUMNS))
"""Any number of jobs, with the beginnings of their texts."""
_WIDTH: Final = len(JOBS.selected_columns)


def job_of_row(row: Row[*tuple[Any, ...]]) -> Job:
    """Return the job of a row that begins with the columns of `JOBS`."""
    # Unpacked by position, in the order of a job's fields. Access by name takes twice as long, and a list may have a
    # thousand jobs.
    id_, relation, name, kind, statement, state, *others = row[:_WIDTH]
    background, initialized, started, finished, error, parallelism, backfill_parallelism, *rest = others
    return Job(
        JobId(id_),
        RelationId(relation),
        name,
        _KINDS[kind],
        statement,
        _STATES[state],
        background,
        initialized,
        started,
        finished,
        error,
        _parallelism(parallelism),
        _parallelism(backfill_parallelism),
        *rest,
    )


def parallelism_text(parallelism: Parallelism | None) -> str | None:
    """Return the stored text of a parallelism."""
    return None if parallelism is None else str(parallelism)


def _parallelism(text: str | None) -> Parallelism | None:
    return None if text is None else parse_parallelism(text)
