"""Add columns to a stored table: one of a statement to a table that users fill, or those of an external table.

The state store gets the column first, then the catalog. If the service dies in between, users see a column that the
catalog lacks, and the same statement continues. Jobs that read the table do not notice: they name what they read.
Statements that users have sent before run with the columns that the table has then.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from service.domain.cutting import ALTERED_BYTES_MAX
from service.domain.errors import Conflict, InUse, Invalid, NotFound
from service.operations.naming import as_named
from service.operations.offload import parsed
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry, LogicalView
from service.protocol.columns import Column
from service.protocol.plan import DmlPlan
from service.protocol.relation import Relation, RelationKind
from service.sql.statements.logical_views import CreateView
from service.sql.statements.tables import AddColumn

T = TypeVar("T")

IN_USE_WAIT: Final = timedelta(seconds=30)
"""How long a statement waits for sessions that use the table."""


async def add_column(world: World, statement: AddColumn, text: str, *, asked_by: Asker) -> tuple[str, ...]:
    """Add the column and return notices. Raises NotFound, Invalid, and Conflict if the table stays in use."""
    return await patiently(world, statement.name, lambda: _added(world, statement, text, asked_by=asked_by))


async def patiently(world: Context, table: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `attempt`, tried again while sessions use the table. Raises Conflict if they go on."""
    users = ""

    async def look() -> tuple[T] | None:
        nonlocal users
        try:
            return (await attempt(),)
        except InUse as error:
            users = error.message
            return None

    found = await until(world, look, limit=IN_USE_WAIT)
    if found is None:
        raise Conflict(f'table "{table}" is in use by {users}')
    return found[0]


async def widened(
    world: World, tx: Transaction, relation: Relation, columns: Sequence[Column], text: str | None, *, asked_by: Asker
) -> Relation:
    """Add columns to a table whose job is locked, and return it. Raises InUse, Invalid and Conflict."""
    for column in columns:
        relation = relation.model_copy(update={"columns": (*relation.columns, column)})
        await world.state_store.tables.add_column(relation)
        await tx.catalog.add_column(relation, text)
        facts = {"name": relation.name, "column": column.name, "asked_by": asked_by.actor}
        await tx.events.append("relation.altered", facts, now=world.clock.now())
    return relation


async def star_view(world: World, tx: Transaction, relation: Relation) -> str | None:
    """Return a logical view that names the table's columns by a star: views of that view would have a new column.

    Whether it does is stored, because the table is locked here: texts of strangers may take minutes to parse.
    """
    for view in await tx.views.reading(relation.id):
        if await _selects_all(world, tx, view):
            return view.name
    return None


async def _selects_all(world: World, tx: Transaction, view: LogicalView) -> bool:
    if view.selects_all is not None:
        return view.selects_all
    whole = await tx.views.named(view.name)
    assert whole is not None, view
    statement = await parsed(world.parsers, whole.definition)
    assert isinstance(statement, CreateView), view
    return statement.selects_all


@retried
async def _added(world: World, statement: AddColumn, text: str, *, asked_by: Asker) -> tuple[str, ...]:
    name, column = statement.name, statement.column
    async with world.stores.begin(by=asked_by) as tx:
        relation = await _held(tx, name, text)
        if any(one.name == column.name for one in relation.columns):
            if statement.if_not_exists:
                return (f'column "{column.name}" of relation "{name}" already exists, skipping',)
            raise Invalid(f'column "{column.name}" of relation "{name}" already exists')
        if (view := await star_view(world, tx, relation)) is not None:
            message = f'view "{view}" selects *, and would not show the column: name its columns, or DROP it first'
            raise Invalid(message)
        await widened(world, tx, relation, [column], text, asked_by=asked_by)
    return ()


async def _held(tx: Transaction, name: str, text: str) -> Relation:
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
    if len(found.definition.encode()) + len(text.encode()) > ALTERED_BYTES_MAX:
        message = f'the statements that made and altered "{name}" have more than {ALTERED_BYTES_MAX} bytes together'
        raise Invalid(f"{message}: DROP it, and CREATE it with all its columns")
    return found.relation


async def _check_filled(tx: Transaction, entry: CatalogEntry) -> None:
    (plan,) = await tx.plans.outlines([entry.job])
    if not any(isinstance(one, DmlPlan) for one in plan.fragments):
        whose = "follows a table of a source" if entry.follows else "is filled by its connector"
        message = f'cannot add a column to "{entry.relation.name}", which {whose}: CREATE another table with the column'
        raise Invalid(message)
