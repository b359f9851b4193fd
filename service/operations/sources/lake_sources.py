"""Create sources that are places of many tables in a lake, and find the table that CREATE TABLE .. FROM one means."""

from functools import partial

from service.domain.connectors import CONNECTOR, checked_in_place
from service.domain.errors import Invalid
from service.domain.lake_places import below
from service.operations.asking import looking
from service.operations.naming import or_there
from service.operations.retrying import retried
from service.operations.sources import registry
from service.operations.sources.lake import LOOK_WAIT
from service.operations.sources.places import check_place
from service.operations.sources.secrets import check_secrets
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.source_records import LakeSource, NewLakeSource
from service.protocol.delta import location_of
from service.protocol.ids import RequestId
from service.protocol.request import CheckPlace
from service.sql.statements.follow import CreateTableFrom
from service.sql.statements.lake import VNODE_COUNT, CreateLakeSource, CreateLakeTable, check_keyed
from service.sql.statements.target import Target


async def create(world: World, statement: CreateLakeSource, *, asked_by: Asker) -> tuple[str, ...]:
    """Create a source and return notices. Raises Invalid, NotFound with a position, Conflict, Unavailable."""
    target = statement.target
    connector = checked_in_place(target.options, target.secrets)
    there = partial(registry.there_already, world, statement.name, if_not_exists=statement.if_not_exists)
    if (notices := await there()) is not None:
        return notices
    await check_secrets(world, target)
    check_place(world, connector)
    async with looking(world, asked_by) as turn:
        roots = world.external.lake_roots.roots
        await turn.ask(CheckPlace(id=RequestId(0), connector=connector, roots=roots), limit=LOOK_WAIT)
    new = NewLakeSource(statement.name, statement.text, connector)
    return await or_there(_add(world, new, asked_by=asked_by), there)


@retried
async def _add(world: Context, new: NewLakeSource, *, asked_by: Asker) -> tuple[str, ...]:
    async with world.stores.begin(by=asked_by) as tx:
        source = await tx.lakes.add(new)
        facts = {"source": source, "name": new.name, "asked_by": asked_by.actor}
        await tx.events.append("source.created", facts, now=world.clock.now())
    return ()


async def table_of(world: Context, statement: CreateTableFrom) -> CreateLakeTable | None:
    """Return the table that a statement means, or None if its source is no place in a lake.

    Raises Invalid with a position.
    """
    async with world.stores.begin() as tx:
        source = await tx.lakes.named(statement.source)
    if source is None:
        return None
    try:
        return _table(source, statement)
    except Invalid as error:
        raise Invalid(error.message, position=statement.table_position) from None


def _table(source: LakeSource, statement: CreateTableFrom) -> CreateLakeTable:
    check_keyed(statement.key)
    if statement.target is not None:
        raise Invalid(f"USING is for tables that follow an external database: the rows are in {source.name} already")
    wrong = sorted(statement.given - {VNODE_COUNT})
    if statement.timestamp is not None or wrong:
        what = "INCLUDE timestamp" if statement.timestamp is not None else f'option "{wrong[0]}"'
        raise Invalid(f"{what} is for tables that follow an external database: {source.name} is a place of files")
    options = dict(source.connector.options)
    options["location"] = below(location_of(options), statement.external)
    options[CONNECTOR] = source.connector.name
    return CreateLakeTable(
        statement.name,
        statement.columns,
        statement.key,
        Target(options, source.connector.secrets),
        statement.if_not_exists,
        statement.vnode_count,
        statement.table_position,
        source=source.id,
    )
