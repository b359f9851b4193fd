"""Run DROP, SHOW CREATE, DESCRIBE, and SHOW of relations."""

from typing import Final

from service.domain.errors import Invalid, NotFound
from service.domain.roles import Role
from service.operations.jobs import lifecycle
from service.operations.naming import existing, internal_tables, named, relation_names
from service.operations.sources import registry
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome, listed, tag
from service.operations.statements.targets import release, targets_of
from service.protocol.relation import RelationKind
from service.sql.statements.relations import Describe, Drop, ShowCreate, ShowInternalTables, ShowRelations

_DESCRIBED: Final = (("Name", "text"), ("Type", "text"), ("Is Hidden", "text"), ("Description", "text"))


def _role_of_drop(statement: Drop) -> Role:
    return Role.ADMIN if statement.kind is RelationKind.SOURCE else Role.OPERATOR


@handles(Drop, needs=_role_of_drop)
async def _drop(call: Call, statement: Drop) -> Outcome:
    world, kind, name, cascade = call.world, statement.kind, statement.name, statement.cascade
    try:
        targets = await targets_of(world, name, purge=statement.purge)
        if statement.purge and not targets and not await _free(call, name):
            raise Invalid(f"PURGE removes the files of a table in a lake that tidefill writes, and {name} has none")
        concerned = await lifecycle.drop(world, name, kind, cascade=cascade, asked_by=call.asked_by)
    except NotFound:
        # IF EXISTS is decided only here: a concurrent DROP may free the name after this one has found it taken.
        if not statement.if_exists or not await _free(call, name):
            raise
        return Outcome(tag("DROP", kind), notices=(f'{kind} "{name}" does not exist, skipping',))
    left = await release(world, targets, asked_by=call.asked_by)
    return Outcome(tag("DROP", kind), notices=(*await registry.left_behind(world, concerned), *left))


async def _free(call: Call, name: str) -> bool:
    async with call.world.stores.begin() as tx:
        return await named(tx, name) is None


@handles(ShowRelations, needs=Role.VIEWER)
async def _show(call: Call, statement: ShowRelations) -> Outcome:
    return listed(await relation_names(call.world, statement.kind))


@handles(ShowInternalTables, needs=Role.VIEWER)
async def _show_internal(call: Call, _: ShowInternalTables) -> Outcome:
    async with call.world.stores.begin() as tx:
        return listed(await internal_tables(tx))


@handles(ShowCreate, needs=Role.VIEWER)
async def _show_create(call: Call, statement: ShowCreate) -> Outcome:
    found = await existing(call.world, statement.name, statement.kind)
    columns = (("Name", "text"), ("Create Sql", "text"))
    return Outcome("SHOW", columns, ((f"public.{found.name}", found.definition),))


@handles(Describe, needs=Role.VIEWER)
async def _describe(call: Call, statement: Describe) -> Outcome:
    async with call.world.stores.begin() as tx:
        view, entry = await tx.views.named(statement.name), await tx.catalog.named(statement.name)
    if view is not None:
        return Outcome("DESCRIBE", _DESCRIBED, tuple((name, kind, "false", None) for name, kind in view.columns))
    if entry is None:
        raise NotFound(f'relation "{statement.name}" does not exist', kind="relation")
    rows = tuple((c.name, str(c.type), str(c.hidden).lower(), None) for c in entry.relation.columns)
    key = ", ".join(f"{part.name}{' DESC' if part.descending else ''}" for part in entry.relation.key)
    return Outcome("DESCRIBE", _DESCRIBED, (*rows, ("primary key", key, None, None)))
