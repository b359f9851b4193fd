"""Sources, secrets and what follows in the meta store in memory; part of `fake_meta_store`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from service.domain.errors import Conflict, NotFound
from service.domain.job import CREATING, JobState
from service.domain.source import Retention
from service.ports.source_records import (
    FollowedTable,
    Leftover,
    Measured,
    NewSource,
    Source,
    SourceCleanup,
    Standing,
    Told,
)
from service.protocol.cdc import CdcScan, CdcSource, Lsn, SourceReport
from service.protocol.ids import FragmentId, JobId, RelationId, SourceId
from service.protocol.plan import FragmentKind, PositionState
from service.protocol.relation import RelationKind
from tests.support.fake_meta_tables import LONG_AGO, FragmentRow, SourceRow, Tables, printable

_USERS = "secret "
_AT_ONCE = datetime(1970, 1, 1, tzinfo=UTC)


def check_free(tables: Tables, name: str) -> None:
    """Raise Conflict where a relation, a source or an index has the name."""
    sources = (
        (RelationKind.SOURCE, row.source.name, row.source.shown, row.source.dropped) for row in tables.sources.values()
    )
    indexes = ((RelationKind.INDEX, row.relation.name, row.shown, False) for row in tables.named_indexes.values())
    relations = (
        (row.relation.kind, row.relation.name, tables.jobs[row.job].job.state not in CREATING, row.dropped)
        for row in tables.relations.values()
    )
    for kind, taken, made, dropped in (*sources, *indexes, *relations):
        if taken == name and not dropped:
            if made:
                raise Conflict(f'{kind} with name "{name}" exists')
            raise Conflict(f"{kind} named {name} already exists and is still being created")


def scan_of(tables: Tables, row: FragmentRow) -> CdcScan | None:
    """Return what the plan of a fragment says of its external table."""
    if row.cdc is None:
        return None
    found = tables.sources[row.cdc.source.id]
    of = CdcSource(
        id=found.source.id,
        name=found.source.name,
        slot=found.source.slot,
        publication=found.source.publication,
        offset=found.source.standing.offset or "0/0",
        undecided=found.undecided,
    )
    readable_after = max(row.cdc.readable_after, found.readable_after)
    return row.cdc.model_copy(update={"source": of, "broken": row.broken, "readable_after": readable_after})


def unfollow(tables: Tables, job: JobId) -> None:
    """Have what was published for a job taken back."""
    for row in tables.of_job(job):
        if row.cdc is not None and row.added:
            one = SourceCleanup(
                next(tables.ids),
                row.cdc.source.id,
                Leftover.TABLE,
                row.cdc.external_schema,
                row.cdc.external_table,
                LONG_AGO,
                _AT_ONCE,
            )
            if _same(tables, one) is None:
                tables.source_cleanups.put(one.id, one)


def followed_again(tables: Tables, scan: CdcScan) -> None:
    """Something follows the table: there is nothing to take back."""
    for one in list(tables.source_cleanups.values()):
        named = (one.source, one.external_schema, one.external_table)
        if named == (scan.source.id, scan.external_schema, scan.external_table):
            tables.source_cleanups.take(one.id)


def _same(tables: Tables, one: SourceCleanup) -> SourceCleanup | None:
    named = (one.source, one.what, one.external_schema, one.external_table)
    return next(
        (
            row
            for row in tables.source_cleanups.values()
            if (row.source, row.what, row.external_schema, row.external_table) == named
        ),
        None,
    )


def _forget(tables: Tables, source: SourceId) -> None:
    row = tables.sources.get(source)
    left = any(one.source == source for one in tables.source_cleanups.values())
    if row is not None and row.source.dropped and not left:
        tables.sources.take(source)
        if not row.secret.startswith(_USERS):
            tables.secrets.take(row.secret)


@dataclass(frozen=True, slots=True)
class FakeSources:
    tables: Tables

    async def add(self, new: NewSource, *, now: datetime, abandoned_at: datetime) -> Source:
        tables = self.tables
        check_free(tables, new.name)
        one = SourceId(next(tables.ids))
        if new.password.value is not None:
            secret = f"source {one}"
            tables.secrets.put(secret, new.password.value)
        else:
            secret = f"{_USERS}{new.password.name}"
            if secret not in tables.secrets:
                raise NotFound(f'secret "{new.password.name}" does not exist', kind="secret")
        unique = f"tidefill_{one:016x}"
        source = Source(
            id=one,
            name=new.name,
            definition=new.definition,
            options=dict(new.options),
            publication=new.publication or unique,
            slot=new.slot or unique,
            owns_publication=new.owns_publication,
            shown=False,
            dropped=False,
            secret=new.password.name,
        )
        tables.sources.put(one, SourceRow(source, secret))
        self._queue(source, now, abandoned_at)
        return source

    async def made(self, source: SourceId, offset: Lsn) -> None:
        row = self.tables.sources[source]
        standing = replace(row.source.standing, offset=offset)
        made = replace(row.source, shown=True, standing=standing)
        self.tables.sources.put(source, replace(row, source=made))
        for one in list(self.tables.source_cleanups.values()):
            if one.source == source:
                self.tables.source_cleanups.take(one.id)

    async def named(self, name: str) -> Source | None:
        return next((one for one in await self.all() if one.name == name), None)

    async def get(self, source: SourceId) -> Source | None:
        row = self.tables.sources.get(source)
        return None if row is None else row.source

    async def all(self) -> Sequence[Source]:
        return [row.source for _, row in sorted(self.tables.sources.items()) if not row.source.dropped]

    async def password(self, source: SourceId) -> str:
        return self.tables.secrets[self.tables.sources[source].secret]

    async def remove(self, source: SourceId, *, now: datetime, keeping: Collection[Leftover] = ()) -> None:
        row = self.tables.sources[source]
        self.tables.sources.put(source, replace(row, source=replace(row.source, dropped=True, shown=False)))
        self._queue(row.source, now, now)
        for one in list(self.tables.source_cleanups.values()):
            if one.source == source and one.what in keeping:
                self.tables.source_cleanups.take(one.id)
        _forget(self.tables, source)

    def _queue(self, source: Source, now: datetime, due: datetime) -> None:
        made = [Leftover.SLOT, *([Leftover.PUBLICATION] if source.owns_publication else [])]
        for what in made:
            one = SourceCleanup(next(self.tables.ids), source.id, what, None, None, now, due)
            before = _same(self.tables, one)
            kept = one if before is None else replace(before, due=min(before.due, due))
            self.tables.source_cleanups.put(kept.id, kept)


def _followers(tables: Tables, source: SourceId | None) -> list[tuple[FragmentRow, CdcScan]]:
    return [
        (row, row.cdc)
        for _, row in sorted(tables.fragments.items())
        if row.kind is FragmentKind.CDC_SCAN and row.cdc is not None and (source is None or row.cdc.source.id == source)
    ]


def _columns_there(cdc: CdcScan) -> int:
    shape = None if cdc.published is None else cdc.published.shape
    return 0 if shape is None else len(shape.columns)


def _stand(tables: Tables, row: SourceRow, standing: Standing) -> None:
    tables.sources.put(row.source.id, replace(row, source=replace(row.source, standing=standing)))


@dataclass(frozen=True, slots=True)
class FakeFollowing:
    tables_: Tables

    async def tables(self, source: SourceId | None = None) -> Sequence[FollowedTable]:
        return [self._followed(row, cdc) for row, cdc in _followers(self.tables_, source)]

    async def lacking(self) -> Sequence[FollowedTable]:
        return [
            self._followed(row, cdc)
            for row, cdc in _followers(self.tables_, None)
            if cdc.all_columns and (cdc.note is not None or _columns_there(cdc) > len(cdc.columns))
        ]

    async def note(self, fragment: FragmentId, note: str | None) -> None:
        row = self.tables_.fragments[fragment]
        assert row.cdc is not None
        told = None if note is None else printable(note)
        self.tables_.fragments.put(fragment, replace(row, cdc=row.cdc.model_copy(update={"note": told})))

    async def followed(self) -> Collection[SourceId]:
        return {cdc.source.id for _, cdc in _followers(self.tables_, None)}

    async def begin_reload(self, fragment: FragmentId) -> None:
        for row in self.tables_.of_fragment(fragment):
            self.tables_.actors.put(row.id, replace(row, rows=0))

    async def reload(self, scans: Mapping[FragmentId, CdcScan]) -> None:
        for one, scan in scans.items():
            row = self.tables_.fragments.get(one)
            if row is not None and row.cdc is not None:
                whole = replace(row, broken=None, broken_since=None, source_waiting=None)
                self.tables_.fragments.put(one, replace(whole, cdc=scan))

    async def restart(self, fragments: Collection[FragmentId]) -> None:
        for one in fragments:
            self.tables_.positions.put(one, {})
            progress = self.tables_.scans[one]
            self.tables_.scans.put(one, replace(progress, rows=0, rate=0.0, finished=False, at=None))
            for actor in self.tables_.of_fragment(one):
                self.tables_.actors.put(actor.id, replace(actor, rows=0, finished=False))

    async def record(self, reports: Iterable[SourceReport], *, now: datetime) -> Sequence[Told]:
        newest: dict[SourceId, SourceReport] = {}
        broken: dict[FragmentId, str] = {}
        for report in reports:
            before = newest.get(report.source)
            changes = report.changes + (0 if before is None else before.changes)
            newest[report.source] = report.model_copy(update={"changes": changes})
            broken |= {one.fragment: one.broken for one in report.tables if one.broken is not None}
            for one in report.tables:
                row = self.tables_.fragments.get(one.fragment)
                if row is not None and row.cdc is not None:
                    new = {"published": one.published, "sweep": one.sweep, "nulled": one.nulled}
                    cdc = row.cdc.model_copy(update={name: part for name, part in new.items() if part is not None})
                    self.tables_.fragments.put(one.fragment, replace(row, cdc=cdc))
        told: list[Told] = []
        for report in newest.values():
            row = self.tables_.sources.get(report.source)
            if row is None or row.source.dropped:
                continue
            if row.source.standing.waiting != report.waiting:
                told.append(Told(row.source.name, None, report.waiting))
            self._store(row, report, now)
        breaks = (self._break(fragment, why, now) for fragment, why in broken.items())
        return [*told, *[one for one in breaks if one is not None]]

    async def broke(self, source: SourceId, reason: str, *, now: datetime) -> Sequence[str]:
        told = [self._break(row.id, reason, now) for row, _ in _followers(self.tables_, source) if row.broken is None]
        return [one.table for one in told if one is not None and one.table is not None]

    def _followed(self, row: FragmentRow, cdc: CdcScan) -> FollowedTable:
        relation = self.tables_.jobs[row.job].job.relation
        stored = self.tables_.positions.get(row.id, {}).values()
        return FollowedTable(
            source=cdc.source.id,
            relation=RelationId(relation),
            job=row.job,
            fragment=row.id,
            name=self.tables_.relations[relation].relation.name,
            external_schema=cdc.external_schema,
            external_table=cdc.external_table,
            added=row.added,
            splits=len(cdc.splits),
            splits_completed=sum(one.state is PositionState.COMPLETED for one in stored),
            finished=self.tables_.scans[row.id].finished,
            broken=row.broken,
            broken_since=row.broken_since,
            waiting=row.source_waiting,
            nulled=cdc.nulled,
            note=cdc.note,
        )

    def _store(self, row: SourceRow, report: SourceReport, now: datetime) -> None:
        before = row.source.standing
        standing = Standing(
            offset=report.offset,
            undecided=len(report.undecided),
            waiting=None if report.waiting is None else printable(report.waiting),
            lag_bytes=before.lag_bytes if report.lag_bytes is None else report.lag_bytes,
            retained_bytes=before.retained_bytes if report.retained_bytes is None else report.retained_bytes,
            commit_lag_ms=before.commit_lag_ms if report.commit_lag_ms is None else report.commit_lag_ms,
            changes=before.changes + report.changes,
            reported_at=now,
            retention=before.retention,
        )
        _stand(self.tables_, replace(row, undecided=report.undecided), standing)
        waiting = {one.fragment: one.waiting for one in report.tables}
        for one, _ in _followers(self.tables_, report.source):
            told = waiting.get(one.id)
            said = None if told is None else printable(told)
            self.tables_.fragments.put(one.id, replace(one, source_waiting=said))

    def _break(self, fragment: FragmentId, why: str, now: datetime) -> Told | None:
        row = self.tables_.fragments.get(fragment)
        if row is None or row.cdc is None or row.broken is not None:
            return None
        self.tables_.fragments.put(fragment, replace(row, broken=printable(why), broken_since=now))
        source = self.tables_.sources[row.cdc.source.id].source
        return Told(source.name, self._followed(row, row.cdc).name, printable(why))


@dataclass(frozen=True, slots=True)
class FakeSlots:
    tables_: Tables

    async def measured(self, source: SourceId, measured: Measured, *, now: datetime) -> None:
        row = self.tables_.sources[source]
        before = row.source.standing
        lag, retained = measured.lag_bytes, measured.retained_bytes
        after = replace(
            before,
            lag_bytes=before.lag_bytes if lag is None else lag,
            retained_bytes=before.retained_bytes if retained is None else retained,
            waiting=before.waiting if measured.followed else measured.waiting,
            reported_at=now,
        )
        _stand(self.tables_, row, after)

    async def retained(self, source: SourceId, retention: Retention | None) -> None:
        row = self.tables_.sources[source]
        _stand(self.tables_, row, replace(row.source.standing, retention=retention))

    async def idle(self, source: SourceId) -> bool:
        row = self.tables_.sources.get(source)
        following = [
            one
            for one, _ in _followers(self.tables_, source)
            if self.tables_.jobs[one.job].job.state is not JobState.FAILED
        ]
        return row is not None and row.source.shown and not row.source.dropped and not following

    async def skipped(self, source: SourceId, offset: Lsn, readable_after: int) -> None:
        row = replace(self.tables_.sources[source], undecided=(), readable_after=readable_after)
        _stand(self.tables_, row, replace(row.source.standing, offset=offset, undecided=0))


@dataclass(frozen=True, slots=True)
class FakeSourceCleanups:
    tables: Tables

    async def expect(self, source: SourceId, schema: str, table: str, *, now: datetime, due: datetime) -> None:
        one = SourceCleanup(next(self.tables.ids), source, Leftover.TABLE, schema, table, now, due)
        before = _same(self.tables, one)
        kept = one if before is None else replace(before, due=due)
        self.tables.source_cleanups.put(kept.id, kept)

    async def due(self, now: datetime) -> Sequence[SourceCleanup]:
        followed = {row.cdc.source.id for row in self.tables.fragments.values() if row.cdc is not None}
        return [
            one
            for one in await self.all()
            if one.due <= now and (one.what is Leftover.TABLE or one.source not in followed)
        ]

    async def hold(self, cleanup: int, now: datetime) -> SourceCleanup | None:
        one = self.tables.source_cleanups.get(cleanup)
        return one if one is not None and one.due <= now else None

    async def all(self) -> Sequence[SourceCleanup]:
        return [one for _, one in sorted(self.tables.source_cleanups.items())]

    async def failed(self, cleanup: int, error: str, *, due: datetime) -> None:
        if one := self.tables.source_cleanups.get(cleanup):
            changed = replace(one, attempts=one.attempts + 1, error=printable(error), due=due)
            self.tables.source_cleanups.put(cleanup, changed)

    async def done(self, cleanup: int) -> None:
        one = self.tables.source_cleanups.take(cleanup)
        if one is not None:
            _forget(self.tables, one.source)


@dataclass(frozen=True, slots=True)
class FakeSecrets:
    tables: Tables

    async def add(self, name: str, value: str) -> None:
        if f"{_USERS}{name}" in self.tables.secrets:
            raise Conflict(f'secret with name "{name}" exists')
        self.tables.secrets.put(f"{_USERS}{name}", value)

    async def change(self, name: str, value: str) -> None:
        if f"{_USERS}{name}" not in self.tables.secrets:
            raise NotFound(f'secret "{name}" does not exist', kind="secret")
        self.tables.secrets.put(f"{_USERS}{name}", value)

    async def value(self, name: str) -> str | None:
        return self.tables.secrets.get(f"{_USERS}{name}")

    async def names(self) -> Sequence[str]:
        return sorted(one.removeprefix(_USERS) for one in self.tables.secrets if one.startswith(_USERS))

    async def remove(self, name: str) -> bool:
        kept = f"{_USERS}{name}"
        if kept not in self.tables.secrets:
            return False
        using = sorted(row.source.name for row in self.tables.sources.values() if row.secret == kept)
        if using:
            raise Conflict(f'cannot drop secret "{name}": it is the password of {", ".join(using)}')
        self.tables.secrets.take(kept)
        return True
