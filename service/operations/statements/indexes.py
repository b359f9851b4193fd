"""Run CREATE INDEX, DROP INDEX and SHOW INDEXES.

A CREATE stores the index with its name. The leader builds it beside everything else, and CREATE waits for that. Next:
`service.operations.upkeep.lookup_indexes`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from service.domain.barrier import Chore
from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.roles import Role
from service.operations.leaving import unless
from service.operations.naming import named
from service.operations.offload import parsed
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.world import Context
from service.ports.indexes import StoredIndex
from service.ports.meta_store import Transaction
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import is_long
from service.sql.statements.indexes import CreateIndex, DropIndex, ShowIndexes

_SHOWN: Final = ("Name", "On", "Key", "Include", "Distributed By", "Status", "Size", "Needed By")
_INDEXED: Final = (RelationKind.TABLE, RelationKind.MATERIALIZED_VIEW)


@handles(CreateIndex, needs=Role.OPERATOR)
@retried
async def _create(call: Call, statement: CreateIndex) -> Outcome:
    world, notices = call.world, ()
    async with world.stores.begin(by=call.asked_by) as tx:
        taken = await named(tx, statement.name)
        if taken is None:
            on = await _indexed(tx, statement)
            index = _index(statement, on)
            notices = _left_out(index)
            added = await tx.indexes.add(index, on.id, statement.text)
            facts = {"name": index.name, "on": on.name, "asked_by": call.asked_by.actor}
            await tx.events.append("index.asked", facts, now=world.clock.now())
        elif statement.if_not_exists and taken.kind is RelationKind.INDEX:
            added, notices = taken.id, (f'index "{statement.name}" already exists, skipping',)
        else:
            raise taken.taken
    world.signals.notify(Chore.INDEX)
    if call.session.get("background_ddl") != "true":
        await unless(call.gone, _built(world, statement.name, added, give_up=taken is None))
    return Outcome("CREATE_INDEX", notices=notices)


async def _indexed(tx: Transaction, statement: CreateIndex) -> Relation:
    """Return the relation that is to be indexed. Raises NotFound, Invalid, Conflict."""
    name = statement.relation
    found = await named(tx, name)
    if found is None:
        raise NotFound(f'relation "{name}" does not exist', kind="relation", position=statement.at)
    if found.kind is RelationKind.INDEX:
        raise Invalid(f'"{name}" is an index', position=statement.at)
    if found.kind not in _INDEXED or found.entry is None:
        raise Invalid(
            f'"{name}" is a {found.kind}: only tables and materialized views have indexes', position=statement.at
        )
    if not found.readable:
        raise found.unreadable
    if found.entry.relation.lake is not None:
        raise Invalid(f'"{name}" lies in a lake, and is read in place: it has no indexes', position=statement.at)
    return found.entry.relation


def _index(statement: CreateIndex, on: Relation) -> Relation:
    """Return the index as a relation: its columns, those of the key first. Raises Invalid for an unknown column."""
    columns = {column.name: column for column in on.visible}
    names = [*(part.name for part in statement.key), *statement.included]
    for name in names:
        if name not in columns:
            message = f'column "{name}" of relation "{on.name}" does not exist'
            raise Invalid(message, position=statement.places[name])
    return Relation(
        id=RelationId(0),
        name=statement.name,
        kind=RelationKind.INDEX,
        columns=tuple(columns[name] for name in names),
        key=statement.key,
        vnode_count=1,
    )


def _left_out(index: Relation) -> tuple[str, ...]:
    """Return a notice of columns that the index does not order its rows by, because their values may be long."""
    long = [column.name for column in index.columns if is_long(column.type)]
    if not long:
        return ()
    listed = ", ".join(f'"{name}"' for name in long)
    if all(is_long(index.column(part.name).type) for part in index.key):
        return (f"values of {listed} can be of any length: the index finds equal values of the first of them only",)
    return (f"values of {listed} can be of any length, so the index leaves them out",)


@retried
async def _built(world: Context, name: str, index: RelationId, *, give_up: bool) -> None:
    """Wait until an index is built. With `give_up`, remove it if it cannot be built. Raises Refused, Conflict."""

    async def look() -> bool | None:
        async with world.stores.begin() as tx:
            found = await tx.indexes.named(name)
            if found is None or found.relation.id != index:
                raise Conflict(f'index "{name}" was dropped while it was being created')
            if found.shown:
                return True
            error = next((one.error for one in await tx.stored_indexes.stored(found.on) if index in one.named), None)
            if error is None:
                return None
            if give_up:
                await tx.indexes.remove(index)
        raise Invalid(f'index "{name}" could not be built: {error}')

    await until(world, look)


@handles(DropIndex, needs=Role.OPERATOR)
@retried
async def _drop(call: Call, statement: DropIndex) -> Outcome:
    world, name = call.world, statement.name
    async with world.stores.begin(by=call.asked_by) as tx:
        found = await named(tx, name)
        if found is None:
            if not statement.if_exists:
                raise NotFound(f'index "{name}" does not exist', kind="relation")
            return Outcome("DROP_INDEX", notices=(f'index "{name}" does not exist, skipping',))
        if found.kind is not RelationKind.INDEX:
            raise Conflict(f'"{name}" is not an index; use DROP {found.kind.upper()}')
        await tx.indexes.remove(found.id)
        facts = {"name": name, "asked_by": call.asked_by.actor}
        await tx.events.append("index.dropped", facts, now=world.clock.now())
    world.signals.notify()
    return Outcome("DROP_INDEX")


@handles(ShowIndexes, needs=Role.VIEWER)
async def _show(call: Call, statement: ShowIndexes) -> Outcome:
    world, name = call.world, statement.relation
    async with world.stores.begin() as tx:
        on = await named(tx, name)
        if on is None:
            raise NotFound(f'relation "{name}" does not exist', kind="relation")
        stored = await tx.stored_indexes.stored(on.id)
        of_users = [one for one in await tx.indexes.all() if one.on == on.id]
        views = {one.id: one.name for one in await tx.catalog.outlines()}
    as_stored = {index: one for one in stored for index in one.named}
    rows: list[tuple[str | None, ...]] = []
    for one in of_users:
        created = await parsed(world.parsers, one.definition)
        assert isinstance(created, CreateIndex), one
        by = created.distributed or tuple(part.name for part in created.key)
        keys = [f"{part.name} {'DESC' if part.descending else 'ASC'}" for part in created.key]
        said = _listed(keys), _listed(created.included), _listed(by)
        rows.append((one.relation.name, on.name, *said, *_standing(as_stored.get(one.relation.id), views)))
    for one in stored:
        if not one.named:
            said = _listed(f"{column} ASC" for column in one.index.columns), "", _listed(one.index.columns)
            rows.append((None, on.name, *said, *_standing(one, views)))
    return Outcome("SHOW", tuple((title, "text") for title in _SHOWN), tuple(rows))


def _standing(stored: StoredIndex | None, views: Mapping[RelationId, str]) -> tuple[str | None, ...]:
    """Return status, size in bytes, and the views that need an index."""
    if stored is None:
        return "Creating", None, ""
    size = None if stored.bytes is None else str(stored.bytes)
    return stored.state.capitalize(), size, _listed(views[one] for one in stored.views if one in views)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
