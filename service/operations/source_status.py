"""Sources as the doors show them, and what can be said of an external database before a source is made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from service.domain.errors import Invalid, MetaError, NotFound
from service.domain.external import ExternalTable, Publication, follower, why_not_published
from service.domain.source import Retention, SourceOptions, conninfo, source_options
from service.operations.sources import refusals
from service.operations.world import World
from service.ports.source_records import FollowedTable, Leftover, Source, SourceCleanup
from service.ports.sources import Address, ServerFacts
from service.protocol.ids import JobId, SourceId
from service.sql.follow import external_name

_CHECKED: Final = "the source to be"


@dataclass(frozen=True, slots=True)
class SourceTableView:
    """A table that follows a source. `state` is `backfilling`, `following`, `waiting` or `broken`: for good, and
    `reason` says what to do.
    """

    name: str
    job: JobId
    external: str
    state: str
    reason: str | None
    splits: int
    splits_completed: int


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source. `offset` is the end of the last commit that was decoded and committed; `lag_bytes` is how much log was
    left to decode, `retained_bytes` how much the slot makes the external database keep; null where neither was asked.
    `undecided` counts transactions that were decoded and that no snapshot has shown yet. `waiting` says why nothing is
    read just now. `secret` is what its password is called, null where it was given with the source.
    """

    id: SourceId
    name: str
    definition: str
    options: Mapping[str, str]
    secret: str | None
    readable: bool
    slot: str
    publication: str
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
    """What is still to be removed from an external database, and why it has not been."""

    id: int
    source: str
    what: Leftover
    table: str | None
    asked_at: datetime
    due: datetime
    attempts: int
    error: str | None


@dataclass(frozen=True, slots=True)
class CheckItem:
    """One thing that following a database needs, and whether it is there."""

    item: str
    ok: bool
    detail: str


async def sources(world: World) -> list[SourceView]:
    """Return every source, oldest first."""
    async with world.stores.begin() as tx:
        found = await tx.sources.all()
        tables = await tx.following.tables()
    return [_source(one, [table for table in tables if table.source == one.id]) for one in found]


async def source(world: World, name: str) -> SourceView:
    """Return the source called `name`. Raises NotFound."""
    async with world.stores.begin() as tx:
        found = await tx.sources.named(name)
        if found is None:
            raise NotFound(f'source "{name}" does not exist', kind="relation")
        tables = await tx.following.tables(found.id)
    return _source(found, tables)


async def cleanups(world: World) -> list[CleanupView]:
    """Return what is still to be removed outside, oldest first."""
    async with world.stores.begin() as tx:
        found = await tx.source_cleanups.all()
        names = {one.source: await tx.sources.get(one.source) for one in found}
    return [_cleanup(one, names[one.source]) for one in found]


async def give_up(world: World, cleanup: int, *, asked_by: str) -> None:
    """Forget something that was to be removed outside: its server will never be there again. Raises NotFound."""
    async with world.stores.begin() as tx:
        found = next((one for one in await tx.source_cleanups.all() if one.id == cleanup), None)
        if found is None:
            raise NotFound(f"cleanup {cleanup} not found", kind="cleanup")
        of = await tx.sources.get(found.source)
        shown = _cleanup(found, of)
        await tx.source_cleanups.done(cleanup)
        facts = {"source": shown.source, "what": str(shown.what), "table": shown.table, "asked_by": asked_by}
        await tx.events.append("source.cleanup_given_up", facts, now=world.clock.now())


async def check(
    world: World, options: Mapping[str, str], password: str, tables: Sequence[str]
) -> tuple[CheckItem, ...]:
    """Look at everything that following these tables needs; nothing is made. Raises Invalid for options that are not
    understood.
    """
    parsed = source_options(options)
    at = Address(_CHECKED, parsed.place, conninfo(parsed, password))
    try:
        facts = await world.external.server(at)
        publication = None
        if parsed.publication is not None:
            publication = await world.external.publication(at, parsed.publication)
        items = [CheckItem("reachable", ok=True, detail=f"{parsed.place} answers as {parsed.username}")]
        items += _server(facts, makes_publication=publication is None)
        items += _publication(parsed, publication)
        items += await _slot(world, at, parsed)
        items += [await _table(world, at, parsed, publication, name) for name in tables]
    except MetaError as error:
        return (CheckItem("reachable", ok=False, detail=error.message),)
    return (*items, _cost(facts))


def _server(facts: ServerFacts, *, makes_publication: bool) -> list[CheckItem]:
    wrong = dict(refusals(facts, makes_publication=makes_publication))
    fine = {
        "version": f"Postgres {facts.version}",
        "primary": "it is the server that writes",
        "wal_level": f"wal_level is {facts.wal_level}",
        "replication": "the login may replicate",
        "publication": "the login may make a publication" if makes_publication else "none has to be made",
        "slots": f"{facts.slots_max - facts.slots} of {facts.slots_max} replication slots are free",
    }
    items = [CheckItem(item, item not in wrong, wrong.get(item, said)) for item, said in fine.items()]
    return [*items, _monitoring(facts)]


def _monitoring(facts: ServerFacts) -> CheckItem:
    """Following needs no sight of others."""
    may = "may see" if facts.monitors else "may not see (GRANT pg_read_all_stats, if it shall)"
    detail = f"the login {may} the queries of others, which backfill_rate_limit = 'auto' looks at"
    return CheckItem("monitoring", ok=True, detail=detail)


def _publication(options: SourceOptions, found: Publication | None) -> list[CheckItem]:
    if options.publication is None or (found is None and options.create_publication):
        return []
    if found is None:
        detail = f'publication "{options.publication}" does not exist, and publication.create.enable is false'
        return [CheckItem("publication.name", ok=False, detail=detail)]
    lacks = f"does not publish {', '.join(found.lacks)}" if found.lacks else "exists, and is used as it is"
    return [CheckItem("publication.name", not found.lacks, f'publication "{found.name}" {lacks}')]


async def _slot(world: World, at: Address, options: SourceOptions) -> list[CheckItem]:
    if options.slot is None:
        return []
    found = await world.external.slot(at, options.slot)
    said = "exists: a source makes its own" if found is not None else "is free"
    return [CheckItem("slot.name", found is None, f'the name of slot "{options.slot}" {said}')]


async def _table(
    world: World, at: Address, options: SourceOptions, publication: Publication | None, name: str
) -> CheckItem:
    """Say whether a table could be followed with all its columns, as `CREATE TABLE t (*)` does."""
    item = f"table {name}"
    schema, table_name = external_name(name)
    table = await world.external.table(at, schema or options.schema, table_name)
    if table is None:
        return CheckItem(item, ok=False, detail=f'table "{schema or options.schema}.{table_name}" does not exist')
    try:
        shape = follower(table, publication, None, ())
    except Invalid as error:
        return CheckItem(item, ok=False, detail=error.message)
    of = publication or Publication("the one that is made")
    if why := why_not_published(table, of, may_add=options.create_publication):
        return CheckItem(item, ok=False, detail=why)
    key = ", ".join(part.name for part in shape.key)
    about = "an unknown number of" if table.rows is None else f"about {table.rows}"
    left = _left_out(table)
    return CheckItem(item, ok=True, detail=f"{about} rows, key ({key}), {len(shape.carried)} columns{left}")


def _left_out(table: ExternalTable) -> str:
    names = ", ".join(one.name for one in table.columns if one.generated)
    return f"; generated ones are left out: {names}" if names else ""


def _cost(facts: ServerFacts) -> CheckItem:
    """What decoding will cost cannot be wrong: it is there to be known beforehand."""
    detail = (
        "every epoch decodes the log in the external database: a transaction is held there whole until it is decoded, "
        "in memory up to logical_decoding_work_mem and on disk beyond; the slot keeps the log until then"
    )
    if facts.spilled is not None:
        spilled, transactions = facts.spilled
        detail += f". The slot that spilled most so far wrote {spilled} bytes of {transactions} transactions to disk"
    return CheckItem("decoding", ok=True, detail=detail)


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
