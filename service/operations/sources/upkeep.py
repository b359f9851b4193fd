"""Run the leader's chores in external databases.

- Remove what is left of dropped sources and tables, however long their server is unavailable (I9).
- Advance the slots of sources without followed tables, so that the external database does not retain the log for them.
- Measure how much log slots retain.

The decision and the external change happen in one transaction of the meta store, which locks the clean-up or the
source. Therefore no followed table can begin to use the object meanwhile.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from service.domain.backoff import Backoff
from service.domain.errors import MetaError, Refused, Unavailable
from service.domain.source import Retention, retention, source_options
from service.operations.retrying import retried
from service.operations.sources.registry import address
from service.operations.world import Context, World
from service.ports.meta_store import Transaction
from service.ports.source_records import Leftover, Measured, Source, SourceCleanup
from service.ports.sources import Address
from service.protocol.ids import RelationId, SourceId, Term
from service.telemetry.log import logger

log = logger("sources")

_REBUILD: Final = (
    "its slot held more log than wal.retained.max.bytes and was dropped: DROP the table and the source, and make both "
    "anew"
)
RETRIES: Final = Backoff(timedelta(seconds=1), timedelta(minutes=1))
SOURCES_AT_ONCE: Final = 4
"""The number of concurrent clean-ups. Each occupies a meta-store connection until its server answers or the call times
out.
"""
MEASURED_EVERY: Final = timedelta(seconds=5)


async def there_are_some(world: Context) -> bool:
    """Whether there is a source or a pending clean-up."""
    async with world.stores.begin() as tx:
        return bool(await tx.sources.all() or await tx.source_cleanups.all())


@retried
async def clean_up(world: World, *, term: Term) -> int:
    """Run the due clean-ups, at `SOURCES_AT_ONCE` sources concurrently, and return how many succeeded.

    Raises Deposed, and Unavailable if the meta store is unavailable.
    """
    async with world.stores.begin(term) as tx:
        due = await tx.source_cleanups.due(world.clock.now())
        for source in sorted({one.source for one in due}):
            if await _abandoned(tx, source):
                # The service that created the source died before it finished.
                await tx.sources.remove(source, now=world.clock.now())
    turns = asyncio.Semaphore(SOURCES_AT_ONCE)

    async def at_one(source: SourceId) -> int:
        async with turns:
            return await _cleaned_at(world, [one for one in due if one.source == source], term=term)

    found = await asyncio.gather(*map(at_one, dict.fromkeys(one.source for one in due)), return_exceptions=True)
    done = 0
    for one in found:
        if isinstance(one, BaseException):
            raise one
        done += one
    if done:
        world.signals.notify()
    return done


async def _abandoned(tx: Transaction, source: SourceId) -> bool:
    """Whether a source was never created. It is locked then, so that its CREATE does not end meanwhile."""
    for held in (False, True):
        found = await tx.sources.get(source)
        if found is None or found.shown or found.dropped:
            return False
        if not held:
            await tx.catalog.hold([RelationId(source)])
    return True


async def _cleaned_at(world: World, due: Sequence[SourceCleanup], *, term: Term) -> int:
    """Run the due clean-ups of one source. Once its server does not answer, the others fail without an attempt."""
    done, away = 0, None
    for one in due:
        removed = await _cleaned(world, one, away, term=term)
        if isinstance(removed, Unavailable):
            away = removed
        else:
            done += removed
    return done


@retried
async def watch(world: World, *, term: Term) -> None:
    """Measure the slots of sources without recent reports, and advance those without followed tables.

    Then apply the retention policy to slots that retain too much log.
    """
    async with world.stores.begin(term) as tx:
        sources = [one for one in await tx.sources.all() if one.shown]
        if not sources:
            return
        followed = await tx.following.followed()
    for source in sources:
        reported = source.standing.reported_at
        gone = source.standing.retention is Retention.SLOT_DROPPED
        if not gone and (reported is None or world.clock.now() - reported >= MEASURED_EVERY):
            await (_measured if source.id in followed else skip_idle)(world, source, term=term)
    async with world.stores.begin(term) as tx:
        # Read again, because the measurements above and the workers' reports may have changed it.
        due = [(one, now) for one in await tx.sources.all() if (now := _retention(one)) != one.standing.retention]
    for source, now in due:
        await _retained(world, source, now, term=term)


@retried
async def _cleaned(world: World, wanted: SourceCleanup, away: Unavailable | None, *, term: Term) -> bool | Unavailable:
    """Run a clean-up. Return whether it succeeded, or the error if the server does not answer.

    `away` is such an error from an earlier clean-up of the source.
    """
    async with world.stores.begin(term) as tx:
        cleanup = await tx.source_cleanups.hold(wanted.id, world.clock.now())
        source = None if cleanup is None else await tx.sources.get(cleanup.source)
        if cleanup is None or source is None:
            return False
        followed = await _is_followed(tx, cleanup)
        at = await address(world, tx, source)
        try:
            if not followed and away is not None:
                raise away
            if not followed:
                await _remove(world, at, source, cleanup)
        except (Refused, Unavailable) as error:
            await _failed(world, tx, source, cleanup, error)
            return error if isinstance(error, Unavailable) else False
        await tx.source_cleanups.done(cleanup.id)
        facts = {"source": source.name, "what": str(cleanup.what), "table": cleanup.table}
        await tx.events.append("source.cleaned", facts, now=world.clock.now())
    return True


async def _is_followed(tx: Transaction, cleanup: SourceCleanup) -> bool:
    named = (cleanup.external_schema, cleanup.external_table)
    return cleanup.what is Leftover.TABLE and any(
        one.external == named for one in await tx.following.tables(cleanup.source)
    )


async def _remove(world: World, at: Address, source: Source, cleanup: SourceCleanup) -> None:
    match cleanup.what:
        case Leftover.SLOT:
            await world.external.replication.drop_slot(at, source.slot)
        case Leftover.PUBLICATION:
            await world.external.replication.drop_publication(at, source.publication)
        case Leftover.TABLE:
            assert cleanup.external_schema is not None
            assert cleanup.external_table is not None
            await world.external.replication.unpublish(
                at, source.publication, cleanup.external_schema, cleanup.external_table
            )


async def _failed(world: Context, tx: Transaction, source: Source, cleanup: SourceCleanup, error: MetaError) -> None:
    due = world.clock.now() + RETRIES.after(cleanup.attempts + 1)
    await tx.source_cleanups.failed(cleanup.id, error.message, due=due)
    facts = {"source": source.name, "what": str(cleanup.what), "table": cleanup.table, "error": error.message}
    if cleanup.error != error.message:
        await tx.events.append("source.not_cleaned", facts, now=world.clock.now())
    log.warning("source.not_cleaned", **facts)


@retried
async def skip_idle(world: World, source: Source, *, term: Term) -> None:
    """Advance the slot of a source without followed tables as far as a short time allows, and measure it.

    The source is locked, so that no followed table is created for it meanwhile.
    """
    async with world.stores.begin(term) as tx:
        if not await tx.slots.idle(source.id):
            return
        at = await address(world, tx, source)
        try:
            offset, readable_after = await world.external.replication.skip(at, source.slot)
            measured = await _facts(world, at, source, followed=False)
        except (Refused, Unavailable) as error:
            measured = Measured(waiting=error.message)
        else:
            await tx.slots.skipped(source.id, offset, readable_after)
        await tx.slots.measured(source.id, measured, now=world.clock.now())


@retried
async def _measured(world: World, source: Source, *, term: Term) -> None:
    async with world.stores.begin(term) as tx:
        at = await address(world, tx, source)
    try:
        measured = await _facts(world, at, source, followed=True)
    except (Refused, Unavailable) as error:
        measured = Measured(waiting=error.message, followed=True)
        log.warning("source.not_measured", source=source.name, error=error.message)
    async with world.stores.begin(term) as tx:
        await tx.slots.measured(source.id, measured, now=world.clock.now())


async def _facts(world: World, at: Address, source: Source, *, followed: bool) -> Measured:
    facts = await world.external.servers.slot(at, source.slot)
    if facts is None:
        return Measured(waiting=f'replication slot "{source.slot}" is gone', followed=followed)
    return Measured(facts.lag_bytes, facts.retained_bytes, facts.why_lost, followed)


def _retention(source: Source) -> Retention | None:
    standing = source.standing
    return retention(source_options(source.options), standing.retained_bytes, before=standing.retention)


@retried
async def _retained(world: World, source: Source, now: Retention | None, *, term: Term) -> None:
    """Store a slot's retention state and record an event. Drop the slot if the user's policy requests it.

    If the slot is in use or its server is unavailable, a later tick drops it.
    """
    facts: dict[str, Any] = {"source": source.name, "retained_bytes": source.standing.retained_bytes, "retention": now}
    async with world.stores.begin(term) as tx:
        if now is Retention.SLOT_DROPPED:
            try:
                await world.external.replication.drop_slot(await address(world, tx, source), source.slot)
            except (Refused, Unavailable) as error:
                log.warning("source.slot_not_dropped", source=source.name, error=error.message)
                return
            facts["tables"] = list(await tx.following.broke(source.id, _REBUILD, now=world.clock.now()))
        await tx.slots.retained(source.id, now)
        await tx.events.append("source.retention", facts, now=world.clock.now())
    log.warning("source.retention", **facts)
