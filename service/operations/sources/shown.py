"""Read sources for the API. Next: `service.operations.sources.checks`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from service.domain.connectors import CONNECTOR
from service.domain.cutting import cut
from service.domain.errors import NotFound
from service.domain.job import JobState
from service.domain.lake_places import located
from service.domain.source import Retention
from service.operations.retrying import retried
from service.operations.world import Context
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry
from service.ports.source_records import FollowedTable, LakeSource, Leftover, Source, SourceCleanup
from service.protocol.ids import JobId, SourceId


@dataclass(frozen=True, slots=True)
class SourceTableView:
    """A followed table. `state` is `backfilling`, `following`, `waiting` or `broken`. `broken` is permanent. `reason`
    then says what to do. `values_nulled` counts the values that were stored as NULL since the history began. `note`
    says why the table has not all new columns of the external one.
    """

    name: str
    job: JobId
    external: str
    state: str
    reason: str | None
    splits: int
    splits_completed: int
    values_nulled: int
    note: str | None


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source. That of a place in a lake has tables and options, and nothing else: `slot` and `publication` are null.

    `offset` is the end of the last commit that was decoded and committed. `lag_bytes` is the log left to decode,
    `retained_bytes` the log that the external database keeps for the slot. Both are null before a measurement.
    `undecided` counts decoded transactions that no snapshot has shown yet. `waiting` is the reason why nothing is read
    now. `secret` is the name of the password's secret, null for a password in the source's options.
    """

    id: SourceId
    name: str
    definition: str
    options: Mapping[str, str]
    secret: str | None
    readable: bool
    slot: str | None
    publication: str | None
    offset: str | None
    lag_bytes: int | None
    retained_bytes: int | None
    retention: Retention | None
    commit_lag_ms: float | None
    changes: int
    undecided: int
    waiting: str | None
    reported_at: datetime | None
    tables: tuple[SourceTableView, ...]


@dataclass(frozen=True, slots=True)
class CleanupView:
    """A pending clean-up in an external database, and the error of its last attempt."""

    id: int
    source: str
    what: Leftover
    table: str | None
    asked_at: datetime
    due: datetime
    attempts: int
    error: str | None


async def sources(world: Context) -> list[SourceView]:
    """Return every source, oldest first."""
    async with world.stores.begin() as tx:
        found = await tx.sources.all()
        tables = await tx.following.tables()
        lakes = [await _lake(tx, one) for one in await tx.lakes.all()]
    every = [*(_source(one, [table for table in tables if table.source == one.id]) for one in found), *lakes]
    return sorted((replace(one, options=_shortened(one.options)) for one in every), key=lambda one: one.id)


def _shortened(options: Mapping[str, str]) -> Mapping[str, str]:
    return {name: cut(value) for name, value in options.items()}


async def source(world: Context, name: str) -> SourceView:
    """Return the source called `name`. Raises NotFound."""
    async with world.stores.begin() as tx:
        found = await tx.sources.named(name)
        if (lake := await tx.lakes.named(name)) is not None:
            return await _lake(tx, lake)
        if found is None:
            raise NotFound(f'source "{name}" does not exist', kind="relation")
        tables = await tx.following.tables(found.id)
    return _source(found, tables)


async def cleanups(world: Context) -> list[CleanupView]:
    """Return the pending clean-ups in external databases, oldest first."""
    async with world.stores.begin() as tx:
        found = await tx.source_cleanups.all()
        names = {one.source: await tx.sources.get(one.source) for one in found}
    return [_cleanup(one, names[one.source]) for one in found]


@retried
async def give_up(world: Context, cleanup: int, *, asked_by: Asker) -> None:
    """Delete a pending clean-up whose server will never return. Raises NotFound."""
    async with world.stores.begin(by=asked_by) as tx:
        found = next((one for one in await tx.source_cleanups.all() if one.id == cleanup), None)
        if found is None:
            raise NotFound(f"cleanup {cleanup} not found", kind="cleanup")
        of = await tx.sources.get(found.source)
        shown = _cleanup(found, of)
        await tx.source_cleanups.done(cleanup)
        facts = {"source": shown.source, "what": str(shown.what), "table": shown.table, "asked_by": asked_by.actor}
        await tx.events.append("source.cleanup_given_up", facts, now=world.clock.now())


async def _lake(tx: Transaction, one: LakeSource) -> SourceView:
    away = {table.relation: table.reason for table in await tx.lakes.away()}
    entries = sorted(await tx.catalog.dependents(one.id), key=lambda entry: entry.relation.id)
    root = f"{located(one.connector.options)}/"
    return SourceView(
        id=SourceId(one.id),
        name=one.name,
        definition=one.definition,
        options={CONNECTOR: one.connector.name, **one.connector.options},
        secret=None,
        readable=True,
        slot=None,
        publication=None,
        offset=None,
        lag_bytes=None,
        retained_bytes=None,
        retention=None,
        commit_lag_ms=None,
        changes=0,
        undecided=0,
        waiting=None,
        reported_at=None,
        tables=tuple(_in_lake(entry, root, away.get(entry.relation.id)) for entry in entries),
    )


def _in_lake(entry: CatalogEntry, root: str, waiting: str | None) -> SourceTableView:
    assert entry.relation.lake is not None
    failed = entry.state is JobState.FAILED
    return SourceTableView(
        name=entry.relation.name,
        job=entry.job,
        external=located(entry.relation.lake.options).removeprefix(root),
        state="broken" if failed else "following" if waiting is None else "waiting",
        reason="its job failed" if failed else waiting,
        splits=1,
        splits_completed=1,
        values_nulled=0,
        note=None,
    )


def _source(one: Source, tables: Sequence[FollowedTable]) -> SourceView:
    standing = one.standing
    return SourceView(
        id=one.id,
        name=one.name,
        definition=one.definition,
        options=one.options,
        secret=one.secret,
        readable=one.shown,
        slot=one.slot,
        publication=one.publication,
        offset=standing.offset,
        lag_bytes=standing.lag_bytes,
        retained_bytes=standing.retained_bytes,
        retention=standing.retention,
        commit_lag_ms=standing.commit_lag_ms,
        changes=standing.changes,
        undecided=standing.undecided,
        waiting=standing.waiting,
        reported_at=standing.reported_at,
        tables=tuple(_followed(table, standing.waiting) for table in tables),
    )


def _followed(table: FollowedTable, source_waiting: str | None) -> SourceTableView:
    waiting = table.waiting or source_waiting
    if table.broken is not None:
        state = "broken"
    elif waiting is not None:
        state = "waiting"
    else:
        state = "following" if table.finished else "backfilling"
    return SourceTableView(
        name=table.name,
        job=table.job,
        external=f"{table.external_schema}.{table.external_table}",
        state=state,
        reason=table.broken or waiting,
        splits=table.splits,
        splits_completed=table.splits if table.finished else table.splits_completed,
        values_nulled=table.nulled,
        note=table.note,
    )


def _cleanup(one: SourceCleanup, of: Source | None) -> CleanupView:
    return CleanupView(
        id=one.id,
        source=str(one.source) if of is None else of.name,
        what=one.what,
        table=one.table,
        asked_at=one.asked_at,
        due=one.due,
        attempts=one.attempts,
        error=one.error,
    )
