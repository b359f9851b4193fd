"""CREATE MATERIALIZED VIEW and EXPLAIN: from a query to a job, and the wait that the session asks for.

Next: `service.sql.views.bind`, then `service.operations.jobs.lifecycle`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.domain.adaptive import AUTO
from service.domain.indexes import lacking
from service.domain.job import JobState
from service.domain.order import Order
from service.domain.own_graph import check_own_graph
from service.domain.parallelism import Parallelism, check_positions, check_vnodes, for_backfill, normal, resolved
from service.domain.placement import blocks
from service.domain.roles import Role
from service.domain.stage_engine import asked_engine
from service.domain.strategy import (
    Strategy,
    check_key,
    check_resource_group,
    check_serverless,
    check_tied,
    chosen,
)
from service.operations.commands.limits import asked_limit, first_limit
from service.operations.jobs import lifecycle
from service.operations.jobs.lifecycle import Asked
from service.operations.jobs.rescaling import actors_beside, slots
from service.operations.leaving import Gone
from service.operations.naming import as_named, named
from service.operations.offload import beside, beside_views
from service.operations.statements import logical_views
from service.operations.statements.call import Call, handles
from service.operations.statements.constant_views import constant_job
from service.operations.statements.outcome import Outcome, tag
from service.operations.statements.own_graphs import own_graph_of
from service.operations.statements.staged_views import (
    NamedOrder,
    StagedView,
    arranged,
    arranged_order,
    check_staged,
    check_store_engine,
    plan_stages,
    scan_limits,
    walked_order,
)
from service.operations.verify import worker_rpc
from service.operations.world import World
from service.ports.indexes import IndexState
from service.ports.records import THE_RELATION, CatalogEntry, NewFragment, NewJob, NewTableScan
from service.protocol.ids import JobId, RelationId
from service.protocol.plan import Prefix, Query, ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import EngineChoice, lookups
from service.sql.queries.plan import needs_stages
from service.sql.statements.logical_views import query_reads
from service.sql.statements.views import CreateMaterializedView, Explain, ExplainBackfill
from service.sql.text.tokens import mentioned
from service.sql.text.tree import Tree
from service.sql.views.backfill_order import dot
from service.sql.views.bind import bind_view, view_relation
from service.sql.views.explain import SCAN_ENGINE, PlannedScan, plan_text
from service.sql.views.explain_costs import Known
from service.sql.views.explain_stages import ExplainedScan, ExplainedStage, stages_text
from service.sql.views.keys import BoundView

SLOW_DDL_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class _Planned:
    """The plan of a materialized view. `order` is the backfill order in names, if the scans have one."""

    new: NewJob
    bound: BoundView | StagedView
    strategy: Strategy
    order: NamedOrder


@dataclass(frozen=True, slots=True)
class _Read:
    """The readable relations and the queries of logical views that a query reads, by name.

    `views` are the logical views that the query names itself.
    """

    relations: Mapping[str, Relation]
    queries: Mapping[str, Tree]
    views: tuple[RelationId, ...]


@handles(CreateMaterializedView, needs=Role.OPERATOR)
async def _create(call: Call, statement: CreateMaterializedView) -> Outcome:
    return await create_from_query(call, statement, RelationKind.MATERIALIZED_VIEW, lambda new: new)


async def create_from_query(
    call: Call, statement: CreateMaterializedView, kind: RelationKind, adapted: Callable[[NewJob], NewJob]
) -> Outcome:
    """Create a view, or an object that is planned as one (a sink). `adapted` turns the view's job into the object's.

    Wait until it is created; with `background_ddl`, only until it starts or waits. Raises Invalid, NotFound, Conflict.
    """
    world, background = call.world, call.session.get("background_ddl") == "true"
    gone = call.gone_from(if_not_exists=statement.if_not_exists)
    taken, noticed = await _taken(world, statement, kind), ()
    if taken is not None:
        asked = Asked(taken.job, existed=True)
    else:
        new = await constant_job(world, statement, kind, background=background)
        if new is None:
            planned = await _plan(call, statement, kind, background=background)
            new, noticed = adapted(planned.new), planned.order.notices
        if new.own_graph is not None:
            noticed = (*noticed, f"{statement.name} has a graph of its own and may lag: {new.own_graph}")
        asked = await lifecycle.create(world, new, if_not_exists=statement.if_not_exists, asked_by=call.asked_by)
    if not asked.existed:
        notices = (*noticed, *await (_started if background else _finished)(world, asked.job, gone))
    else:
        # A background CREATE does not wait for a job that another call has started.
        if not background:
            await lifecycle.finished(world, asked.job, gone=gone)
        notices = _existing(kind, statement.name)
    return await call.made(tag("CREATE", kind), statement.name, notices)


@handles(Explain, needs=Role.VIEWER)
async def _explain(call: Call, statement: Explain) -> Outcome:
    view, kind = statement.view, RelationKind.MATERIALIZED_VIEW
    if await _taken(call.world, view, kind) is not None:
        return _plan_of(_existing(kind, view.name))
    if (constant := await constant_job(call.world, view, kind, background=False)) is not None:
        return _plan_of([f"ConstantRows: {', '.join(one.name for one in constant.relation.visible)}, written once"])
    planned = await _plan(call, view, kind, background=False)
    new = planned.new
    if isinstance(planned.bound, StagedView):
        lines = await _explained(call.world, planned.bound, planned)
        return _plan_of([*lines, *([] if new.own_graph is None else [f"graph of its own: {new.own_graph}"])])
    scans = [
        PlannedScan(scan.upstream.name, scan.query, len(fragment.actors), fragment.rate_limit)
        for scan, fragment in zip(planned.bound.scans, planned.new.table_scans, strict=True)
    ]
    notice = next(iter(planned.order.notices), None)
    limits, edges, serverless = await scan_limits(call.world), planned.order.edges, new.serverless
    return _plan_of(
        plan_text(new.relation, scans, planned.strategy, edges, limits, serverless=serverless, notice=notice)
    )


@handles(ExplainBackfill, needs=Role.VIEWER)
async def _explain_backfill(call: Call, statement: ExplainBackfill) -> Outcome:
    world, view, kind = call.world, statement.view, RelationKind.MATERIALIZED_VIEW
    found, strategy = await _read(world, view), chosen(call.session)
    if not await _staged(call, view, found, strategy, kind):
        return _plan_of(dot((await _bound(world, view, found)).order))
    check_staged(world, view, strategy, kind)
    planned = await plan_stages(world, view, found.relations, found.queries, asked_engine(call.session))
    if strategy.scan_type is ScanType.ARRANGEMENT_BACKFILL:
        return _plan_of(dot((await arranged_order(world, view, planned, found.relations, found.queries)).edges))
    walked = walked_order(view, planned, {*found.relations, *found.queries})
    names = {id_: relation.name for id_, relation in planned.relations.items()}
    return _plan_of(dot(tuple((names[before], names[after]) for before, after in walked.order)))


async def _explained(world: World, view: StagedView, planned: _Planned) -> Iterable[str]:
    new = planned.new
    needed = [lookups(one.stage, view.relations) for one in view.stages]
    read = {one.relation for planned in view.stages for one in planned.stage.inputs if one.relation > THE_RELATION}
    async with world.stores.begin() as tx:
        stored = [one for relation in sorted(read) for one in await tx.stored_indexes.stored(relation)]
    there = {one.index: one.bytes for one in stored if one.state is not IndexState.DROPPING}
    created = [one.index for one in stored if one.state is IndexState.CREATED]
    missing = lacking([index for indexes in needed for index in indexes], created)
    known = Known(await world.lookups.statistics(read), there, await scan_limits(world))
    scans: list[list[ExplainedScan]] = [[] for _ in view.stages]
    for place, scan in enumerate(new.table_scans):
        number, alias = (scan.query.operator, scan.query.alias) if isinstance(scan.query, Prefix) else (place, None)
        scans[number].append(ExplainedScan(len(scan.actors), scan.rate_limit, alias))
    stages = [
        ExplainedStage(one.stage, view.target(one), its, indexes)
        for one, its, indexes in zip(view.stages, scans, needed, strict=True)
    ]
    return stages_text(
        view.relation,
        stages,
        view.relations,
        missing,
        known,
        planned.strategy,
        planned.order.edges,
        serverless=new.serverless,
    )


def _plan_of(lines: Iterable[str]) -> Outcome:
    return Outcome("EXPLAIN", (("QUERY PLAN", "text"),), tuple((line,) for line in lines))


async def _readable(world: World, names: Collection[str], *, read: Collection[str] = ()) -> dict[str, Relation]:
    """Return the stored relations among `names` that a statement may read.

    Raises Conflict if one of `read` is not readable.
    """
    async with world.stores.begin() as tx:
        found = {entry.relation.name: as_named(entry) for entry in await tx.catalog.called(names)}
        for name in sorted(set(read) - found.keys()):
            # An object without rows, such as an index.
            if (other := await named(tx, name)) is not None and other.kind is RelationKind.INDEX:
                raise other.unreadable
    readable = {name: one for name, one in found.items() if one.readable and one.kind.stored}
    if hidden := [found[name] for name in sorted(read) if name in found and name not in readable]:
        raise hidden[0].unreadable
    return {name: one.entry.relation for name, one in readable.items() if one.entry is not None}


async def _read(world: World, statement: CreateMaterializedView) -> _Read:
    """Look up what a query reads. Raises Invalid, NotFound, Conflict."""
    ordered = {one.name for edge in statement.order.edges for one in edge}
    reads = await beside(world.parsers, statement.text, query_reads, statement.query)
    views = await logical_views.queries(world, reads | ordered)
    queries = [statement.query, *(view.query for view in views.values())]
    named_in = ordered.union(*(mentioned(query.text) for query in queries))
    relations = await _readable(world, named_in, read=reads)
    direct = tuple(views[name].id for name in sorted(reads) if name in views)
    return _Read(relations, {name: view.query for name, view in views.items()}, direct)


async def _staged(
    call: Call, statement: CreateMaterializedView, read: _Read, strategy: Strategy, kind: RelationKind
) -> bool:
    """Whether a query is planned as stages. The store computes every stage, but not every scan of one relation."""
    asked, tied = asked_engine(call.session), strategy.scan_type is ScanType.BACKFILL
    if asked is EngineChoice.STORE and kind.stored and not tied:
        return True
    return await beside(call.world.parsers, statement.text, needs_stages, statement.query, read.queries)


async def _bound(world: World, statement: CreateMaterializedView, read: _Read) -> BoundView:
    """Bind a query without joins and aggregates. Raises Invalid, NotFound."""
    parsers, queries = world.parsers, read.queries
    return await beside_views(parsers, statement.text, queries, bind_view, statement, read.relations, queries)


async def _plan(call: Call, statement: CreateMaterializedView, kind: RelationKind, *, background: bool) -> _Planned:
    world, session = call.world, call.session
    # All checks that need no worker come before the request to the worker.
    strategy = chosen(session)
    serverless = statement.serverless
    if serverless is None:
        serverless = session.get("enable_serverless_backfill") == "true"
    if serverless:
        check_serverless(strategy, own_workers=world.own_workers)
    if statement.resource_group is not None:
        await _check_group(world, statement.resource_group, serverless=serverless)
    found = await _read(world, statement)
    if await _staged(call, statement, found, strategy, kind):
        staged = await _planned_stages(call, statement, strategy, kind, found)
        bound, relation, hidden, fragments, order, named_order = staged
    else:
        engine = asked_engine(session)
        bound = (await _bound(world, statement, found)).by(engine)
        check_positions([scan.upstream.vnode_count for scan in bound.scans])
        columns = [await worker_rpc.analyze(world, scan.upstream, scan.query, bound.names) for scan in bound.scans]
        relation, hidden = view_relation(bound, columns, statement.name), ()
        fragments = await _scans(call, statement, strategy, [(scan.upstream, scan.query, None) for scan in bound.scans])
        unable = engine is EngineChoice.STORE and any(scan.query.pushdown is None for scan in bound.scans)
        named_order = NamedOrder(bound.order, notices=(SCAN_ENGINE,) if unable else ())
        order = _ids(named_order, found)
    # A NoShuffle scan always has the actors of its upstream, so the job records no requested parallelism.
    tied = strategy.scan_type is ScanType.BACKFILL
    asked = (None, None) if tied else (normal(session, relation.kind), for_backfill(session))
    new = NewJob(relation, statement.text, background, fragments, *asked, order, found.views, serverless, hidden)
    stays = await own_graph_of(world, new, bound.stages if isinstance(bound, StagedView) else (), session)
    check_own_graph(stays, strategy)
    new = replace(new, resource_group=statement.resource_group, own_graph=stays)
    return _Planned(new, bound, strategy, named_order)


async def _check_group(world: World, group: str, *, serverless: bool) -> None:
    """Raise Invalid if the job's worker cannot have this profile."""
    known = await world.profiles() if serverless and world.profiles is not None else None
    check_resource_group(group, known, serverless=serverless, has_profiles=world.profiles is not None)


async def _planned_stages(
    call: Call, statement: CreateMaterializedView, strategy: Strategy, kind: RelationKind, found: _Read
) -> tuple[StagedView, Relation, tuple[Relation, ...], tuple[NewFragment, ...], Order, NamedOrder]:
    """Return a view of stages, its relations, its fragments and their order, in ids and in names."""
    world, engine = call.world, asked_engine(call.session)
    check_staged(world, statement, strategy, kind)
    if strategy.scan_type is not ScanType.ARRANGEMENT_BACKFILL:
        staged = await plan_stages(world, statement, found.relations, found.queries, engine)
        scans = await _scans(call, statement, strategy, [(one.driver, one.stage, one.output) for one in staged.stages])
        walked = walked_order(statement, staged, {*found.relations, *found.queries})
        return staged, staged.relation, staged.hidden, scans, walked.order, walked.named
    check_store_engine(engine)
    staged = await plan_stages(world, statement, found.relations, found.queries, engine)
    named_order = await arranged_order(world, statement, staged, found.relations, found.queries)
    wanted = [
        (staged.relations[one.relation], Prefix(operator=number, alias=one.alias), None)
        for number, one in staged.occurrences
    ]
    scans = await _scans(call, statement, strategy, wanted)
    return staged, staged.relation, staged.hidden, arranged(staged, scans), _ids(named_order, found), named_order


def _ids(order: NamedOrder, found: _Read) -> Order:
    return tuple((found.relations[before].id, found.relations[after].id) for before, after in order.edges)


async def _scans(
    call: Call,
    statement: CreateMaterializedView,
    strategy: Strategy,
    wanted: Sequence[tuple[Relation, Query, int | None]],
) -> tuple[NewTableScan, ...]:
    """Return the scans of (upstream, query, output) with their actors and limits. Raises Invalid."""
    world, session = call.world, call.session
    check_positions([upstream.vnode_count for upstream, _, _ in wanted])
    for upstream, query, _ in wanted:
        if not isinstance(query, Prefix):
            check_key(upstream.name, upstream.key_types, strategy)
    tied = strategy.scan_type is ScanType.BACKFILL
    parallelism, backfill = normal(session, RelationKind.MATERIALIZED_VIEW), for_backfill(session)
    async with world.stores.begin() as tx:
        available = await slots(tx, now=world.clock.now(), lease=world.worker_lease) or 1
        first = await first_limit(tx)
        beside = [await actors_beside(tx, upstream) if tied else None for upstream, _, _ in wanted]
    limit = asked_limit(statement.backfill_rate_limit, session, given=statement.limited)
    return tuple(
        NewTableScan(
            actors=blocks(
                upstream.vnode_count, _actors(upstream, parallelism, backfill, slots=available, beside=tied_to)
            ),
            upstream=upstream.id,
            query=query,
            scan_type=strategy.scan_type,
            rate_limit=first if limit == AUTO else limit,
            auto=limit == AUTO,
            output=output,
        )
        for (upstream, query, output), tied_to in zip(wanted, beside, strict=True)
    )


def _actors(
    upstream: Relation, parallelism: Parallelism, backfill: Parallelism | None, *, slots: int, beside: int | None
) -> int:
    """Return the initial number of actors of a scan. A NoShuffle scan has that of its upstream (`beside`).

    Raises Invalid.
    """
    vnode_count = upstream.vnode_count
    check_vnodes(parallelism, vnode_count)
    check_vnodes(backfill, vnode_count, backfill=True)
    if beside is None:
        return resolved(backfill or parallelism, slots=slots, vnode_count=vnode_count)
    for asked in (parallelism, backfill):
        check_tied(asked, beside, slots=slots, vnode_count=vnode_count, upstream=upstream.name)
    return beside


async def _taken(world: World, statement: CreateMaterializedView, kind: RelationKind) -> CatalogEntry | None:
    """Return the relation that IF NOT EXISTS finds, or None if the name is free.

    Raises Conflict if the name is taken otherwise. This check comes before any request to a worker.
    """
    async with world.stores.begin() as tx:
        found = await named(tx, statement.name)
    if found is None:
        return None
    if statement.if_not_exists and found.kind is kind:
        return found.entry
    raise found.taken


async def _started(world: World, job: JobId, gone: Gone | None) -> tuple[str, ...]:
    started = await lifecycle.begun(world, job, gone=gone)
    if started.state is JobState.QUEUED:
        return (f"job {job} is queued: {started.queued_by} is reached",)
    if started.state is JobState.CREATING and started.serverless:
        return (f"job {job} is created by a worker of its own, which is started now",)
    return () if started.preparing is None else (f"job {job} waits: {started.preparing}",)


async def _finished(world: World, job: JobId, gone: Gone | None) -> tuple[str, ...]:
    began = world.clock.monotonic()
    await lifecycle.created(world, job, gone=gone)
    seconds = world.clock.monotonic() - began
    if seconds < SLOW_DDL_SECONDS:
        return ()
    return (f"the statement took {seconds:.0f} s; SET background_ddl = true returns at once",)


def _existing(kind: RelationKind, name: str) -> tuple[str, ...]:
    return (f'{kind} "{name}" already exists, skipping',)
