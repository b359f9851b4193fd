"""CREATE MATERIALIZED VIEW and EXPLAIN: from a query to a job, and the wait that the session asks for.

Next: `service.operations.statements.staged_views`, then `service.operations.jobs.lifecycle`.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.domain.adaptive import AUTO
from service.domain.connectors import COMMITS
from service.domain.indexes import lacking
from service.domain.job import JobState
from service.domain.own_graph import check_own_graph
from service.domain.parallelism import (
    Parallelism,
    blocks,
    check_actors,
    check_positions,
    check_vnodes,
    for_backfill,
    normal,
    resolved,
)
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
from service.operations.naming import OTHERS_MAX, as_named, named
from service.operations.offload import beside, names_in
from service.operations.statements import logical_views
from service.operations.statements.call import Call, handles
from service.operations.statements.constant_views import constant_job
from service.operations.statements.outcome import Outcome, tag
from service.operations.statements.own_graphs import own_graph_of
from service.operations.statements.staged_views import (
    NamedOrder,
    StagedView,
    WalkedOrder,
    arranged,
    arranged_order,
    check_staged,
    check_store_engine,
    is_kept,
    is_sent_away,
    kept,
    plan_stages,
    scan_limits,
    walked_order,
)
from service.operations.statements.targets import needs, sent
from service.operations.world import Context, World
from service.ports.indexes import IndexState
from service.ports.records import THE_RELATION, CatalogEntry, NewFragment, NewJob, NewTableScan
from service.protocol.ids import JobId, RelationId
from service.protocol.plan import Prefix, Query, ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import EngineChoice, lookups
from service.sql.statements.logical_views import query_reads
from service.sql.statements.views import CreateMaterializedView, Explain, ExplainBackfill
from service.sql.text.tree import Tree
from service.sql.views.backfill_order import dot
from service.sql.views.explain import SINK_ENGINE
from service.sql.views.explain_costs import Known
from service.sql.views.explain_stages import ExplainedScan, ExplainedStage, stages_text

SLOW_DDL_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class _Planned:
    """The plan of a materialized view. `order` is the backfill order in names, if the scans have one."""

    new: NewJob
    view: StagedView
    strategy: Strategy
    order: NamedOrder


@dataclass(frozen=True, slots=True)
class Read:
    """The readable relations and the queries of logical views that a query reads, by name.

    `views` are the logical views that the query names itself.
    """

    relations: Mapping[str, Relation]
    queries: Mapping[str, Tree]
    views: tuple[RelationId, ...]


def _needs(statement: CreateMaterializedView) -> Role:
    return needs(statement.target)


@handles(CreateMaterializedView, needs=_needs)
async def _create(call: Call, statement: CreateMaterializedView) -> Outcome:
    async def placed(new: NewJob) -> NewJob:
        return new if statement.target is None else await sent(call, new, statement.target)

    return await create_from_query(call, statement, RelationKind.MATERIALIZED_VIEW, placed)


async def create_from_query(
    call: Call, statement: CreateMaterializedView, kind: RelationKind, adapted: Callable[[NewJob], Awaitable[NewJob]]
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
            new, noticed = await adapted(planned.new), planned.order.notices
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
    lines, own = await _explained(call.world, planned), planned.new.own_graph
    if view.target is not None:
        own = own or COMMITS
    return _plan_of([*lines, *([] if own is None else [f"graph of its own: {own}"])])


@handles(ExplainBackfill, needs=Role.VIEWER)
async def _explain_backfill(call: Call, statement: ExplainBackfill) -> Outcome:
    world, view, kind = call.world, statement.view, RelationKind.MATERIALIZED_VIEW
    found, strategy = await read_by(world, view), chosen(call.session)
    staged = await plan_stages(world, view, found.relations, found.queries, asked_engine(call.session))
    check_staged(world, view, staged, strategy, kind)
    return _plan_of(dot((await _ordered(world, view, staged, strategy, found)).shown(staged)))


async def _explained(world: World, planned: _Planned) -> Iterable[str]:
    new, view = planned.new, planned.view
    needed = [lookups(one.stage, view.relations) for one in view.stages]
    read = {one.relation for planned in view.stages for one in planned.stage.inputs if one.relation > THE_RELATION}
    async with world.stores.begin() as tx:
        stored = [one for relation in sorted(read) for one in await tx.stored_indexes.stored(relation)]
    there = {one.index: one.bytes for one in stored if one.state is not IndexState.DROPPING}
    created = [one.index for one in stored if one.state is IndexState.CREATED]
    missing = lacking([index for indexes in needed for index in indexes], created)
    known = Known(await world.state_store.lookups.statistics(read), there, await scan_limits(world))
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


async def _readable(world: Context, names: Collection[str], *, read: Collection[str] = ()) -> dict[str, Relation]:
    """Return the stored relations among `names` that a statement may read.

    Raises Conflict if one of `read` is not readable.
    """
    async with world.stores.begin() as tx:
        found = {entry.relation.name: as_named(entry) for entry in await tx.catalog.called(names)}
        # An object without rows, such as an index. Each name takes some queries.
        for name in sorted(set(read) - found.keys())[:OTHERS_MAX]:
            if (other := await named(tx, name)) is not None and other.kind is RelationKind.INDEX:
                raise other.unreadable
    readable = {name: one for name, one in found.items() if one.readable and one.kind.stored}
    if hidden := [found[name] for name in sorted(read) if name in found and name not in readable]:
        raise hidden[0].unreadable
    return {name: one.entry.relation for name, one in readable.items() if one.entry is not None}


async def read_by(world: World, statement: CreateMaterializedView) -> Read:
    """Look up what a query reads. Raises Invalid, NotFound, Conflict."""
    ordered = {one.name for edge in statement.order.edges for one in edge}
    reads = await beside(world.parsers, statement.text, query_reads, statement.query)
    views = await logical_views.queries(world, reads | ordered)
    queries = [statement.query, *(view.query for view in views.values())]
    mentions = [await names_in(world.parsers, query.text) for query in queries]
    named_in = ordered.union(*mentions)
    relations = await _readable(world, named_in, read=reads)
    direct = tuple(views[name].id for name in sorted(reads) if name in views)
    return Read(relations, {name: view.query for name, view in views.items()}, direct)


async def _plan(call: Call, statement: CreateMaterializedView, kind: RelationKind, *, background: bool) -> _Planned:
    world, session = call.world, call.session
    # All checks that need no worker come before the request to the worker.
    strategy = chosen(session)
    serverless = statement.serverless
    if serverless is None:
        serverless = session.get("enable_serverless_backfill") == "true"
    if serverless:
        check_serverless(strategy, own_workers=world.workers.startable)
    if statement.resource_group is not None:
        await _check_group(world, statement.resource_group, serverless=serverless)
    found = await read_by(world, statement)
    view = await plan_stages(world, statement, found.relations, found.queries, asked_engine(session))
    check_staged(world, statement, view, strategy, kind)
    is_sent = is_sent_away(statement, kind)
    if is_sent and is_kept(view):
        view = kept(view)
    ordered = await _ordered(world, statement, view, strategy, found)
    fragments = await _fragments(call, statement, strategy, view)
    # A NoShuffle scan always has the actors of its upstream, so the job records no requested parallelism.
    tied = strategy.scan_type is ScanType.BACKFILL
    asked = (None, None) if tied else (normal(session, view.relation.kind), for_backfill(session))
    new = NewJob(
        view.relation,
        statement.text,
        background,
        fragments,
        *asked,
        ordered.order,
        found.views,
        serverless,
        view.hidden,
    )
    stays = await own_graph_of(call, new, view.stages, strategy)
    check_own_graph(stays, strategy)
    new = replace(new, resource_group=statement.resource_group, own_graph=stays)
    named = ordered.named
    if is_sent and asked_engine(session) is EngineChoice.STORE:
        named = replace(named, notices=(*named.notices, SINK_ENGINE))
    return _Planned(new, view, strategy, named)


async def _check_group(world: World, group: str, *, serverless: bool) -> None:
    """Raise Invalid if the job's worker cannot have this profile."""
    known = await world.workers.profiles() if serverless and world.workers.profiles is not None else None
    check_resource_group(group, known, serverless=serverless, has_profiles=world.workers.profiles is not None)


async def _ordered(
    world: World, statement: CreateMaterializedView, view: StagedView, strategy: Strategy, found: Read
) -> WalkedOrder:
    """Return the order in which the scans of a view read history, in ids and in names. Raises Invalid and NotFound."""
    if strategy.scan_type is not ScanType.ARRANGEMENT_BACKFILL and not view.projects:
        return walked_order(statement, view, {*found.relations, *found.queries})
    names = await arranged_order(world, statement, view, found.relations, found.queries)
    return WalkedOrder(
        tuple((found.relations[before].id, found.relations[after].id) for before, after in names.edges), names
    )


async def _fragments(
    call: Call, statement: CreateMaterializedView, strategy: Strategy, view: StagedView
) -> tuple[NewFragment, ...]:
    """Return the fragments of a view: a scan for each stage, or operators with a scan for each of their inputs."""
    if strategy.scan_type is not ScanType.ARRANGEMENT_BACKFILL or view.projects:
        return await _scans(call, statement, strategy, [(one.driver, one.stage, one.output) for one in view.stages])
    check_store_engine(asked_engine(call.session))
    wanted = [
        (view.relations[one.relation], Prefix(operator=number, alias=one.alias), None)
        for number, one in view.occurrences
    ]
    return arranged(view, await _scans(call, statement, strategy, wanted))


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
        available = await slots(tx, now=world.clock.now(), lease=world.workers.lease) or 1
        first = await first_limit(tx)
        beside = [await actors_beside(tx, upstream) if tied else None for upstream, _, _ in wanted]
    limit = asked_limit(statement.backfill_rate_limit, session, given=statement.limited)
    counts = [
        _actors(upstream, parallelism, backfill, slots=available, beside=tied_to, scans=len(wanted))
        for (upstream, _, _), tied_to in zip(wanted, beside, strict=True)
    ]
    check_actors(counts, slots=available)
    return tuple(
        NewTableScan(
            actors=blocks(upstream.vnode_count, count),
            upstream=upstream.id,
            query=query,
            scan_type=strategy.scan_type,
            rate_limit=first if limit == AUTO else limit,
            auto=limit == AUTO,
            output=output,
        )
        for (upstream, query, output), count in zip(wanted, counts, strict=True)
    )


def _actors(
    upstream: Relation,
    parallelism: Parallelism,
    backfill: Parallelism | None,
    *,
    slots: int,
    beside: int | None,
    scans: int,
) -> int:
    """Return the initial number of actors of a scan. A NoShuffle scan has that of its upstream (`beside`).

    Raises Invalid.
    """
    vnode_count = upstream.vnode_count
    check_vnodes(parallelism, vnode_count)
    check_vnodes(backfill, vnode_count, backfill=True)
    if beside is None:
        return resolved(backfill or parallelism, slots=slots, vnode_count=vnode_count, scans=scans)
    for asked in (parallelism, backfill):
        check_tied(asked, beside, slots=slots, vnode_count=vnode_count, upstream=upstream.name)
    return beside


async def _taken(world: Context, statement: CreateMaterializedView, kind: RelationKind) -> CatalogEntry | None:
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
