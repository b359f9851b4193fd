"""Store positions and progress of fragments.

A commit reads and writes only the unfinished scans, so created jobs add no cost.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Column,
    Row,
    Select,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert

from service.domain.job import IN_GRAPH, JobState
from service.domain.order import OrderedScan, awaited
from service.domain.progress import ScanProgress, advanced
from service.meta_store.documents import among, printable, recordset, stored_text
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.plans import read_actors
from service.meta_store.schema.core import (
    ENGINE_WORK,
    OPEN,
    PROJECTS,
    STAGED,
    actor,
    backfill_position,
    job,
    relation,
    scan_progress,
)
from service.meta_store.schema.core import fragment as fragment_table
from service.meta_store.schema.sources import source
from service.ports.records import Json, Receded
from service.protocol.epoch import instant_of
from service.protocol.ids import Epoch, FragmentId, GraphId, JobId, RelationId, Vnode
from service.protocol.plan import FragmentKind, ScanType, VnodePosition
from service.protocol.relation import RelationKind
from service.protocol.report import ActorReport, Collected


class PostgresFragments(OnConnection):
    """See `service.ports.meta_store.Fragments`."""

    async def job_of(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, tuple[JobId, FragmentKind]]:
        table = fragment_table.c
        rows = await self._connection.execute(select(table.id, table.job, table.kind).where(among(table.id, fragments)))
        return {FragmentId(row.id): (JobId(row.job), FragmentKind(row.kind)) for row in rows}

    async def release(self, fragments: Collection[FragmentId]) -> None:
        waiting = and_(among(fragment_table.c.id, fragments), fragment_table.c.waiting)
        await self._connection.execute(update(fragment_table).where(waiting).values(waiting=False))

    async def held(self, graph: GraphId) -> Sequence[JobId]:
        creating = and_(job.c.graph == graph, job.c.state == literal_column("'Creating'"))
        found = (
            select(job.c.id)
            .join(fragment_table, fragment_table.c.job == job.c.id)
            .join(scan_progress, scan_progress.c.fragment == fragment_table.c.id)
            .where(fragment_table.c.waiting, OPEN, creating)
        )
        return [JobId(one) for one in (await self._connection.execute(found.distinct().order_by(job.c.id))).scalars()]

    async def receded(self, reports: Sequence[ActorReport]) -> Receded | None:
        """Ignore finished scans, as `record` does. After an Update, compare the sum of all new actors with the old sum.

        The new actors took over the vnodes of the old ones.
        """
        if not reports:
            return None
        rows = await self._connection.execute(
            select(actor.c.id, actor.c.fragment, actor.c.rows, fragment_table.c.job)
            .join(fragment_table, fragment_table.c.id == actor.c.fragment)
            .join(scan_progress, scan_progress.c.fragment == actor.c.fragment)
            .where(OPEN, among(actor.c.fragment, {report.fragment for report in reports}))
        )
        committed = {row.id: row for row in rows}
        for report in reports:
            before = committed.get(report.actor)
            if before is not None and report.rows < before.rows:
                return Receded(str(report.actor), report.fragment, report.rows, JobId(before.job), before.rows)
        known = {report.fragment for report in reports if report.actor in committed}
        return _receded_in_a_rescale([one for one in reports if one.fragment not in known], committed.values())

    async def record(self, answers: Iterable[Collected], *, now: datetime) -> None:
        """Where several answers report on one actor or vnode, the newest report counts.

        Reports of finished or removed scans are ignored, because their last report has been committed.
        """
        kept = tuple(answers)
        # In the order of locks: scans, then relations.
        await self._record_splits(kept, now=now)
        await self._record_scans(kept, now=now)
        await self._count_work(kept)
        await self._count_keys(kept)

    async def _record_splits(self, kept: Sequence[Collected], *, now: datetime) -> None:
        """Store how far scans of splits have come. They read for ever, so they have no progress."""
        reports = [report for answer in kept for report in answer.of(ActorReport) if report.positions]
        if not reports:
            return
        named = among(fragment_table.c.id, {report.fragment for report in reports})
        found = select(fragment_table.c.id, fragment_table.c.source_waiting).where(
            named, fragment_table.c.kind == FragmentKind.SOURCE_SCAN
        )
        splits = {row.id: row.source_waiting for row in await self._connection.execute(found)}
        mine = [report for report in reports if report.fragment in splits]
        waits = {one.fragment: None if one.waiting is None else printable(one.waiting) for one in mine}
        for one in sorted(one for one, why in waits.items() if why != splits[one]):
            await self._wait(one, waits[one], now=now)
        await self._store_actors(mine)
        await self._store_positions(mine)

    async def _wait(self, one: FragmentId, why: str | None, *, now: datetime) -> None:
        """Store why nothing can be read, None if it can again. Another reason does not end the wait."""
        since = None if why is None else func.coalesce(fragment_table.c.source_waiting_since, now)
        mine = update(fragment_table).where(fragment_table.c.id == one)
        await self._connection.execute(mine.values(source_waiting=why, source_waiting_since=since))

    async def _record_scans(self, kept: Sequence[Collected], *, now: datetime) -> None:
        # A queued job has no running actors that could report, and no rate that could fall.
        mine = _OPEN_SCANS.where(among(job.c.graph, {answer.graph for answer in kept}), job.c.state.in_(IN_GRAPH))
        open_scans = {row.fragment: row for row in await self._connection.execute(mine)}
        if not open_scans:
            return
        reports = [report for answer in kept for report in answer.of(ActorReport) if report.fragment in open_scans]
        await self._store_actors(reports)
        await self._store_positions(reports)
        actors = await read_actors(self._connection, open_scans.keys())
        # `at` is set by a scan's first report. A scan that has reported before and does not report now has a falling
        # rate.
        reported = {report.fragment for report in reports}
        moved = [
            _advanced(row, actors[one], now)
            for one, row in open_scans.items()
            if one in reported or (row.state in {JobState.CREATING, JobState.CREATED} and row.at is not None)
        ]
        await self._store_progress(moved)

    async def scans(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ScanProgress]]:
        """Every requested job is in the answer. A job without scans has an empty sequence."""
        rows = await self._connection.execute(_SCANS.where(among(fragment_table.c.job, jobs)))
        of_job: dict[JobId, list[Row[*tuple[Any, ...]]]] = {one: [] for one in jobs}
        for row in rows.all():
            of_job[JobId(row.job)].append(row)
        return {one: _scans(scans) for one, scans in of_job.items()}

    async def store_texts(self, texts: Mapping[JobId, Json]) -> None:
        if not texts:
            return
        rows = [{"id": one, "progress_text": text["text"], "progress": dict(text)} for one, text in texts.items()]
        new = recordset(rows, job.c.id, job.c.progress_text, job.c.progress)
        # Most jobs do not progress, so an unchanged text is not written again.
        differs = or_(
            job.c.progress_text.is_distinct_from(new.c.progress_text), job.c.progress.is_distinct_from(new.c.progress)
        )
        # A commit waits for no call that has locked a job. The next commit stores the text of such a job.
        told = select(new.c.id, new.c.progress_text, new.c.progress).join(job, job.c.id == new.c.id)
        told = told.where(among(job.c.id, texts), differs).order_by(job.c.id)
        held = told.with_for_update(of=job, key_share=True, skip_locked=True).cte("held")
        changed = update(job).where(job.c.id == held.c.id)
        await self._connection.execute(changed.values(progress_text=held.c.progress_text, progress=held.c.progress))

    async def _count_keys(self, answers: Iterable[Collected]) -> None:
        deltas: dict[int, int] = defaultdict(int)
        for answer in answers:
            for report in answer.relations:
                deltas[report.relation] += report.key_count_delta
        rows = [{"id": one, "key_count": delta} for one, delta in deltas.items() if delta]
        if not rows:
            return
        new = recordset(rows, relation.c.id, relation.c.key_count)
        counted = update(relation).where(relation.c.id == new.c.id, among(relation.c.id, deltas))
        await self._connection.execute(counted.values(key_count=relation.c.key_count + new.c.key_count))

    async def _count_work(self, answers: Iterable[Collected]) -> None:
        counts: dict[FragmentId, dict[str, int]] = defaultdict(lambda: dict.fromkeys(ENGINE_WORK, 0))
        for report in (report for answer in answers for report in answer.of(ActorReport)):
            if report.engine is not None:
                work = counts[report.fragment]
                work[f"{report.engine}_jobs"] += report.jobs
                work[f"{report.engine}_rows"] += report.snapshot_rows + report.upstream_rows
        rows = [{"fragment": one, **work} for one, work in counts.items()]
        if not rows:
            return
        columns = scan_progress.c
        new = recordset(rows, columns.fragment, *(columns[name] for name in ENGINE_WORK))
        counted = update(scan_progress).where(columns.fragment == new.c.fragment, among(columns.fragment, counts))
        await self._connection.execute(counted.values({name: columns[name] + new.c[name] for name in ENGINE_WORK}))

    async def _store_positions(self, reports: Iterable[ActorReport]) -> None:
        newest: dict[FragmentId, dict[Vnode, VnodePosition]] = defaultdict(dict)
        for report in reports:
            newest[report.fragment].update((position.vnode, position) for position in report.positions)
        moved = {one: list(positions.values()) for one, positions in newest.items() if positions}
        if not moved:
            return
        new = _positions(moved)
        inserted = insert(backfill_position).from_select(new.selected_columns.keys(), new)
        changed = {name: inserted.excluded[name] for name in ("state", "key", "rows")}
        await self._connection.execute(
            inserted.on_conflict_do_update(index_elements=["fragment", "vnode"], set_=changed)
        )

    async def _store_actors(self, reports: Iterable[ActorReport]) -> None:
        newest = {report.actor: report for report in reports}
        if not newest:
            return
        rows = [
            {"id": one, "fragment": report.fragment, "rows": report.rows, "finished": report.finished}
            for one, report in newest.items()
        ]
        new = recordset(rows, actor.c.id, actor.c.fragment, actor.c.rows, actor.c.finished)
        changed = update(actor).where(actor.c.id == new.c.id, actor.c.fragment == new.c.fragment)
        await self._connection.execute(
            changed.where(among(actor.c.id, newest)).values(rows=new.c.rows, finished=new.c.finished)
        )

    async def _store_progress(self, scans: Iterable[ScanProgress]) -> None:
        moved = {scan.fragment: scan for scan in scans}
        rows = [
            {
                "fragment": scan.fragment,
                "rows": scan.rows,
                "rate": scan.rate,
                "finished": scan.finished,
                "at": None if scan.at is None else scan.at.isoformat(),
            }
            for scan in moved.values()
        ]
        if not rows:
            return
        columns = scan_progress.c
        new = recordset(rows, columns.fragment, columns.rows, columns.rate, columns.finished, columns.at)
        changed = {name: new.c[name] for name in ("rows", "rate", "finished", "at")}
        await self._connection.execute(
            update(scan_progress)
            .where(scan_progress.c.fragment == new.c.fragment, among(scan_progress.c.fragment, moved))
            .values(changed)
        )


_SCAN_TYPES: Final = {one.value: one for one in ScanType}
"""A table, because calling the enum would cost as much as the rest of a row."""
_POSITIONS: Final = TypeAdapter(Mapping[FragmentId, Sequence[VnodePosition]])
_EXTERNAL: Final = func.concat(
    fragment_table.c.cdc["external_schema"].astext, ".", fragment_table.c.cdc["external_table"].astext
)
_OUTPUT: Final = func.coalesce(fragment_table.c.output, job.c.relation)
_HIDDEN: Final = or_(fragment_table.c.output.is_not(None), relation.c.kind == RelationKind.INTERNAL)
_OF_OUTPUT: Final = or_(STAGED, and_(PROJECTS, _HIDDEN))
_NODE: Final = case((_OF_OUTPUT, _OUTPUT), else_=fragment_table.c.upstream)
"""See `service.ports.records.node_of`."""
_outputs = relation.alias("outputs")
_NODE_NAME: Final = case(
    (_OF_OUTPUT, select(_outputs.c.name).where(_outputs.c.id == _OUTPUT).scalar_subquery()), else_=relation.c.name
)
_UNKNOWN: Final = and_(fragment_table.c.waiting, relation.c.kind == RelationKind.INTERNAL)
"""Whether an earlier stage has yet to write what the scan reads (I6)."""
_KEYS: Final = func.coalesce(
    scan_progress.c.total, relation.c.key_count, cast(fragment_table.c.cdc["total"].astext, BigInteger)
)
# Rows that were read may have been deleted since. An unknown number stays unknown.
_TOTAL: Final = case((_UNKNOWN, None), (scan_progress.c.rows > _KEYS, scan_progress.c.rows), else_=_KEYS)
_AMONG_WAITING: Final = func.row_number().over(
    partition_by=(fragment_table.c.job, fragment_table.c.waiting), order_by=scan_progress.c.fragment
)
_FIRST_WAITING: Final = and_(fragment_table.c.waiting, _AMONG_WAITING == 1)
"""Whether the row has the order of its job: one of those that wait has it, for an order has up to a thousand edges."""
_SCANS: Final[Select[*tuple[Any, ...]]] = (
    select(
        scan_progress.c.fragment,
        func.coalesce(relation.c.name, _EXTERNAL).label("upstream"),
        scan_progress.c.rows,
        _TOTAL.label("total"),
        scan_progress.c.rate,
        scan_progress.c.finished,
        fragment_table.c.rate_limit,
        scan_progress.c.at,
        fragment_table.c.waiting,
        fragment_table.c.scan_type,
        fragment_table.c.auto,
        fragment_table.c.limit_epoch,
        fragment_table.c.broken,
        func.coalesce(fragment_table.c.source_waiting, source.c.waiting).label("source_waiting"),
        fragment_table.c.limit_by,
        fragment_table.c.job,
        job.c.state,
        case((_FIRST_WAITING, job.c.backfill_order)).label("backfill_order"),
        _NODE.label("node"),
        _NODE_NAME.label("node_name"),
    )
    .join(fragment_table, fragment_table.c.id == scan_progress.c.fragment)
    .outerjoin(relation, relation.c.id == fragment_table.c.upstream)
    .outerjoin(source, source.c.relation == fragment_table.c.source)
    .join(job, job.c.id == fragment_table.c.job)
    .order_by(scan_progress.c.fragment)
)
_SHOWN: Final = 15
"""How many of the columns are fields of the progress. The others name its job and what the scan waits for."""
_OPEN_SCANS: Final[Select[*tuple[Any, ...]]] = _SCANS.where(OPEN)


def _positions(moved: Mapping[FragmentId, Sequence[VnodePosition]]) -> Select[*tuple[Any, ...]]:
    """Return positions as rows. There may be tens of thousands, so no Python code runs for each of them."""
    text = _POSITIONS.dump_json(moved).decode()
    scans = func.jsonb_each(stored_text(text)).table_valued(Column("key", Text), Column("value", JSONB), name="scan")
    columns = backfill_position.c
    parts = (columns.vnode, columns.state, columns.key, columns.rows)
    new = func.jsonb_to_recordset(scans.c.value).table_valued(*parts).render_derived("new", with_types=True)
    of_scan = cast(scans.c.key, BigInteger).label("fragment")
    return select(of_scan, *(new.c[one.name] for one in parts)).select_from(scans.join(new, true()))


def _receded_in_a_rescale(
    reports: Sequence[ActorReport], replaced: Collection[Row[*tuple[Any, ...]]]
) -> Receded | None:
    for fragment in {report.fragment for report in reports}:
        mine = [report for report in reports if report.fragment == fragment]
        before = [row for row in replaced if row.fragment == fragment]
        told, had = sum(report.rows for report in mine), sum(row.rows for row in before)
        if before and told < had:
            actors = ", ".join(str(report.actor) for report in mine)
            return Receded(actors, fragment, told, JobId(before[0].job), had)
    return None


def _scan(row: Row[*tuple[Any, ...]]) -> ScanProgress:
    # Unpacked by position, for the reason given in `service.meta_store.jobs.jobs`.
    fragment, upstream, rows, total, rate, finished, limit, at, waiting, scan_type, auto, since, *held = row[:_SHOWN]
    return ScanProgress(
        FragmentId(fragment),
        upstream,
        rows,
        total,
        rate,
        finished,
        limit,
        at,
        waiting and not finished,
        (),
        _SCAN_TYPES.get(scan_type),
        auto,
        None if since is None else instant_of(Epoch(since)),
        *held,
    )


def _scans(rows: Sequence[Row[*tuple[Any, ...]]]) -> list[ScanProgress]:
    """Return the scans of one job. A waiting scan names the relations that it waits for."""
    edges = next((row.backfill_order for row in rows if row.backfill_order is not None), None)
    if edges is None:
        return [_scan(row) for row in rows]
    names = {RelationId(row.node): row.node_name for row in rows}
    order = tuple((RelationId(before), RelationId(after)) for before, after in edges)
    waits = awaited(order, [OrderedScan(FragmentId(row.fragment), RelationId(row.node), row.finished) for row in rows])
    scans = [_scan(row) for row in rows]
    return [
        replace(scan, awaits=tuple(names[one] for one in waits.get(scan.fragment, ()))) if scan.waiting else scan
        for scan in scans
    ]


def _advanced(row: Row[*tuple[Any, ...]], actors: Sequence[Row[*tuple[Any, ...]]], now: datetime) -> ScanProgress:
    rows = sum(one.rows for one in actors)
    finished = all(one.finished for one in actors)
    return advanced(_scan(row), rows=rows, total=row.total, finished=finished, at=now)
