"""Logical views: created, and put in the place of their names in the queries of materialized ones.

The name is taken first, together with what the query reads; then the state store makes the view, while its row is held
so that nobody drops it meanwhile; then it is shown. A service that dies in between leaves a view that is not shown:
the same CREATE takes it up where it was left, and a DROP removes it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.parameters import SystemParameters
from service.operations.naming import Named, named, or_there, skipped
from service.operations.offload import parsed
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.ports.records import NewLogicalView
from service.protocol.ids import RelationId
from service.protocol.relation import RelationKind
from service.sql.statements.logical_views import CreateView
from service.sql.text.tree import Tree


@dataclass(frozen=True, slots=True)
class Query:
    """A logical view and what its query says."""

    id: RelationId
    query: Tree


@handles(CreateView)
async def _create(call: Call, statement: CreateView) -> Outcome:
    world, name = call.world, statement.name
    async with world.stores.begin() as tx:
        timeout_ms = call.limit("statement_timeout", SystemParameters.of(await tx.parameters.all()))
        taken = await _taken(tx, statement)
        reads = await _reads(tx, statement)
    if taken is not None and taken.readable:
        return Outcome("CREATE_VIEW", notices=(f'{RelationKind.VIEW} "{name}" already exists, skipping',))
    if taken is not None:
        await _make(world, taken.id, statement)
        return Outcome("CREATE_VIEW")

    async def there() -> tuple[str, ...] | None:
        return await skipped(world, name, RelationKind.VIEW) if statement.if_not_exists else None

    return Outcome("CREATE_VIEW", notices=await or_there(_created(world, statement, reads, timeout_ms), there))


async def queries(world: World, names: Collection[str]) -> Mapping[str, Query]:
    """Return those of `names` that are logical views, and what these are made of, by name. What cannot be read yet is
    absent.
    """
    found: dict[str, Query] = {}
    frontier = set(names)
    while frontier:
        async with world.stores.begin() as tx:
            views = [view for name in sorted(frontier) if (view := await tx.views.named(name)) is not None]
        frontier = set()
        # Parsed outside the transaction: a long text would hold its connection.
        for view in views:
            if view.shown and view.name not in found:
                statement = await parsed(world.parsers, view.definition)
                assert isinstance(statement, CreateView), view
                found[view.name] = Query(view.id, statement.query)
                frontier |= statement.reads.keys() - found.keys()
    return found


async def _taken(tx: Transaction, statement: CreateView) -> Named | None:
    """Return the view that IF NOT EXISTS found, or that the same statement began to create. Raises Conflict."""
    found = await named(tx, statement.name)
    if found is None:
        return None
    begun = not found.readable and found.definition == statement.text
    if found.kind is RelationKind.VIEW and (begun or (found.readable and statement.if_not_exists)):
        return found
    raise found.taken


async def _reads(tx: Transaction, statement: CreateView) -> Sequence[RelationId]:
    """Return what the query reads. Raises NotFound at its place, and Conflict for what cannot be read yet."""
    found: list[RelationId] = []
    for name, place in statement.reads.items():
        read = await named(tx, name)
        if read is None:
            raise NotFound(f'relation "{name}" does not exist', kind="relation", position=place)
        if not read.readable:
            raise read.unreadable
        found.append(read.id)
    return found


async def _created(
    world: World, statement: CreateView, reads: Sequence[RelationId], timeout_ms: int
) -> tuple[str, ...]:
    await _make(world, await _add(world, statement, reads, timeout_ms), statement)
    return ()


async def _add(world: World, statement: CreateView, reads: Sequence[RelationId], timeout_ms: int) -> RelationId:
    columns = await _columns(world, statement, timeout_ms)
    async with world.stores.begin() as tx:
        view = await tx.views.add(NewLogicalView(statement.name, statement.text, columns, tuple(reads)))
        facts = {"name": statement.name, "statement": statement.text}
        await tx.events.append("view.asked", facts, now=world.clock.now())
    return view


async def _columns(world: World, statement: CreateView, timeout_ms: int) -> tuple[tuple[str, str], ...]:
    """Have the reader's login look at the query: what it may not read is refused here. Raises Invalid."""
    offset = statement.query.start
    try:
        columns = await world.reader.describe(statement.sql, timeout_ms=timeout_ms)
    except Invalid as error:
        place = None if error.position is None else error.position + offset
        raise Invalid(error.message, position=place, pointer=error.pointer) from None
    names = [name for name, _ in columns]
    for number, name in enumerate(names, start=1):
        if name == "?column?":
            raise Invalid(f"column {number} of the view has no name: give it one with AS", position=offset + 1)
        if name in names[: number - 1]:
            raise Invalid(f'column "{name}" specified more than once', position=offset + 1)
    return columns


async def _make(world: World, view: RelationId, statement: CreateView) -> None:
    try:
        await _shown(world, view, statement)
    except (Invalid, Conflict):
        # The state store will not have it, whoever asks.
        async with world.stores.begin() as tx:
            await tx.catalog.remove(view)
        world.signals.notify()
        raise


async def _shown(world: World, view: RelationId, statement: CreateView) -> None:
    async with world.stores.begin() as tx:
        if await tx.views.hold(view) is None:
            raise Conflict(f"view {statement.name} was dropped while it was being created")
        await world.views.create(view, statement.name, statement.sql, reads=statement.reads)
        await tx.views.show(view)
        await tx.events.append("view.created", {"name": statement.name}, now=world.clock.now())
