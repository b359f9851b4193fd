"""Read the state of jobs, fragments and relations, each list in one transaction.

Nothing here decides or changes anything. Progress is that of the committed epoch (I6). The number of queries of a list
does not grow with its length. Next: `service.operations.status.models`.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Final

from service.domain.awaited import is_readable
from service.domain.errors import Conflict, Invalid, NotFound, Unavailable
from service.domain.job import CREATING, Job, JobState
from service.domain.progress import JobProgress, ScanProgress
from service.domain.waiting import Waiting
from service.operations.commands.limits import check_known
from service.operations.jobs.lifecycle import seen
from service.operations.jobs.standing import Standing, progress_of, standing_of
from service.operations.leaving import Gone, unless
from service.operations.polling import until
from service.operations.status.models import (
    ActorView,
    Broken,
    ColumnView,
    DdlProgress,
    FragmentView,
    JobDetail,
    JobPage,
    JobView,
    LimitChangeView,
    LimitPage,
    PositionCounts,
    ProgressView,
    RelationPage,
    RelationView,
    ScanAuto,
    ScanWait,
    VnodePage,
    VnodeView,
)
from service.operations.status.staleness import broken_of
from service.operations.status.wait_reasons import waits_of
from service.operations.world import Context, World
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry
from service.ports.status import AutoLimit, PositionsByState
from service.protocol.ids import BIGINT_MAX, ActorId, FragmentId, JobId, RelationId, Vnode
from service.protocol.plan import (
    ActorPlan,
    FragmentPlan,
    HistoryScanPlan,
    JobPlan,
    SourceScanPlan,
    SplitScanPlan,
    TableScanPlan,
    VnodePosition,
)
from service.protocol.vnodes import vnodes_of

_READ_AT_ONCE: Final = 20
COLUMNS_MAX: Final = 20_000
"""How many columns the relations of a page have together: 2 MB or so. A table may have 1,600."""
LISTED = CREATING | {JobState.CANCELLING}
"""States of the jobs in the progress lists."""


async def listed(tx: Transaction) -> Sequence[Job]:
    """Return the jobs of the progress lists: those in `LISTED`, and followed tables whose history is not complete."""
    return sorted([*await tx.jobs.where(LISTED), *await tx.jobs.backfilling()], key=lambda job: job.id)


async def jobs(world: World, states: Collection[JobState] | None, *, after: int, limit: int) -> JobPage:
    """Return at most `limit` jobs with ids above `after`."""
    async with world.stores.begin() as tx:
        found = await tx.status.jobs(states, after=after, limit=limit + 1)
        chosen = [job.shown for job in found[:limit]]
        standing = await standing_of(tx, chosen)
        progress = await progress_of(tx, chosen, standing)
        waiting = await waits_of(world, tx, chosen, standing)
        broken = await broken_of(tx)
    following = str(chosen[-1].id) if len(found) > limit else None
    return JobPage(
        tuple(_job(job, progress[job.id], waiting.get(job.id), broken.get(job.relation)) for job in chosen), following
    )


async def job(world: World, wanted: JobId) -> JobDetail:
    """Return a job with its fragments. Raises NotFound."""
    async with world.stores.begin() as tx:
        found = (await _existing(tx, wanted)).shown
        standing = await standing_of(tx, [found])
        progress = await progress_of(tx, [found], standing)
        waiting = await waits_of(world, tx, [found], standing)
        fragments = await _fragments(tx, found, standing.scans[wanted])
        order = await tx.status.backfill_order(wanted)
        broken = (await broken_of(tx)).get(found.relation)
        work = (await tx.status.engine_work([wanted]))[wanted]
    return JobDetail(_job(found, progress[wanted], waiting.get(wanted), broken), fragments, tuple(order), work)


async def job_called(world: Context, name: str) -> JobId:
    """Return the job with this id or with a relation of this name. Raises Invalid for an impossible id, NotFound."""
    if name.isascii() and name.isdigit():
        if len(name) > len(str(BIGINT_MAX)) or int(name) > BIGINT_MAX:
            raise Invalid(f"job: {name[:30]} is no id of a job", pointer="job")
        return JobId(int(name))
    async with world.stores.begin() as tx:
        entry = await tx.catalog.named(name)
    if entry is None:
        raise NotFound(f'job "{name}" not found: there is no relation of this name', kind="job")
    return entry.job


async def fragment(world: Context, wanted: FragmentId) -> FragmentView:
    """Return one fragment. Raises NotFound."""
    async with world.stores.begin() as tx:
        owner = (await tx.fragments.job_of([wanted])).get(wanted)
        if owner is None:
            raise NotFound(f"fragment {wanted} not found", kind="fragment")
        (job, _) = owner
        fragments = await _fragments(tx, await _existing(tx, job), (await tx.fragments.scans([job]))[job])
    found = next((view for view in fragments if view.id == wanted), None)
    if found is None:
        raise NotFound(f"fragment {wanted} not found", kind="fragment")
    return found


async def vnodes(world: World, wanted: FragmentId, *, after: int, limit: int) -> VnodePage:
    """Return the positions of at most `limit` vnodes of a scan, from vnode `after` on.

    Raises NotFound, and Invalid if the fragment is not a scan.
    """
    async with world.calls.long_pages.turn(), world.stores.begin() as tx:
        known = await tx.fragments.job_of([wanted])
        check_known(known, [wanted])
        (owner, _) = known[wanted]
        plans = await tx.plans.outlines([owner])
        actors = [actor for plan in plans for one in plan.fragments if one.id == wanted for actor in one.actors]
        owners = {vnode: actor.id for actor in actors for vnode in vnodes_of(actor.vnodes) if vnode >= after}
        rest = sorted(owners)
        at = await tx.status.positions(wanted, rest[:limit])
    following = str(rest[limit]) if len(rest) > limit else None
    return VnodePage(tuple(_vnode(Vnode(one), owners[one], at.get(Vnode(one))) for one in rest[:limit]), following)


async def limit_history(world: Context, wanted: JobId, *, limit: int, before: int | None) -> LimitPage:
    """Return the changes of the limits of a job's scans, newest first. Raises NotFound."""
    async with world.stores.begin() as tx:
        await _existing(tx, wanted)
        found = await tx.status.limit_changes(wanted, limit=limit + 1, before=before)
    views = tuple(
        LimitChangeView(one.id, one.fragment, one.at, one.epoch, one.before, one.after, one.signal, one.reason)
        for one in found[:limit]
    )
    return LimitPage(views, str(views[-1].id) if len(found) > limit else None)


async def ddl_progress(world: World) -> list[DdlProgress]:
    """Return the rows of `rw_ddl_progress`, with numbers in addition to the strings."""
    async with world.stores.begin() as tx:
        found = await listed(tx)
        standing = await standing_of(tx, found)
        progress = await progress_of(tx, found, standing)
        limits = await tx.status.adaptive_limits([job.id for job in found])
        waiting = await waits_of(world, tx, found, standing)
    return [_ddl(job, progress[job.id], waiting.get(job.id), standing, limits) for job in found]


async def relations(world: World, *, after: int, limit: int) -> RelationPage:
    """Return at most `limit` relations with ids above `after`, with at most `COLUMNS_MAX` columns together."""
    async with world.calls.long_pages.turn(), world.stores.begin() as tx:
        outlines = await tx.catalog.outlines()
        rest = [one.name for one in outlines if one.id > after]
        entries: list[CatalogEntry] = []
        # Of relations with very many columns few fit, and the columns of the others are not read.
        for first in range(0, min(limit, len(rest)), _READ_AT_ONCE):
            some = rest[first : min(first + _READ_AT_ONCE, limit)]
            entries += sorted(await tx.catalog.called(some), key=lambda entry: entry.relation.id)
            if sum(len(one.relation.columns) for one in entries) > COLUMNS_MAX:
                break
    names = {one.id: one.name for one in outlines}
    columns = accumulate(len(entry.relation.columns) for entry in entries)
    fitting = sum(number <= COLUMNS_MAX for number in columns) or 1
    following = str(entries[:fitting][-1].relation.id) if entries and len(rest) > fitting else None
    return RelationPage(tuple(_relation(entry, names) for entry in entries[:fitting]), following)


async def relation(world: Context, name: str) -> RelationView:
    """Return the relation called `name`. Raises NotFound."""
    async with world.stores.begin() as tx:
        entry = await tx.catalog.named(name)
        if entry is None:
            raise NotFound(f'relation "{name}" does not exist', kind="relation")
        read = [await tx.catalog.get(upstream) for upstream in entry.upstreams]
    return _relation(entry, {found.relation.id: found.relation.name for found in read if found is not None})


async def settled(world: World, wanted: JobId, *, limit: timedelta, gone: Gone | None = None) -> JobView:
    """Wait until the job is created and readable.

    The wait includes a job whose public view cannot be created, because its owner may remove the cause. After `limit`
    it raises Conflict with that cause. Otherwise it raises NotFound, Conflict if the job ended without being created,
    and Unavailable after `limit` or if the caller is `gone`.
    """

    async def look() -> Job | None:
        found = (await seen(world, wanted)).job
        waits = found.state in CREATING or (found.state is JobState.CREATED and not found.published)
        return None if waits else found

    found = await unless(gone, until(world, look, limit=limit))
    if found is None:
        is_readable((await seen(world, wanted)).job)
        raise Unavailable(f"job {wanted} is still being created")
    if found.state is not JobState.CREATED:
        raise Conflict(f"job {wanted} is {found.state}" + (f": {found.error}" if found.error else ""))
    return (await job(world, wanted)).job


async def _existing(tx: Transaction, wanted: JobId) -> Job:
    found = await tx.jobs.get(wanted)
    if found is None:
        raise NotFound(f"job {wanted} not found", kind="job")
    return found


async def _fragments(tx: Transaction, owner: Job, scans: Sequence[ScanProgress]) -> tuple[FragmentView, ...]:
    """Return the fragments of a job, or none if its relation is gone."""
    plans: Sequence[JobPlan] = await tx.plans.outlines([owner.id])
    histories = [one for plan in plans for one in plan.fragments if isinstance(one, HistoryScanPlan)]
    counted = await tx.status.position_counts([one.id for one in histories if not one.finished])
    scan_of = {scan.fragment: scan for scan in scans}
    auto = await tx.status.adaptive_limits([owner.id])
    return tuple(
        _fragment(owner.id, fragment, scan_of.get(fragment.id), auto.get(fragment.id), counted)
        for plan in plans
        for fragment in plan.fragments
    )


def _fragment(
    owner: JobId,
    plan: FragmentPlan,
    scan: ScanProgress | None,
    auto: AutoLimit | None,
    counted: Mapping[ActorId, PositionsByState],
) -> FragmentView:
    actors = tuple(
        ActorView(actor.id, actor.vnodes, _counts(plan, actor, counted.get(actor.id, PositionsByState())))
        for actor in plan.actors
    )
    return FragmentView(
        id=plan.id,
        job=owner,
        kind=plan.kind,
        upstream=_upstream(plan),
        scan_type=plan.scan_type if isinstance(plan, TableScanPlan) else None,
        rate_limit=plan.rate_limit if isinstance(plan, HistoryScanPlan) else None,
        auto=auto,
        waiting=scan is not None and scan.waiting,
        waits_for=() if scan is None else scan.awaits,
        rows=0 if scan is None else scan.rows,
        total=None if scan is None else scan.total,
        rows_per_second=0.0 if scan is None or scan.finished else scan.rate,
        finished=scan is None or scan.finished,
        positions=PositionCounts(
            not_started=sum(actor.positions.not_started for actor in actors),
            in_progress=sum(actor.positions.in_progress for actor in actors),
            completed=sum(actor.positions.completed for actor in actors),
            rows=sum(actor.positions.rows for actor in actors),
        ),
        actors=actors,
    )


def _upstream(plan: FragmentPlan) -> str | None:
    match plan:
        case TableScanPlan():
            return plan.upstream.name
        case SourceScanPlan():
            return f"{plan.cdc.external_schema}.{plan.cdc.external_table}"
        case SplitScanPlan():
            return plan.connector.name
        case _:
            return None


def _vnode(vnode: Vnode, actor: ActorId, position: VnodePosition | None) -> VnodeView:
    if position is None:
        return VnodeView(vnode, actor, "not_started", None, 0)
    return VnodeView(vnode, actor, position.state, position.key, position.rows)


def _counts(plan: FragmentPlan, actor: ActorPlan, counted: PositionsByState) -> PositionCounts:
    owned = sum(last - first + 1 for first, last in actor.vnodes) if isinstance(plan, HistoryScanPlan) else 0
    if isinstance(plan, HistoryScanPlan) and plan.finished:
        return PositionCounts(0, 0, owned, actor.rows)
    return PositionCounts(max(owned - counted.in_progress - counted.completed, 0), *counted)


def _job(found: Job, progress: JobProgress, waiting: Waiting | None, broken: Broken | None) -> JobView:
    return JobView(
        id=found.id,
        relation=found.relation,
        name=found.name,
        kind=found.kind,
        statement=found.statement,
        state=found.state,
        background=found.background,
        created_by=found.created_by or None,
        initialized_at=found.initialized_at,
        started_at=found.started_at,
        finished_at=found.finished_at,
        error=found.error,
        parallelism=None if found.parallelism is None else str(found.parallelism),
        backfill_parallelism=None if found.backfill_parallelism is None else str(found.backfill_parallelism),
        resource_group=found.resource_group,
        failures=found.failures,
        recoveries=found.recoveries,
        state_since=found.state_since,
        waiting=waiting,
        broken=broken,
        progress=ProgressView(
            text=progress.text,
            phase=progress.phase,
            rows=progress.rows,
            total=progress.total,
            percent=progress.percent,
            rows_per_second=progress.rate,
            eta_seconds=_seconds(progress.eta),
            waiting_for=progress.waiting_for,
        ),
        own_graph=found.own_graph,
    )


def _ddl(
    found: Job,
    progress: JobProgress,
    waiting: Waiting | None,
    standing: Standing,
    limits: Mapping[FragmentId, AutoLimit],
) -> DdlProgress:
    last_error, scans = standing.graphs[standing.graph_of(found)].last_error, standing.scans[found.id]
    # The graph's last error concerns the job only if the job existed at that recovery.
    error = found.error or (None if last_error is None or not found.recoveries else str(last_error))
    auto = [scan for scan in scans if scan.fragment in limits]
    return DdlProgress(
        ddl_id=found.id,
        ddl_statement=found.statement,
        create_type="BACKGROUND" if found.background else "FOREGROUND",
        progress=progress.text,
        initialized_at=found.initialized_at,
        is_serverless_backfill=found.serverless,
        backfill_type=progress.backfill_type,
        name=found.name,
        state=found.state,
        phase=progress.phase,
        rows=progress.rows,
        total=progress.total,
        percent=progress.percent,
        rows_per_second=progress.rate,
        eta_seconds=_seconds(progress.eta),
        waiting_for=progress.waiting_for,
        queue_place=standing.places.get(found.id),
        created_by=found.created_by or None,
        last_error=error,
        recoveries=found.recoveries,
        auto=tuple(ScanAuto(one.fragment, one.upstream, one.rate_limit, limits[one.fragment]) for one in auto),
        waiting=waiting,
        waits=tuple(ScanWait(scan.fragment, scan.upstream, scan.awaits) for scan in scans if scan.waiting),
    )


def _relation(entry: CatalogEntry, names: Mapping[RelationId, str]) -> RelationView:
    relation = entry.relation
    hidden = {column.name for column in relation.columns if column.hidden}
    return RelationView(
        id=relation.id,
        name=relation.name,
        kind=relation.kind,
        columns=tuple(ColumnView(column.name, str(column.type), column.nullable) for column in relation.visible),
        key=tuple(part.name for part in relation.key if part.name not in hidden),
        definition=entry.definition,
        job=entry.job,
        state=entry.state,
        readable=entry.shown,
        key_count=entry.key_count,
        upstreams=tuple(names[upstream] for upstream in entry.upstreams if upstream in names),
    )


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
