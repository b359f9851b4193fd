"""The leader's chores outside: what is left of dropped sources and tables is removed, however long their server is away
(I9); the slot of a source that nothing follows is kept from holding the log; what slots hold is measured.

What decides and what is done outside are one transaction of the meta store, in which the thing is held: nobody follows
a table, or a source, while it is being given up.
"""

from datetime import timedelta
from typing import Final

from service.domain.errors import MetaError, Refused, Unavailable
from service.operations.sources import address
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.source_records import Leftover, Source, SourceCleanup
from service.ports.sources import Address
from service.protocol.ids import Term
from service.telemetry.log import logger

log = logger("sources")

RETRY_FIRST: Final = timedelta(seconds=1)
RETRY_MOST: Final = timedelta(minutes=1)
MEASURED_EVERY: Final = timedelta(seconds=5)


async def clean_up(world: World, *, term: Term) -> int:
    """Remove what is due outside; return how much was removed. Raises Deposed, Unavailable of the meta store."""
    async with world.stores.begin(term) as tx:
        due = await tx.source_cleanups.due(world.clock.now())
    done = 0
    for one in due:
        done += await _cleaned(world, one, term=term)
    if done:
        world.signals.notify()
    return done


async def watch(world: World, *, term: Term) -> None:
    """Look at the sources that no worker reports on: skip what nothing follows, and measure what the slot holds."""
    async with world.stores.begin(term) as tx:
        sources = [one for one in await tx.sources.all() if one.shown]
    for source in sources:
        reported = source.standing.reported_at
        if reported is None or world.clock.now() - reported >= MEASURED_EVERY:
            await _watched(world, source, term=term)


async def _cleaned(world: World, wanted: SourceCleanup, *, term: Term) -> bool:
    async with world.stores.begin(term) as tx:
        cleanup = await tx.source_cleanups.hold(wanted.id, world.clock.now())
        source = None if cleanup is None else await tx.sources.get(cleanup.source)
        if cleanup is None or source is None:
            return False
        if not (source.shown or source.dropped):
            # Whoever was making it never came back.
            await tx.sources.remove(source.id, now=world.clock.now())
        followed = await _is_followed(tx, cleanup)
        at = await _address(tx, source)
        try:
            if not followed:
                await _remove(world, at, source, cleanup)
        except (Refused, Unavailable) as error:
            await _failed(world, tx, source, cleanup, error)
            return False
        await tx.source_cleanups.done(cleanup.id)
        facts = {"source": source.name, "what": str(cleanup.what), "table": _table(cleanup)}
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
            await world.replication.drop_slot(at, source.slot)
        case Leftover.PUBLICATION:
            await world.replication.drop_publication(at, source.publication)
        case Leftover.TABLE:
            assert cleanup.external_schema is not None
            assert cleanup.external_table is not None
            await world.replication.unpublish(at, source.publication, cleanup.external_schema, cleanup.external_table)


async def _failed(world: World, tx: Transaction, source: Source, cleanup: SourceCleanup, error: MetaError) -> None:
    wait = min(RETRY_FIRST * 2 ** min(cleanup.attempts, 10), RETRY_MOST)
    await tx.source_cleanups.failed(cleanup.id, error.message, due=world.clock.now() + wait)
    facts = {"source": source.name, "what": str(cleanup.what), "table": _table(cleanup), "error": error.message}
    if cleanup.error != error.message:
        await tx.events.append("source.not_cleaned", facts, now=world.clock.now())
    log.warning("source.not_cleaned", **facts)


async def _watched(world: World, source: Source, *, term: Term) -> None:
    async with world.stores.begin(term) as tx:
        idle = await tx.following.idle(source.id)
        at = await _address(tx, source)
        try:
            if idle:
                offset, readable_after = await world.replication.skip(at, source.slot)
                await tx.following.skipped(source.id, offset, readable_after)
            facts = await world.external.slot(at, source.slot)
        except (Refused, Unavailable) as error:
            log.warning("source.not_measured", source=source.name, error=error.message)
            return
        lag, retained = (None, None) if facts is None else (facts.lag_bytes, facts.retained_bytes)
        await tx.following.measured(source.id, lag_bytes=lag, retained_bytes=retained, now=world.clock.now())


async def _address(tx: Transaction, source: Source) -> Address:
    return address(source, await tx.sources.password(source.id))


def _table(cleanup: SourceCleanup) -> str | None:
    return None if cleanup.external_table is None else f"{cleanup.external_schema}.{cleanup.external_table}"
