"""Add a column to a table that users fill.

The state store gets the column first, then the catalog. If the service dies in between, users see a column that the
catalog lacks, and the same statement continues. Jobs that read the table do not notice: they name what they read.
Statements that users have sent before run with the columns that the table has then.
"""

from datetime import timedelta
from typing import Final

from service.domain.errors import Conflict, InUse, Invalid, NotFound
from service.operations.naming import as_named
from service.operations.offload import parsed
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry
from service.protocol.plan import DmlPlan
from service.protocol.relation import Relation, RelationKind
from service.sql.statements.logical_views import CreateView, selects_all
from service.sql.statements.tables import AddColumn

IN_USE_WAIT: Final = timedelta(seconds=30)
"""How long a statement waits for sessions that use the table."""


async def add_column(world: World, statement: AddColumn, text: str, *, asked_by: Asker) -> tuple[str, ...]:
    """Add the column and return notices. Raises NotFound, Invalid, and Conflict if the table stays in use."""
    users = ""

    async def look() -> tuple[str, ...] | None:
        nonlocal users
        try:
            return await _added(world, statement, text, asked_by=asked_by)
        except InUse as error:
            users = error.message
            return None

    notices = await until(world, look, limit=IN_USE_WAIT)
    if notices is None:
        raise Conflict(f'table "{statement.name}" is in use by {users}')
    return notices


@retried
async def _added(world: World, statement: AddColumn, text: str, *, asked_by: Asker) -> tuple[str, ...]:
    name, column = statement.name, statement.column
    async with world.stores.begin(by=asked_by) as tx:
        relation = await _held(tx, name)
        if any(one.name == column.name for one in relation.columns):
            if statement.if_not_exists:
                return (f'column "{column.name}" of relation "{name}" already exists, skipping',)
            raise Invalid(f'column "{column.name}" of relation "{name}" already exists')
        await _check_views(world, tx, relation)
        wider = relation.model_copy(update={"columns": (*relation.columns, column)})
        await world.tables.add_column(wider)
        await tx.catalog.add_column(wider, text)
        facts = {"name": name, "column": column.name, "asked_by": asked_by.actor}
        await tx.events.append("relation.altered", facts, now=world.clock.now())
    return ()


async def _held(tx: Transaction, name: str) -> Relation:
    """Lock a table's job and return the table. Raises NotFound, Conflict, and Invalid if users do not fill it."""
    found = await tx.catalog.named(name)
    if found is not None:
        await tx.catalog.hold([found.relation.id])
        found = await tx.catalog.get(found.relation.id)
    if found is None:
        raise NotFound(f'table "{name}" does not exist', kind="relation")
    if found.relation.kind is not RelationKind.TABLE:
        raise Invalid(f'"{name}" is not a table; it is a {found.relation.kind}')
    if not found.shown:
        raise as_named(found).unreadable
    await _check_filled(tx, found)
    return found.relation


async def _check_filled(tx: Transaction, entry: CatalogEntry) -> None:
    (plan,) = await tx.plans.of([entry.job])
    if not any(isinstance(one, DmlPlan) for one in plan.fragments):
        whose = "follows a table of a source" if entry.follows else "is filled by its connector"
        message = f'cannot add a column to "{entry.relation.name}", which {whose}: CREATE another table with the column'
        raise Invalid(message)


async def _check_views(world: World, tx: Transaction, relation: Relation) -> None:
    """Raise Invalid if a logical view names its columns by a star: views of that view would have the new one."""
    for view in await tx.views.reading(relation.id):
        statement = await parsed(world.parsers, view.definition)
        assert isinstance(statement, CreateView), view
        if selects_all(statement):
            message = f'view "{view.name}" selects *, and would not show the column: name its columns, or DROP it first'
            raise Invalid(message)
