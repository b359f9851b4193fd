"""Run CREATE TABLE of a table that is read in place: a worker looks at it, and the first epoch has its version."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from service.domain.connectors import checked_in_place
from service.domain.errors import Invalid
from service.domain.parallelism import asked_vnodes
from service.operations.asking import looking
from service.operations.jobs import lifecycle
from service.operations.leaving import Gone
from service.operations.naming import table_there
from service.operations.sources.places import check_place
from service.operations.sources.secrets import check_secrets
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.records import NewJob, NewSplitScan
from service.protocol import file_source
from service.protocol.columns import Column
from service.protocol.connector import Connector
from service.protocol.delta_source import FIRST, ROWS, DeltaColumns, chosen_columns, delta_columns
from service.protocol.file_source import folder_columns
from service.protocol.ids import RequestId
from service.protocol.relation import VNODE_COUNT_DEFAULT, Relation, RelationKind
from service.protocol.request import DescribeTable, TableDescribed
from service.sql.statements.lake import CreateLakeTable
from service.sql.statements.tables import UNBOUND

LOOK_WAIT: Final = timedelta(minutes=1)


async def create_lake_table(
    world: World,
    statement: CreateLakeTable,
    text: str,
    session: Mapping[str, str],
    *,
    asked_by: Asker,
    gone: Gone | None = None,
) -> tuple[str, ...]:
    """Create a table that is read in place, wait until views can read it, and return notices.

    Raises Invalid with a position, NotFound, Conflict, Unavailable.
    """
    job = await table_there(world, statement.name, if_not_exists=statement.if_not_exists)
    if job is None:
        new = await _planned(world, statement, text, session, asked_by=asked_by, gone=gone)
        made = await lifecycle.create(world, new, if_not_exists=statement.if_not_exists, asked_by=asked_by)
        if not made.existed:
            await lifecycle.created(world, made.job, gone=gone)
            return ()
        job = made.job
    await lifecycle.finished(world, job, gone=gone)
    return (f'{RelationKind.TABLE} "{statement.name}" already exists, skipping',)


async def _planned(
    world: World,
    statement: CreateLakeTable,
    text: str,
    session: Mapping[str, str],
    *,
    asked_by: Asker,
    gone: Gone | None,
) -> NewJob:
    """Return the job of the table. Raises Invalid and NotFound, with positions, and Unavailable."""
    target = statement.target
    connector = checked_in_place(target.options, target.secrets)
    await check_secrets(world, target)
    check_place(world, connector)
    async with looking(world, asked_by, gone) as turn:
        roots = world.external.lake_roots.roots
        found = await turn.ask(DescribeTable(id=RequestId(0), connector=connector, roots=roots), limit=LOOK_WAIT)
    assert isinstance(found, TableDescribed), found
    key = [part.name for part in statement.key]
    described = folder_columns if connector.name == file_source.NAME else _described
    try:
        columns = chosen_columns(described(found.table_schema, statement.columns), statement.columns, key)
    except ValueError as error:
        raise Invalid(str(error), position=statement.position) from None
    relation = Relation(
        id=UNBOUND,
        name=statement.name,
        kind=RelationKind.TABLE,
        columns=columns,
        key=statement.key,
        vnode_count=asked_vnodes(statement.vnode_count, session) or VNODE_COUNT_DEFAULT,
    )
    options = {**connector.options, FIRST: str(found.version), ROWS: str(found.rows)}
    begun = Connector(name=connector.name, options=options, secrets=connector.secrets)
    # One actor looks at the versions of the table. It is its only split.
    scan = NewSplitScan(actors=(((0, 0),),), connector=begun)
    sources = () if statement.source is None else (statement.source,)
    return NewJob(relation, text, background=False, fragments=(scan,), views=sources)


def _described(schema: str, _: Sequence[Column] | None) -> DeltaColumns:
    return delta_columns(schema)
