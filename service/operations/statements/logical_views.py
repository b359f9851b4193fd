"""Create logical views, and return their queries for substitution in materialized views.

A CREATE takes three steps. It first records the name and the relations that the query reads. It then locks the view's
row, so that no call can drop the view, and creates the view in the state store. Finally it makes the view visible. If
the service dies in between, an invisible view is left. The same CREATE continues with it, and a DROP removes it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.parameters import SystemParameters
from service.domain.roles import Role
from service.operations.naming import Named, named, or_there, skipped
from service.operations.offload import beside_views, parsed
from service.operations.retrying import retried
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import NewLogicalView
from service.protocol.ids import RelationId
from service.protocol.relation import RelationKind
from service.sql.queries.planner import STAGES_MAX
from service.sql.statements.logical_views import CreateView, occurrences
from service.sql.text.tree import Tree


@dataclass(frozen=True, slots=True)
class Query:
    """The id and the query of a logical view."""

    id: RelationId
    query: Tree


@handles(CreateView, needs=Role.OPERATOR)
async def _create(call: Call, statement: CreateView) -> Outcome:
    world, name = call.world, statement.name
    async with world.stores.begin() as tx:
        timeout_ms = call.limit("statement_timeout", SystemParameters.of(await tx.parameters.all()))
        taken = await _taken(tx, statement)
        reads = await _reads(tx, statement)
    if taken is not None and taken.readable:
        return Outcome("CREATE_VIEW", notices=(f'{RelationKind.VIEW} "{name}" already exists, skipping',))
    if taken is not None:
        await _make(world, taken.id, statement, call.asked_by)
        return Outcome("CREATE_VIEW")

    async def there() -> tuple[str, ...] | None:
        return await skipped(world, name, RelationKind.VIEW) if statement.if_not_exists else None

    return Outcome("CREATE_VIEW", notices=await or_there(_created(call, statement, reads, timeout_ms), there))


async def queries(world: World, names: Collection[str]) -> Mapping[str, Query]:
    """Return the logical views among `names` and all logical views that they read, by name.

    Views that are not created yet are absent.
    """
    found: dict[str, Query] = {}
    frontier = set(names)
    while frontier:
        async with world.stores.begin() as tx:
            views = await tx.views.called(frontier)
        frontier = set()
        # Parsed outside the transaction, because a long text would occupy its connection.
        for view in views:
            if view.shown and view.name not in found:
                statement = await parsed(world.parsers, view.definition)
                assert isinstance(statement, CreateView), view
                found[view.name] = Query(view.id, statement.query)
                frontier |= statement.reads.keys() - found.keys()
    return found


async def _taken(tx: Transaction, statement: CreateView) -> Named | None:
    """Return the view that IF NOT EXISTS finds or that an identical statement has begun to create, or None.

    Raises Conflict if the name is taken otherwise.
    """
    found = await named(tx, statement.name)
    if found is None:
        return None
    begun = not found.readable and found.definition == statement.text
    if found.kind is RelationKind.VIEW and (begun or (found.readable and statement.if_not_exists)):
        return found
    raise found.taken


async def _reads(tx: Transaction, statement: CreateView) -> Sequence[RelationId]:
    """Return the relations that the query reads. Raises NotFound with a position, and Conflict for unreadable ones."""
    found: list[RelationId] = []
    for name, place in statement.reads.items():
        read = await named(tx, name)
        if read is None:
            raise NotFound(f'relation "{name}" does not exist', kind="relation", position=place)
        if not read.readable:
            raise read.unreadable
        found.append(read.id)
    return found


async def _check_occurrences(world: World, statement: CreateView) -> None:
    """Raise Invalid if the logical views below make Postgres plan too much, for this view and for each of its readers.

    A text that reads no view costs what it shows.
    """
    views = {name: view.query for name, view in (await queries(world, statement.reads)).items()}
    if not views:
        return
    count = await beside_views(world.parsers, statement.text, views, occurrences, statement.query, views)
    if count > STAGES_MAX:
        raise Invalid(
            f"the view reads {count} relations through the logical views in it, and may read {STAGES_MAX}:"
            " create a materialized view of one of them, and read that",
            position=statement.query.start + 1,
        )


async def _created(call: Call, statement: CreateView, reads: Sequence[RelationId], timeout_ms: int) -> tuple[str, ...]:
    await _check_occurrences(call.world, statement)
    await _make(call.world, await _add(call.world, statement, reads, timeout_ms), statement, call.asked_by)
    return ()


@retried
async def _add(world: World, statement: CreateView, reads: Sequence[RelationId], timeout_ms: int) -> RelationId:
    columns = await _columns(world, statement, timeout_ms)
    async with world.stores.begin() as tx:
        new = NewLogicalView(statement.name, statement.text, columns, tuple(reads), statement.selects_all)
        view = await tx.views.add(new)
        facts = {"name": statement.name, "statement": statement.text}
        await tx.events.append("view.asked", facts, now=world.clock.now())
    return view


async def described(world: World, query: str, offset: int, *, timeout_ms: int) -> tuple[tuple[str, str], ...]:
    """Return the columns (name, type) of a query that begins at `offset` of its statement, as the reader may read it.

    Raises Invalid with the position in the statement, and Unavailable.
    """
    try:
        return await world.state_store.reader.describe(query, timeout_ms=timeout_ms)
    except Invalid as error:
        place = None if error.position is None else error.position + offset
        raise Invalid(error.message, position=place, pointer=error.pointer) from None


async def _columns(world: World, statement: CreateView, timeout_ms: int) -> tuple[tuple[str, str], ...]:
    """Describe the query under the reader's login and return its columns.

    Raises Invalid if the reader may not run the query, or for columns without a name or with the same name.
    """
    offset = statement.query.start
    columns = await described(world, statement.sql, offset, timeout_ms=timeout_ms)
    names = statement.query.named([name for name, _ in columns])
    for number, name in enumerate(names, start=1):
        if name == "?column?":
            raise Invalid(f"column {number} of the view has no name: give it one with AS", position=offset + 1)
        if name in names[: number - 1]:
            raise Invalid(f'column "{name}" specified more than once', position=offset + 1)
    return tuple((name, kind) for name, (_, kind) in zip(names, columns, strict=True))


async def _make(world: World, view: RelationId, statement: CreateView, asked_by: Asker) -> None:
    try:
        await _shown(world, view, statement, asked_by)
    except (Invalid, Conflict):
        # The state store would refuse every repetition as well, so the name is freed.
        await _freed(world, view)
        raise


@retried
async def _freed(world: Context, view: RelationId) -> None:
    async with world.stores.begin() as tx:
        await tx.catalog.remove(view)
    world.signals.notify()


@retried
async def _shown(world: World, view: RelationId, statement: CreateView, asked_by: Asker) -> None:
    async with world.stores.begin(by=asked_by) as tx:
        if await tx.views.hold(view) is None:
            raise Conflict(f"view {statement.name} was dropped while it was being created")
        await world.state_store.views.create(
            view, statement.name, statement.sql, reads=statement.reads, columns=statement.query.columns
        )
        await tx.views.show(view)
        await tx.events.append("view.created", {"name": statement.name}, now=world.clock.now())
