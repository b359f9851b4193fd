"""Build the plans of jobs. The number of statements does not depend on the number of jobs.

Next: `service.meta_store.jobs.jobs`.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Row, Select, Text, and_, cast, exists, func, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.job import JobState
from service.meta_store.documents import among, text_of
from service.meta_store.engine import OnConnection
from service.meta_store.relations import read_relations
from service.meta_store.schema.core import (
    STAGED,
    actor,
    backfill_position,
    fragment,
    job,
    relation,
    scan_progress,
    snapshot_backfill,
)
from service.meta_store.schema.sources import source
from service.meta_store.sources.followed_tables import scan_of
from service.protocol.connector import Connector
from service.protocol.ids import ActorId, FragmentId, JobId, RelationId, Vnode
from service.protocol.plan import (
    ActorPlan,
    DmlPlan,
    FragmentKind,
    FragmentPlan,
    JobPlan,
    OperatorPlan,
    Query,
    ScanType,
    SnapshotPlan,
    SourceScanPlan,
    SplitScanPlan,
    TableScanPlan,
    VnodePosition,
)
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Stage
from service.protocol.vnodes import Runs, vnodes_of

_QUERY: Final[TypeAdapter[Query]] = TypeAdapter(Query)
_POSITIONS: Final = TypeAdapter(list[VnodePosition])
_STORED: Final = [one for one in RelationKind if one.stored]

_JOBS: Final[Select[*tuple[Any, ...]]] = select(
    job.c.id,
    job.c.relation,
    job.c.state,
    job.c.snapshot_epoch,
    job.c.own_graph,
    job.c.created_by,
    snapshot_backfill.c.graph,
    snapshot_backfill.c.consumed,
).outerjoin(snapshot_backfill, snapshot_backfill.c.job == job.c.id)

_FRAGMENTS: Final[Select[*tuple[Any, ...]]] = (
    select(
        fragment.c.id,
        fragment.c.job,
        fragment.c.kind,
        fragment.c.upstream,
        text_of(fragment.c.query).label("query"),
        fragment.c.scan_type,
        fragment.c.rate_limit,
        fragment.c.waiting,
        fragment.c.source,
        fragment.c.cdc,
        fragment.c.broken,
        fragment.c.output,
        fragment.c.connector,
        and_(scan_progress.c.finished, fragment.c.kind == FragmentKind.STREAM_SCAN).label("finished"),
        relation.c.name.label("source_name"),
        source.c.slot,
        source.c.publication,
        source.c.offset,
        source.c.undecided,
        source.c.readable_after,
    )
    .outerjoin(source, source.c.relation == fragment.c.source)
    .outerjoin(relation, relation.c.id == fragment.c.source)
    .outerjoin(scan_progress, scan_progress.c.fragment == fragment.c.id)
    .order_by(fragment.c.id)
)

Positions = Mapping[int, Mapping[Vnode, VnodePosition]]
"""Fragment -> vnode -> position."""


async def read_plans(
    connection: AsyncConnection, jobs: Collection[JobId], *, positions_too: bool = True
) -> Sequence[JobPlan]:
    """Return plans in order of job id. A job that lost its relation, or one that it reads, has no plan."""
    found = (await connection.execute(_JOBS.where(among(job.c.id, jobs)))).all()
    targets = {row.id: row.relation for row in found}
    callers = {row.id: row.created_by for row in found}
    rows = (await connection.execute(_FRAGMENTS.where(among(fragment.c.job, jobs)))).all()
    queries = {row.id: _QUERY.validate_json(row.query) for row in rows if row.query is not None}
    read = {row.id: _read(row, queries.get(row.id)) for row in rows}
    actors = await read_actors(connection, [row.id for row in rows])
    placed = [row.id for row in rows if positions_too and not row.finished]
    positions = await read_positions(connection, placed)
    needed = set(targets.values()).union(*read.values())
    # Last, because each statement sees what was committed meanwhile: a job that is still there now was there in all.
    stored, hidden = await read_relations(connection, needed, targets.values())
    relations = {one: relation.without_defaults for one, relation in stored.items()}
    gone = {row.job for row in rows if not relations.keys() >= {targets.get(row.job), *read[row.id]}}
    plans: dict[int, list[FragmentPlan]] = defaultdict(list)
    for row in rows:
        if row.job not in gone:
            its_relations = [relations[one] for one in read[row.id]]
            plans[row.job].append(
                _fragment(row, actors[row.id], positions.get(row.id, {}), queries.get(row.id), its_relations)
            )
    snapshots = {row.id: _snapshot(row) for row in found}
    return [
        JobPlan(
            id=JobId(one),
            relation=relations[targets[one]],
            hidden=tuple(hidden.get(targets[one], ())),
            fragments=tuple(plans[one]),
            snapshot=snapshots[one],
            caller=callers[one],
        )
        for one in sorted(targets)
        if targets[one] in relations and one not in gone
    ]


def _read(row: Row[*tuple[Any, ...]], query: Query | None) -> Sequence[RelationId]:
    """Return the relations that a fragment reads, each once, its upstream first."""
    if isinstance(query, Stage):
        return query.relations
    return () if row.upstream is None else (RelationId(row.upstream),)


def _snapshot(row: Row[*tuple[Any, ...]]) -> SnapshotPlan | None:
    """Return the pinned and the replayed epoch of a snapshot job. None after it is created, unless it stays."""
    if row.graph is None or (row.state == JobState.CREATED and row.own_graph is None):
        return None
    return SnapshotPlan(epoch=row.snapshot_epoch, consumed=row.consumed)


async def read_actors(
    connection: AsyncConnection, fragments: Collection[int]
) -> Mapping[int, Sequence[Row[*tuple[Any, ...]]]]:
    """Return the actors of each fragment in order of id."""
    rows = await connection.execute(select(actor).where(among(actor.c.fragment, fragments)).order_by(actor.c.id))
    actors: dict[int, list[Row[*tuple[Any, ...]]]] = defaultdict(list)
    for row in rows:
        actors[row.fragment].append(row)
    return actors


async def read_positions(
    connection: AsyncConnection, fragments: Collection[int], vnodes: Collection[int] | None = None
) -> Positions:
    """Return the stored positions, of all vnodes or of some. A vnode without a position has not started."""
    mine = among(backfill_position.c.fragment, fragments)
    position = func.jsonb_build_object(
        *("vnode", backfill_position.c.vnode),
        *("state", backfill_position.c.state),
        *("key", backfill_position.c.key),
        *("rows", backfill_position.c.rows),
    )
    document = cast(func.jsonb_agg(aggregate_order_by(position, backfill_position.c.vnode)), Text)
    rows = await connection.execute(
        select(backfill_position.c.fragment, document)
        .where(mine if vnodes is None else and_(mine, among(backfill_position.c.vnode, vnodes)))
        .group_by(backfill_position.c.fragment)
    )
    return {one: {position.vnode: position for position in _POSITIONS.validate_json(text)} for one, text in rows}


def runs_of_row(row: Row[*tuple[Any, ...]]) -> Runs:
    """Return the vnodes of an actor's row."""
    return tuple((first, last) for first, last in row.runs)


def _fragment(
    row: Row[*tuple[Any, ...]],
    actors: Sequence[Row[*tuple[Any, ...]]],
    positions: Mapping[Vnode, VnodePosition],
    query: Query | None,
    read: Sequence[Relation],
) -> FragmentPlan:
    one, dealt = FragmentId(row.id), tuple(_actor(one, positions, finished=bool(row.finished)) for one in actors)
    outside = None if row.connector is None else Connector.model_validate(row.connector)
    match FragmentKind(row.kind):
        case FragmentKind.DML:
            return DmlPlan(id=one, actors=dealt)
        case FragmentKind.STREAM_SCAN:
            assert query is not None
            return TableScanPlan(
                id=one,
                actors=dealt,
                rate_limit=row.rate_limit,
                waiting=row.waiting,
                finished=bool(row.finished),
                upstream=read[0],
                query=query,
                scan_type=ScanType(row.scan_type),
                lookups=tuple(read[1:]),
                output=row.output,
                sink=outside,
            )
        case FragmentKind.CDC_SCAN:
            limit, scan = row.rate_limit, scan_of(row)
            return SourceScanPlan(id=one, actors=dealt, rate_limit=limit, waiting=row.waiting, cdc=scan, lake=outside)
        case FragmentKind.SOURCE_SCAN:
            assert outside is not None
            return SplitScanPlan(id=one, actors=dealt, connector=outside)
        case FragmentKind.OPERATOR:
            assert isinstance(query, Stage)
            return OperatorPlan(id=one, actors=dealt, query=query, inputs=tuple(read), output=row.output)


def _actor(row: Row[*tuple[Any, ...]], positions: Mapping[Vnode, VnodePosition], *, finished: bool) -> ActorPlan:
    runs = runs_of_row(row)
    if finished:
        return ActorPlan(id=ActorId(row.id), vnodes=runs, rows=row.rows)
    own = tuple(positions[vnode] for vnode in vnodes_of(runs) if vnode in positions)
    return ActorPlan(id=ActorId(row.id), vnodes=runs, positions=own)


class PostgresPlans(OnConnection):
    """See `service.ports.jobs.Plans`."""

    async def of(self, jobs: Collection[JobId]) -> Sequence[JobPlan]:
        return await read_plans(self._connection, jobs)

    async def outlines(self, jobs: Collection[JobId]) -> Sequence[JobPlan]:
        return await read_plans(self._connection, jobs, positions_too=False)

    async def staged(self) -> Sequence[JobId]:
        staged = exists().where(fragment.c.job == job.c.id, STAGED)
        found = select(job.c.id).where(staged, job.c.state != JobState.FAILED)
        return [JobId(one) for one in (await self._connection.execute(found.order_by(job.c.id))).scalars()]

    async def outputs(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[RelationId]]:
        its = or_(relation.c.id == job.c.relation, relation.c.owner == job.c.relation)
        found = select(job.c.id, relation.c.id.label("output")).join(relation, its)
        stored = found.where(among(job.c.id, jobs), relation.c.kind.in_(_STORED)).order_by(relation.c.id)
        outputs: dict[JobId, list[RelationId]] = defaultdict(list)
        for row in await self._connection.execute(stored):
            outputs[JobId(row.id)].append(RelationId(row.output))
        return outputs
