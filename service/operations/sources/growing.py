"""Take up the columns that external tables get, for the tables that were created with all columns.

The worker reports each new shape of an external table, and goes on without the new columns. When the history is read,
the leader does what ALTER TABLE .. RELOAD does, which adds them. A column or table that cannot be taken up has a note
on show. Next: `service.operations.sources.reload`.
"""

from service.domain.errors import Refused, Unavailable
from service.domain.new_columns import new_columns
from service.operations.retrying import retried
from service.operations.sources import reload
from service.operations.world import World
from service.ports.audit import itself
from service.ports.source_records import FollowedTable
from service.protocol.ids import Term
from service.telemetry.log import logger

log = logger("sources")


@retried
async def grow(world: World, *, term: Term) -> None:
    """Reload each idle table with new columns, and note why others are not taken up. Raises Deposed and Unavailable."""
    async with world.stores.begin(term) as tx:
        tables = [one for one in await tx.following.lacking() if one.finished and one.broken is None]
    for table in tables:
        await _grow(world, table, term=term)


@retried
async def _grow(world: World, table: FollowedTable, *, term: Term) -> None:
    async with world.stores.begin(term) as tx:
        entry = await tx.catalog.get(table.relation)
        plans = await tx.plans.of([table.job])
        if entry is None or not entry.shown or not plans or plans[0].source_scan is None:
            return
        found = new_columns(plans[0].source_scan.cdc, entry.relation)
        why = await reload.why_kept_back(world, tx, entry.relation, found)
    if found.wanted and why is None:
        try:
            await reload.begin(world, entry, asked_by=itself("the service"))
        except (Refused, Unavailable) as error:
            log.warning("source.columns_not_added", table=table.name, error=error.message)
            why = error.message
        else:
            # The reload has the note too.
            return
    if (note := found.note(why)) != table.note:
        async with world.stores.begin(term) as tx:
            await tx.following.note(table.fragment, note)
