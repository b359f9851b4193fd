"""Find the relations that are not kept current: those with a fault, and all that read them, directly or through others.

These relations have a fault:

- a table that no longer follows its external table,
- a table whose source is unavailable, or whose storage if it is read in place,
- a table or a view that failed after its creation.

All of them stay readable with their last rows. Queries of them and of relations built on them get a notice.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import chain

from service.domain.errors import MetaError
from service.domain.job import JobState
from service.operations.status.models import Broken
from service.operations.world import Context
from service.ports.meta_store import Transaction
from service.protocol.ids import RelationId


async def broken_of(tx: Transaction) -> Mapping[RelationId, Broken]:
    """Return all relations that are not kept current."""
    own = await _own(tx)
    if not own:
        return {}
    entries = await tx.catalog.outlines()
    names = {entry.id: entry.name for entry in entries}
    readers: dict[RelationId, list[RelationId]] = defaultdict(list)
    for reader, reads in chain(((one.id, one.upstreams) for one in entries), (await tx.views.references()).items()):
        for read in reads:
            readers[read].append(reader)
    found = {relation: one for relation, one in own.items() if relation in names}
    frontier = list(found)
    # Breadth first, so that the nearest cause is named.
    for read in frontier:
        cause = found[read]
        inherited = cause
        if cause.because_of is None:
            reason = f'it reads "{names[read]}": {cause.reason}'
            inherited = Broken("stale", reason, cause.since, names[read])
        for reader in readers[read]:
            if reader not in found:
                found[reader] = inherited
                frontier.append(reader)
    return found


async def lapses_of(world: Context) -> Mapping[RelationId, Broken]:
    """Return all relations that are not kept current, logical views included."""
    async with world.stores.begin() as tx:
        return await broken_of(tx)


async def notices_of(tx: Transaction, names: Collection[str]) -> tuple[str, ...]:
    """Return the notices for a query that reads these relations."""
    found = await broken_of(tx) if names else {}
    if not found:
        return ()
    relations = {one.relation.name: one.relation.id for one in await tx.catalog.called(names)}
    relations |= {one.name: one.id for one in await tx.views.called(names)}
    told = ((name, found.get(relations[name])) for name in dict.fromkeys(names) if name in relations)
    return tuple(notice(name, one) for name, one in told if one is not None)


def notice(name: str, one: Broken) -> str:
    """Return the notice for a relation that is not kept current."""
    since = "" if one.since is None else f" since {one.since:%Y-%m-%d %H:%M:%S}Z"
    return f'"{name}" is {one.state}{since}: {one.reason}; its rows are as of then'


async def degraded_of(world: Context) -> dict[str, str]:
    """Return the state of the tables and materialized views that are not kept current, by name.

    The result is empty if the meta store cannot be read.
    """
    try:
        async with world.stores.begin() as tx:
            found = await broken_of(tx)
            entries = await tx.catalog.outlines() if found else ()
    except MetaError:
        return {}
    return {one.name: found[one.id].state for one in entries if one.id in found}


async def _own(tx: Transaction) -> Mapping[RelationId, Broken]:
    found: dict[RelationId, Broken] = {}
    tables = await tx.following.tables()
    waiting = {one.id: one.standing.waiting for one in await tx.sources.all()} if tables else {}
    for table in tables:
        if table.broken is not None:
            found[table.relation] = Broken("broken", table.broken, table.broken_since, None)
        elif held := table.waiting or waiting.get(table.source):
            found[table.relation] = Broken("stale", held, None, None)
    for one in await tx.lakes.away():
        found[one.relation] = Broken("stale", one.reason, one.since, None)
    # `kept` excludes jobs that failed before they were created: their names are free, and they stay failed for ever.
    for job in await tx.jobs.where({JobState.FAILED}, kept=True):
        found[job.relation] = Broken("failed", job.error or "it failed", job.state_since, None)
    return found
