"""Run ALTER TABLE .. RELOAD: read a followed table again over its stored rows, so that its views and indexes stay.

The external table is examined as for CREATE TABLE .. FROM, with the columns and the key that the followed table has.
The columns' identities and the table's place in the publication are taken anew. A barrier then carries the new scan to
the worker. From that epoch on the table is followed again, and its history is read from the beginning.

A table that was created with all columns gets those that were added to the external one. The stored table gets them
first, then the catalog, together with the reload. Until the reload begins the worker leaves them NULL. So every value
comes from a page or from the log after it, wherever the log first has the column.
"""

from dataclasses import dataclass

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.external import ExternalTable, Publication, check_published, follower
from service.domain.new_columns import NewColumns, columns_of, new_columns
from service.domain.source import source_options
from service.operations.commands.fan_out import check_room
from service.operations.jobs import altering
from service.operations.offload import parsed
from service.operations.retrying import retried
from service.operations.sources import registry
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry
from service.ports.source_records import FollowedTable, Source
from service.ports.sources import Address
from service.protocol.cdc import CdcColumn, CdcScan, Shape, Sweep
from service.protocol.ids import DATABASE_GRAPH, CommandId
from service.protocol.mutation import Reload
from service.protocol.plan import SourceScanPlan
from service.protocol.relation import Relation
from service.sql.statements.follow import CreateTableFrom


@dataclass(frozen=True, slots=True)
class _Outside:
    """The external table as it is now, with its publication."""

    table: ExternalTable
    publication: Publication
    scan: CdcScan

    def carried(self, relation: Relation) -> tuple[CdcColumn, ...]:
        """Return the external columns of a followed table. Raises Invalid if it cannot be followed with them."""
        stamp = self.scan.timestamp
        columns = tuple(one for one in relation.columns if one.name != stamp)
        return follower(self.table, self.publication, columns, relation.key, timestamp=stamp).carried


async def reload_table(world: World, entry: CatalogEntry, *, asked_by: Asker) -> CommandId:
    """Enqueue the reload of a followed table. Raises Conflict, NotFound, Invalid and Unavailable."""
    return await altering.patiently(world, entry.relation.name, lambda: begin(world, entry, asked_by=asked_by))


@retried
async def begin(world: World, entry: CatalogEntry, *, asked_by: Asker) -> CommandId:
    """Do the same, but do not wait. Raises InUse too, if a session keeps the table from getting new columns."""
    async with world.stores.begin() as tx:
        tables = [one for one in await tx.following.tables() if one.job == entry.job]
        plans = await tx.plans.of([entry.job])
        source = await tx.sources.get(tables[0].source) if tables else None
    scans = [part for plan in plans for part in plan.fragments if isinstance(part, SourceScanPlan)]
    if not tables or not scans or source is None:
        raise NotFound(f'table "{entry.relation.name}" does not exist', kind="relation")
    _check_idle(tables[0])
    fragment, before, now = scans[0].id, scans[0].cdc, world.clock.now()
    at = await registry.reached(world, source)
    outside = await _examined(world, at, source, before, entry.relation)
    readable_after, published = await world.external.replication.publish(
        at, source.publication, outside.table.schema, outside.table.name
    )
    new = {"total": outside.table.rows, "readable_after": readable_after, "published": published, "sweep": Sweep()}
    new |= {"reloaded_at": published.end, "broken": None, "nulled": 0, "all_columns": await _has_all(world, entry)}
    scan = before.model_copy(update=new)
    _check_order(before, scan, entry.relation)
    async with world.stores.begin(by=asked_by) as tx:
        relation, scan = await _widened(world, tx, entry, scan, outside, asked_by=asked_by)
        await tx.following.begin_reload(fragment)
        reload = Reload(fragments={fragment: scan}, relations={fragment: relation})
        await check_room(tx, reload.type, asked_by.actor)
        command = await tx.commands.add(DATABASE_GRAPH, reload, asked_by=asked_by.actor, now=now)
        facts = {"source": source.name, "table": entry.relation.name, "asked_by": asked_by.actor, "command": command}
        await tx.events.append("source.table_reloaded", facts, now=now)
    world.signals.notify()
    return command


async def _examined(world: World, at: Address, source: Source, scan: CdcScan, relation: Relation) -> _Outside:
    """Return the external table if it can be followed with the columns of the relation. Raises NotFound and Invalid."""
    table = await world.external.catalog.table(at, scan.external_schema, scan.external_table)
    if table is None:
        shown = f"{scan.external_schema}.{scan.external_table}"
        raise NotFound(f'table "{shown}" does not exist at {at.place}', kind="relation")
    publication = await world.external.catalog.publication(at, source.publication)
    if publication is None:
        raise Invalid(f'publication "{source.publication}" of source {source.name} is gone: make the source anew')
    slot = await world.external.servers.slot(at, source.slot)
    if slot is None or slot.why_lost is not None:
        raise Invalid(f"source {source.name} can be followed no more: its replication slot is gone; make it anew")
    outside = _Outside(table, publication, scan)
    try:
        outside.carried(relation)
    except Invalid as error:
        raise Invalid(f"{error.message}: ALTER the table there, or DROP and CREATE {relation.name} here") from None
    check_published(table, publication, may_add=source_options(source.options).create_publication)
    return outside


async def _has_all(world: World, entry: CatalogEntry) -> bool:
    """Return whether the table was created with `(*)`. The scans of older tables do not say so."""
    statement = await parsed(world.parsers, entry.definition)
    return isinstance(statement, CreateTableFrom) and statement.columns is None


async def _widened(
    world: World, tx: Transaction, entry: CatalogEntry, scan: CdcScan, outside: _Outside, *, asked_by: Asker
) -> tuple[Relation, CdcScan]:
    """Lock the table, add the new columns that it takes up, and return it with its new scan.

    Raises InUse, Invalid, Conflict and NotFound.
    """
    await tx.catalog.hold([entry.relation.id])
    held = await tx.catalog.get(entry.relation.id)
    if held is None:
        raise NotFound(f'table "{entry.relation.name}" does not exist', kind="relation")
    relation = held.relation
    if relation.columns != entry.relation.columns:
        raise Conflict(f'table "{relation.name}" has just got a column: repeat the reload')
    found = new_columns(scan, relation)
    why_none = await why_kept_back(world, tx, relation, found)
    columns = columns_of(outside.table, found.wanted if why_none is None else ())
    carried = outside.carried(relation.model_copy(update={"columns": (*relation.columns, *columns)}))
    scan = scan.model_copy(update={"columns": carried, "note": found.note(why_none)})
    return await altering.widened(world, tx, relation, columns, None, asked_by=asked_by), scan


async def why_kept_back(world: World, tx: Transaction, relation: Relation, found: NewColumns) -> str | None:
    """Return why a table can get no new columns at present, None where it can."""
    view = await altering.star_view(world, tx, relation) if found.wanted else None
    return None if view is None else f'view "{view}" selects *: name its columns, or DROP it'


def _check_idle(table: FollowedTable) -> None:
    """Raise Conflict if the history is being read, because that already reads the table as it is now."""
    if table.broken is None and not table.finished:
        raise Conflict(f'the history of "{table.name}" is being read: a reload begins after it')


def _check_order(before: CdcScan, now: CdcScan, relation: Relation) -> None:
    """Raise Invalid if the splits, which are ranges of a key column, do not have their order any more."""
    if len(now.splits) == 1 or _collation(before) == _collation(now):
        return
    raise Invalid(
        f'the key column "{now.split_column}" of "{relation.name}" has another collation now, and the table is read in '
        "several parts of its order: DROP and CREATE the table"
    )


def _collation(scan: CdcScan) -> str | None:
    shape: Shape | None = None if scan.published is None else scan.published.shape
    column = None if shape is None else shape.named(scan.split_column)
    return None if column is None else column.collation
