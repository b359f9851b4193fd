"""Run CREATE TABLE .. FROM: create a followed table for an external table.

The external table is first added to the publication. A separate transaction then reads the transaction id from which
pages can be read. Only in this order does every transaction whose changes the log may lack have an earlier id. The
splits are planned once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from service.domain.adaptive import AUTO
from service.domain.connectors import checked_sink
from service.domain.errors import Invalid, MetaError, NotFound
from service.domain.external import ExternalTable, Follower, check_published, follower
from service.domain.parallelism import asked_vnodes, blocks
from service.domain.source import source_options
from service.domain.splits import WHOLE, even_splits, sampled_splits, wanted_splits
from service.operations.commands.limits import asked_limit, first_limit
from service.operations.jobs import lifecycle
from service.operations.leaving import Gone
from service.operations.naming import table_there
from service.operations.retrying import retried
from service.operations.sources import registry
from service.operations.sources.claiming import claimed
from service.operations.sources.places import check_place
from service.operations.sources.registry import ABANDONED
from service.operations.sources.secrets import check_secrets
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.records import NewJob, NewSourceScan
from service.ports.source_records import Source
from service.ports.sources import Address
from service.protocol.cdc import CdcScan, CdcSource, Split
from service.protocol.columns import TypeName
from service.protocol.connector import Connector
from service.protocol.ids import RelationId
from service.protocol.relation import VNODE_COUNT_DEFAULT, Relation, RelationKind
from service.sql.statements.follow import CreateTableFrom
from service.sql.statements.tables import UNBOUND
from service.sql.statements.target import Target

_WHOLE_NUMBERS: Final = (TypeName.SMALLINT, TypeName.INTEGER, TypeName.BIGINT)
_OTHERS_KEY: Final = (
    "the key of a table that follows another one is that of the other: leave PRIMARY KEY out, or name columns"
)


@dataclass(frozen=True, slots=True)
class _Outside:
    """The results of the checks in the external database."""

    at: Address
    source: Source
    table: ExternalTable
    shape: Follower
    expected: bool
    """The external table is published for this statement, so it leaves the publication with the followed table."""


async def create_table(
    world: World,
    statement: CreateTableFrom,
    text: str,
    session: Mapping[str, str],
    *,
    asked_by: Asker,
    gone: Gone | None = None,
) -> tuple[str, ...]:
    """Create a followed table, wait until it is readable, and return notices.

    Raises Invalid with a position, NotFound, Conflict, Unavailable.
    """
    # Before any change in the external database.
    job = await table_there(world, statement.name, if_not_exists=statement.if_not_exists)
    if job is None:
        outside = await _looked(world, statement)
        asked = await _asked(world, statement, outside, text, session, asked_by=asked_by)
        if not asked.existed:
            await lifecycle.created(world, asked.job, gone=gone)
            return ()
        job = asked.job
    await lifecycle.finished(world, job, gone=gone)
    return (f'{RelationKind.TABLE} "{statement.name}" already exists, skipping',)


async def _looked(world: World, statement: CreateTableFrom) -> _Outside:
    source = await registry.existing(world, statement.source, statement.source_position)
    if statement.columns is None and statement.key:
        raise Invalid(_OTHERS_KEY, position=statement.table_position)
    at, options = await registry.reached(world, source), source_options(source.options)
    schema = statement.external_schema or options.schema
    table = await world.external.catalog.table(at, schema, statement.external_table)
    if table is None:
        message = f'table "{schema}.{statement.external_table}" does not exist at {at.place}'
        raise NotFound(message, kind="relation", position=statement.table_position)
    publication = await world.external.catalog.publication(at, source.publication)
    if publication is None:
        raise Invalid(f'publication "{source.publication}" of source {source.name} is gone: make the source anew')
    slot = await world.external.servers.slot(at, source.slot)
    if slot is None or slot.why_lost is not None:
        why = f'replication slot "{source.slot}" is gone' if slot is None else slot.why_lost
        raise Invalid(f"source {source.name} can be followed no more: {why}; make it anew")
    try:
        shape = follower(table, publication, statement.columns, statement.key, timestamp=statement.timestamp)
        check_published(table, publication, may_add=options.create_publication)
    except Invalid as error:
        raise Invalid(error.message, position=statement.table_position) from None
    async with world.stores.begin() as tx:
        beside = [one for one in await tx.following.tables(source.id) if one.external == (schema, table.name)]
    # A table that was already published belongs to the publication's owner, unless another followed table has added it.
    theirs = (schema, table.name) in publication.tables and not any(one.added for one in beside)
    return _Outside(at, source, table, shape, expected=source.owns_publication or not theirs)


async def _asked(
    world: World,
    statement: CreateTableFrom,
    outside: _Outside,
    text: str,
    session: Mapping[str, str],
    *,
    asked_by: Asker,
) -> lifecycle.Asked:
    """Publish the external table and record the job. If either fails, the publication is reverted."""
    splits, column = await _splits(world, statement, outside)
    await _expect(world, outside, ABANDONED)
    try:
        scan = await _published(world, statement, outside, splits, column)
        new = await _new(world, statement, outside, scan, text, session, asked_by=asked_by)
        asked = await lifecycle.create(world, new, if_not_exists=statement.if_not_exists, asked_by=asked_by)
    except MetaError:
        await _expect(world, outside, timedelta(0))
        raise
    if asked.existed:
        await _expect(world, outside, timedelta(0))
    return asked


async def _splits(world: World, statement: CreateTableFrom, outside: _Outside) -> tuple[tuple[Split, ...], str]:
    """Return the splits of a table and the external column of their ranges."""
    key, table, index = outside.shape.key, outside.table, statement.split_key_index
    if index >= len(key):
        message = f"backfill.split_pk_column_index is {index}: the key has {len(key)} columns, the first of them is 0"
        raise Invalid(message, position=statement.table_position)
    name = key[index].name
    column = next(one for one in outside.shape.carried if one.name == name).external
    if statement.parallelism == 0 or not statement.snapshot:
        return WHOLE, column
    wanted = wanted_splits(table.rows, rows_per_split=statement.rows_per_split, parallelism=statement.parallelism)
    kind = next(one.type for one in outside.shape.columns if one.name == name)
    # An index gives the extent only of the first column of the key.
    if statement.even_splits and index == 0 and kind.name in _WHOLE_NUMBERS:
        extent = await world.external.catalog.extent(outside.at, table, column)
        return (WHOLE if extent is None else even_splits(*extent, wanted)), column
    return sampled_splits(await world.external.catalog.sample(outside.at, table, column), wanted), column


@retried
async def _expect(world: Context, outside: _Outside, within: timedelta) -> None:
    """Schedule the removal of the external table from the publication. It is skipped if it is followed by then."""
    if not outside.expected:
        return
    now, table = world.clock.now(), outside.table
    async with world.stores.begin() as tx:
        await tx.source_cleanups.expect(outside.source.id, table.schema, table.name, now=now, due=now + within)


async def _published(
    world: World, statement: CreateTableFrom, outside: _Outside, splits: tuple[Split, ...], column: str
) -> CdcScan:
    source, table = outside.source, outside.table
    readable_after, published = await world.external.replication.publish(
        outside.at, source.publication, table.schema, table.name
    )
    return CdcScan(
        # The offset is only initial: every read of the plan replaces it with the source's present offset.
        source=CdcSource(
            id=source.id,
            name=source.name,
            slot=source.slot,
            publication=source.publication,
            offset=source.standing.offset or "0/0",
        ),
        external_schema=table.schema,
        external_table=table.name,
        columns=outside.shape.carried,
        split_column=column,
        splits=splits,
        readable_after=readable_after,
        total=table.rows if statement.snapshot else 0,
        batch_rows=statement.batch_rows,
        timestamp=statement.timestamp,
        published=published,
        unkeepable=statement.unkeepable,
        # Columns of a table in a lake stay as they are.
        all_columns=statement.columns is None and statement.target is None,
    )


async def _lake(world: World, target: Target, relation: Relation, *, asked_by: Asker) -> Connector:
    """Return the Delta table for the rows of a relation, which is ready. Raises Invalid, NotFound, Unavailable."""
    connector = checked_sink(target.options, target.secrets, relation.delivered, [part.name for part in relation.key])
    await check_secrets(world, target)
    check_place(world, connector)
    return await claimed(world, connector, relation, asked_by=asked_by)


async def _new(
    world: World,
    statement: CreateTableFrom,
    outside: _Outside,
    scan: CdcScan,
    text: str,
    session: Mapping[str, str],
    *,
    asked_by: Asker,
) -> NewJob:
    relation = Relation(
        id=UNBOUND,
        name=statement.name,
        kind=RelationKind.TABLE,
        columns=outside.shape.columns,
        key=outside.shape.key,
        vnode_count=asked_vnodes(statement.vnode_count, session) or VNODE_COUNT_DEFAULT,
    )
    lake = None if statement.target is None else await _lake(world, statement.target, relation, asked_by=asked_by)
    limit = asked_limit(statement.backfill_rate_limit, session, given=statement.limited)
    async with world.stores.begin() as tx:
        first = await first_limit(tx)
    actors = min(max(statement.parallelism, 1), len(scan.splits))
    fragment = NewSourceScan(
        actors=blocks(len(scan.splits), actors),
        rate_limit=first if limit == AUTO else limit,
        auto=limit == AUTO,
        cdc=scan,
        added=outside.expected,
        completed=not statement.snapshot,
        lake=lake,
    )
    return NewJob(relation, text, background=False, fragments=(fragment,), views=(RelationId(outside.source.id),))
