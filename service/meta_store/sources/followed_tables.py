"""Store followed tables, and what is to be cleaned up in the external database after they are dropped."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Row, Select, and_, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.job import JobState
from service.domain.source import Retention
from service.meta_store.documents import among, printable, recordset
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import TAKEN, actor, backfill_position, fragment, job, scan_progress
from service.meta_store.schema.core import relation as relations
from service.meta_store.schema.sources import source as sources
from service.meta_store.schema.sources import source_cleanup
from service.meta_store.sources.sources import forget_source
from service.ports.source_records import FollowedTable, Leftover, Measured, SourceCleanup, Told
from service.protocol.cdc import CdcScan, CdcSource, Lsn, SourceReport
from service.protocol.ids import FragmentId, JobId, RelationId, SourceId
from service.protocol.plan import PositionState

_SCHEMA: Final = fragment.c.cdc["external_schema"].astext
_TABLE: Final = fragment.c.cdc["external_table"].astext
_NOTE: Final = fragment.c.cdc["note"].astext
_MORE: Final = func.jsonb_array_length(fragment.c.cdc["published"]["shape"]["columns"]) > func.jsonb_array_length(
    fragment.c.cdc["columns"]
)
"""The external table has more columns than are followed. Unknown columns (NULL) are no more."""
_AT_ONCE: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Due on every clock, whichever service compares it."""


class Following(OnConnection):
    """The followed tables of sources."""

    async def tables(self, source: SourceId | None = None) -> Sequence[FollowedTable]:
        """Return the followed tables of one source, or of all sources, oldest first."""
        found = _TABLES if source is None else _TABLES.where(fragment.c.source == source)
        return [_followed(row) for row in await self._connection.execute(found.order_by(fragment.c.id))]

    async def followed(self) -> Collection[SourceId]:
        """Return the sources with followed tables that still follow them.

        Cheap, because it is called every second: it does not count completed splits, as `tables` does.
        """
        found = select(fragment.c.source).where(fragment.c.source.is_not(None)).distinct()
        return {SourceId(one) for one in (await self._connection.execute(found)).scalars()}

    async def lacking(self) -> Sequence[FollowedTable]:
        """Return the tables that are to have all columns, and whose external tables have more, or that have a note."""
        found = _TABLES.where(fragment.c.cdc.contains({"all_columns": True}), or_(_MORE, _NOTE.is_not(None)))
        return [_followed(row) for row in await self._connection.execute(found.order_by(fragment.c.id))]

    async def note(self, fragment: FragmentId, note: str | None) -> None:
        """Store why a table has not all new columns."""
        await self._keep(fragment, {"note": None if note is None else printable(note)})

    async def begin_reload(self, fragment: FragmentId) -> None:
        """Forget the number of rows that were read, because the next report may have fewer."""
        await self._connection.execute(update(actor).where(actor.c.fragment == fragment).values(rows=0))

    async def reload(self, scans: Mapping[FragmentId, CdcScan]) -> None:
        """Replace the scans of followed tables. Broken ones are followed again."""
        for one in sorted(scans):
            # The table may have been dropped since.
            mine = update(fragment).where(fragment.c.id == one, fragment.c.source.is_not(None))
            whole = {"broken": None, "broken_since": None, "source_waiting": None}
            await self._connection.execute(mine.values(cdc=json.loads(stored_scan(scans[one])), **whole))

    async def restart(self, fragments: Collection[FragmentId]) -> None:
        """Begin the histories of followed tables anew."""
        anew = {"rows": 0, "finished": False}
        for changed in (
            update(actor).where(among(actor.c.fragment, fragments)).values(anew),
            delete(backfill_position).where(among(backfill_position.c.fragment, fragments)),
            update(scan_progress).where(among(scan_progress.c.fragment, fragments)).values(**anew, rate=0, at=None),
        ):
            await self._connection.execute(changed)

    async def record(self, reports: Iterable[SourceReport], *, now: datetime) -> Sequence[Told]:
        """Store these reports, oldest first, and return the state changes.

        Where several reports are on one source, the newest report counts, with the sum of their changes.
        """
        newest: dict[SourceId, SourceReport] = {}
        broken: dict[FragmentId, str] = {}
        parts: dict[FragmentId, dict[str, Any]] = {}
        for report in reports:
            before = newest.get(report.source)
            changes = report.changes + (0 if before is None else before.changes)
            newest[report.source] = report.model_copy(update={"changes": changes})
            broken |= {one.fragment: one.broken for one in report.tables if one.broken is not None}
            for one in report.tables:
                new = one.model_dump(mode="json", include={"published", "sweep", "nulled"}, exclude_none=True)
                parts.setdefault(one.fragment, {}).update(new)
        if not newest:
            return ()
        known = await self._known(newest)
        told = [one for one in known.values() if newest[SourceId(one.relation)].waiting != one.waiting]
        breaks = [await self._break(fragment, why, now=now) for fragment, why in sorted(broken.items())]
        for one, new in sorted(parts.items()):
            await self._keep(one, new)
        for source in known:
            await self._store(newest[source], now=now)
        return [
            *(Told(row.name, None, newest[SourceId(row.relation)].waiting) for row in told),
            *(one for one in breaks if one is not None),
        ]

    async def broke(self, source: SourceId, reason: str, *, now: datetime) -> Sequence[str]:
        """Mark all followed tables of a source as broken. Return the names of those that were not broken before."""
        mine = select(fragment.c.id).where(fragment.c.source == source, fragment.c.broken.is_(None))
        found = (await self._connection.execute(mine.order_by(fragment.c.id))).scalars().all()
        told = [await self._break(FragmentId(one), reason, now=now) for one in found]
        return [one.table for one in told if one is not None and one.table is not None]

    async def _known(self, wanted: Collection[SourceId]) -> Mapping[SourceId, Row[*tuple[Any, ...]]]:
        found = (
            select(sources.c.relation, relations.c.name, sources.c.waiting)
            .join(relations, relations.c.id == sources.c.relation)
            .where(among(sources.c.relation, wanted), TAKEN)
            .order_by(sources.c.relation)
        )
        return {SourceId(row.relation): row for row in await self._connection.execute(found)}

    async def _store(self, report: SourceReport, *, now: datetime) -> None:
        await self._wait(report)
        values: dict[str, Any] = {
            "offset": report.offset,
            "undecided": list(report.undecided),
            "waiting": None if report.waiting is None else printable(report.waiting),
            "changes": sources.c.changes + report.changes,
            "reported_at": now,
        }
        # A figure that the worker could not obtain keeps its last known value.
        for name in ("lag_bytes", "retained_bytes", "commit_lag_ms"):
            if (told := getattr(report, name)) is not None:
                values[name] = told
        await self._connection.execute(update(sources).where(sources.c.relation == report.source).values(values))

    async def _wait(self, report: SourceReport) -> None:
        """Write only changed wait reasons, because every epoch reports them and a wait may last long."""
        columns = fragment.c
        waiting = {one.fragment: printable(one.waiting) for one in report.tables if one.waiting is not None}
        over = and_(columns.source == report.source, columns.source_waiting.is_not(None), ~among(columns.id, waiting))
        await self._connection.execute(update(fragment).where(over).values(source_waiting=None))
        if not waiting:
            return
        new = recordset(
            [{"id": one, "source_waiting": why} for one, why in waiting.items()], columns.id, columns.source_waiting
        )
        changed = and_(
            columns.id == new.c.id,
            among(columns.id, waiting),
            columns.source == report.source,
            columns.source_waiting.is_distinct_from(new.c.source_waiting),
        )
        await self._connection.execute(update(fragment).where(changed).values(source_waiting=new.c.source_waiting))

    async def _keep(self, one: FragmentId, parts: Mapping[str, Any]) -> None:
        """Store new parts of a scan, so that the next worker begins with them."""
        if parts:
            mine = update(fragment).where(fragment.c.id == one, fragment.c.source.is_not(None))
            await self._connection.execute(mine.values(cdc=fragment.c.cdc.op("||")(bindparam("parts", parts, JSONB))))

    async def _break(self, one: FragmentId, why: str, *, now: datetime) -> Told | None:
        """Store why a table broke. The first reason stays, because later ones are its consequences."""
        columns = fragment.c
        whole = and_(columns.id == one, columns.source.is_not(None), columns.broken.is_(None))
        changed = update(fragment).where(whole).values(broken=printable(why), broken_since=now)
        row = (await self._connection.execute(changed.returning(columns.source, columns.job))).first()
        if row is None:
            return None
        of_table = select(relations.c.name).join(job, job.c.relation == relations.c.id).where(job.c.id == row.job)
        of_source = select(relations.c.name).where(relations.c.id == row.source)
        table = (await self._connection.execute(of_table)).scalar_one()
        return Told((await self._connection.execute(of_source)).scalar_one(), table, printable(why))


class Slots(OnConnection):
    """The replication slots of sources, as last measured."""

    async def measured(self, source: SourceId, measured: Measured, *, now: datetime) -> None:
        """Store a measurement of a source's slot."""
        values: dict[str, Any] = {"reported_at": now}
        if measured.lag_bytes is not None:
            values["lag_bytes"] = measured.lag_bytes
        if measured.retained_bytes is not None:
            values["retained_bytes"] = measured.retained_bytes
        if not measured.followed:
            values["waiting"] = None if measured.waiting is None else printable(measured.waiting)
        await self._connection.execute(update(sources).where(sources.c.relation == source).values(values))

    async def retained(self, source: SourceId, retention: Retention | None) -> None:
        """Store the retention state of the slot, as last reported in an event."""
        mine = update(sources).where(sources.c.relation == source)
        await self._connection.execute(mine.values(retention=retention))

    async def idle(self, source: SourceId) -> bool:
        """Lock the source until the transaction ends. Return whether no table follows it, or can until then."""
        held = select(relations.c.id).where(relations.c.id == source, TAKEN, relations.c.shown)
        if (await self._connection.execute(held.with_for_update(key_share=True))).first() is None:
            return False
        # A failed job no longer reads the source.
        follower = select(fragment.c.id).join(job, job.c.id == fragment.c.job)
        followed = follower.where(fragment.c.source == source, job.c.state != JobState.FAILED).limit(1)
        return (await self._connection.execute(followed)).first() is None

    async def skipped(self, source: SourceId, offset: Lsn, readable_after: int) -> None:
        """Record that the slot of an idle source was advanced to `offset`.

        Pages of later followed tables must be read from a snapshot that shows all transactions before `readable_after`.
        """
        values = {"offset": offset, "undecided": [], "readable_after": readable_after}
        await self._connection.execute(update(sources).where(sources.c.relation == source).values(values))


class SourceCleanups(OnConnection):
    """The pending clean-ups in external databases."""

    async def expect(self, source: SourceId, schema: str, table: str, *, now: datetime, due: datetime) -> None:
        """Store the clean-up of a table that is about to be published, due at `due` unless it is followed then.

        Waits for a running clean-up of the same table.
        """
        new = _unpublishing(source, schema, table, now, due)
        later = {"due": new.excluded.due}
        await self._connection.execute(new.on_conflict_do_update(constraint="source_cleanup_once", set_=later))

    async def due(self, now: datetime) -> Sequence[SourceCleanup]:
        """Return the due clean-ups, oldest first. Slot and publication come after the source's last followed table."""
        following = exists().where(fragment.c.source == source_cleanup.c.source)
        table = source_cleanup.c.what == str(Leftover.TABLE)
        found = _CLEANUPS.where(source_cleanup.c.due <= now, or_(table, ~following))
        return [_cleanup(row) for row in await self._connection.execute(found)]

    async def hold(self, cleanup: int, now: datetime) -> SourceCleanup | None:
        """Lock a clean-up until the transaction ends and return it, or None if it is no longer due.

        The lock prevents that a followed table for the external table is created meanwhile.
        """
        found = _CLEANUPS.where(source_cleanup.c.id == cleanup, source_cleanup.c.due <= now)
        row = (await self._connection.execute(found.with_for_update())).first()
        return None if row is None else _cleanup(row)

    async def all(self) -> Sequence[SourceCleanup]:
        return [_cleanup(row) for row in await self._connection.execute(_CLEANUPS)]

    async def failed(self, cleanup: int, error: str, *, due: datetime) -> None:
        values = {"attempts": source_cleanup.c.attempts + 1, "error": printable(error), "due": due}
        await self._connection.execute(update(source_cleanup).where(source_cleanup.c.id == cleanup).values(values))

    async def done(self, cleanup: int) -> None:
        """Delete a finished or unneeded clean-up. The last one of a dropped source also deletes the source."""
        gone = delete(source_cleanup).where(source_cleanup.c.id == cleanup).returning(source_cleanup.c.source)
        one = (await self._connection.execute(gone)).scalar()
        if one is not None:
            await forget_source(self._connection, SourceId(one))


def stored_scan(scan: CdcScan) -> str:
    """Return the stored text of a scan, without its source and its failure, which have columns of their own."""
    return scan.model_dump_json(exclude={"source", "broken"})


def scan_of(row: Row[*tuple[Any, ...]]) -> CdcScan:
    """Return the scan of a fragment's row, as of the source's newest committed offset."""
    of = CdcSource(
        id=SourceId(row.source),
        name=row.source_name,
        slot=row.slot,
        publication=row.publication,
        offset=row.offset,
        undecided=tuple(row.undecided),
    )
    readable_after = max(row.cdc["readable_after"], row.readable_after)
    return CdcScan.model_validate({**row.cdc, "source": of, "broken": row.broken, "readable_after": readable_after})


async def added_tables(
    connection: AsyncConnection, job_ids: Select[*tuple[Any, ...]]
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Return the tables that were added to publications for these jobs."""
    rows = select(fragment.c.source, _SCHEMA.label("schema"), _TABLE.label("table")).where(
        fragment.c.job.in_(job_ids), fragment.c.source.is_not(None), fragment.c.added
    )
    return (await connection.execute(rows)).all()


async def unfollow(connection: AsyncConnection, tables: Sequence[Row[*tuple[Any, ...]]]) -> None:
    """Queue the removal of `added_tables` of jobs that are removed."""
    if not tables:
        return
    now = (await connection.execute(select(func.now()))).scalar_one()
    for row in tables:
        new = _unpublishing(SourceId(row.source), row.schema, row.table, now, _AT_ONCE)
        # Another job may be about to follow the table and has queued this clean-up already. Its due time counts.
        await connection.execute(new.on_conflict_do_nothing(constraint="source_cleanup_once"))


async def followed_again(connection: AsyncConnection, scan: CdcScan) -> None:
    """Cancel the clean-up of an external table, because a job follows it again."""
    columns = source_cleanup.c
    same = and_(
        columns.source == scan.source.id,
        columns.external_schema == scan.external_schema,
        columns.external_table == scan.external_table,
    )
    await connection.execute(delete(source_cleanup).where(same))


_COMPLETED: Final = (
    select(func.count())
    .where(backfill_position.c.fragment == fragment.c.id, backfill_position.c.state == str(PositionState.COMPLETED))
    .correlate(fragment)
    .scalar_subquery()
)
_TABLES: Final[Select[*tuple[Any, ...]]] = (
    select(
        fragment.c.source,
        fragment.c.job,
        fragment.c.id,
        relations.c.id.label("relation"),
        relations.c.name,
        _SCHEMA.label("schema"),
        _TABLE.label("table"),
        fragment.c.added,
        func.jsonb_array_length(fragment.c.cdc["splits"]).label("splits"),
        _COMPLETED.label("completed"),
        scan_progress.c.finished,
        fragment.c.broken,
        fragment.c.broken_since,
        fragment.c.source_waiting,
        func.coalesce(fragment.c.cdc["nulled"].as_integer(), 0).label("nulled"),
        _NOTE.label("note"),
    )
    .join(job, job.c.id == fragment.c.job)
    .join(relations, relations.c.id == job.c.relation)
    .join(scan_progress, scan_progress.c.fragment == fragment.c.id)
    .where(fragment.c.source.is_not(None))
)
_CLEANUPS: Final[Select[*tuple[Any, ...]]] = select(source_cleanup).order_by(source_cleanup.c.id)


def _followed(row: Row[*tuple[Any, ...]]) -> FollowedTable:
    return FollowedTable(
        source=SourceId(row.source),
        relation=RelationId(row.relation),
        job=JobId(row.job),
        fragment=FragmentId(row.id),
        name=row.name,
        external_schema=row.schema,
        external_table=row.table,
        added=row.added,
        splits=row.splits,
        splits_completed=row.completed,
        finished=row.finished,
        broken=row.broken,
        broken_since=row.broken_since,
        waiting=row.source_waiting,
        nulled=row.nulled,
        note=row.note,
    )


def _unpublishing(source: SourceId, schema: str, table: str, now: datetime, due: datetime) -> Insert:
    return insert(source_cleanup).values(
        source=source, what=Leftover.TABLE, external_schema=schema, external_table=table, asked_at=now, due=due
    )


def _cleanup(row: Row[*tuple[Any, ...]]) -> SourceCleanup:
    return SourceCleanup(
        id=row.id,
        source=SourceId(row.source),
        what=Leftover(row.what),
        external_schema=row.external_schema,
        external_table=row.external_table,
        asked_at=row.asked_at,
        due=row.due,
        attempts=row.attempts,
        error=row.error,
    )
