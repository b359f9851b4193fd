"""Create sources, find them by name and return their addresses. A password is read only to open a connection.

Before an object is created in the external database, its clean-up is stored with a later due time. If the service dies
in between, the clean-up removes the object (I9). Next: `service.operations.sources.create_table`.
"""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final

from service.domain.errors import Conflict, Invalid, MetaError, NotFound, Unreachable
from service.domain.external import Publication
from service.domain.source import VERSION_MIN, SourceOptions, conninfo, source_options
from service.operations.naming import named, or_there, skipped
from service.operations.polling import rest, until
from service.operations.retrying import retried
from service.operations.sources import secrets
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.source_records import Leftover, NewSource, Password, Source, SourceCleanup
from service.ports.sources import Address, ServerFacts
from service.protocol.cdc import Lsn, SourceConnection
from service.protocol.ids import SourceId
from service.protocol.relation import RelationKind
from service.sql.statements.sources import CreateSource

ABANDONED: Final = timedelta(minutes=5)
"""The longest time between the stored clean-up and the creation of its object. It exceeds the limits of all calls
together.
"""
CLEANED_WAIT: Final = timedelta(seconds=5)
"""The longest wait of a DROP for the clean-up of the external database. After it the clean-up continues."""


async def create(world: World, statement: CreateSource, *, asked_by: Asker) -> tuple[str, ...]:
    """Create a source and return notices. Raises Invalid with a position, NotFound, Conflict, Unavailable."""
    options = source_options(statement.options)
    password = await password_of(world, statement)
    there = partial(there_already, world, statement.name, if_not_exists=statement.if_not_exists)
    return await there() or await or_there(_created(world, statement, options, password, asked_by=asked_by), there)


async def there_already(world: Context, name: str, *, if_not_exists: bool) -> tuple[str, ...] | None:
    """Return the notice of IF NOT EXISTS, or None if the name is free. Raises Conflict if it is taken."""
    if if_not_exists:
        return await skipped(world, name, RelationKind.SOURCE)
    async with world.stores.begin() as tx:
        taken = await named(tx, name)
    if taken is not None:
        raise taken.taken
    return None


async def _created(
    world: World, statement: CreateSource, options: SourceOptions, password: str, *, asked_by: Asker
) -> tuple[str, ...]:
    at = Address(statement.name, options.place, conninfo(options, password), world.external.hosts)
    async with evenly(world):
        await world.external.servers.server(at)
    published = await _publication(world, at, options)
    await _check(world, at, options, makes_publication=published is None)
    source = await _add(world, statement, options, makes_publication=published is None, asked_by=asked_by)
    await _make(world, at, source)
    return ()


@asynccontextmanager
async def evenly(world: Context) -> AsyncGenerator[None]:
    """Delay every failure to reach a host to the same duration, because the duration reveals the state of a port."""
    began = world.clock.monotonic()
    try:
        yield
    except Unreachable as error:
        left = began + error.within_seconds - world.clock.monotonic()
        await rest(world, timedelta(seconds=max(left, 0)))
        raise


async def address(world: World, tx: Transaction, source: Source) -> Address:
    """Return the address of a source with its present password."""
    options = source_options(source.options)
    password = await tx.sources.password(source.id)
    return Address(source.name, options.place, conninfo(options, password), world.external.hosts)


async def reached(world: World, source: Source) -> Address:
    """Return the address of a source in a new transaction."""
    async with world.stores.begin() as tx:
        return await address(world, tx, source)


async def connection(world: World, wanted: SourceId) -> SourceConnection:
    """Return the connection string with which a worker connects to a source. Raises NotFound."""
    async with world.stores.begin() as tx:
        source = await tx.sources.get(wanted)
        if source is None or source.dropped:
            raise NotFound(f"source {wanted} not found", kind="source")
        at = await address(world, tx, source)
    return SourceConnection(source=wanted, conninfo=await world.external.servers.conninfo(at))


async def existing(world: Context, name: str, position: int | None = None) -> Source:
    """Return the source called `name`.

    Raises NotFound, Invalid if the name belongs to another kind of object, and Conflict if the source is not created
    yet.
    """
    async with world.stores.begin() as tx:
        source = await tx.sources.named(name)
        other = None if source is not None else await named(tx, name)
    if other is not None:
        raise Invalid(f'"{name}" is not a source; it is a {other.kind}', position=position)
    if source is None:
        raise NotFound(f'source "{name}" does not exist', kind="relation", position=position)
    if not source.shown:
        raise Conflict(f"source named {name} already exists and is still being created")
    return source


async def left_behind(world: Context, concerned: Collection[SourceId]) -> tuple[str, ...]:
    """Wait a short time for the clean-up of these sources, and return a notice for each object that is left.

    Other sources do not matter, because their servers may be unavailable.
    """
    if not concerned:
        return ()

    async def look() -> bool | None:
        async with world.stores.begin() as tx:
            due = await tx.source_cleanups.due(world.clock.now() + ABANDONED / 2)
        return None if any(one.source in concerned for one in due) else True

    await until(world, look, limit=CLEANED_WAIT)
    async with world.stores.begin() as tx:
        left = [one for one in await tx.source_cleanups.all() if one.due <= world.clock.now() + ABANDONED / 2]
    return tuple(
        f"the {_what(one)} is removed from the external database once "
        f"that can be done: {one.error or 'it has not been tried yet'}"
        for one in left
        if one.source in concerned
    )


def refusals(facts: ServerFacts, *, makes_publication: bool) -> tuple[tuple[str, str], ...]:
    """Return the requirements that a server does not meet, each as (item, fault)."""
    wrong: list[tuple[str, str]] = []
    if facts.version_number < VERSION_MIN:
        wrong.append(("version", f"it is Postgres {facts.version}: 14 is the oldest that can be followed"))
    if facts.in_recovery:
        wrong.append(("primary", "it is a standby: name the server that writes"))
    if facts.wal_level != "logical":
        wrong.append(("wal_level", f"wal_level is {facts.wal_level}: set it to logical, and restart the server"))
    if not facts.replication:
        wrong.append(("replication", "the login may not replicate: ALTER ROLE ... REPLICATION"))
    if makes_publication and not facts.creates:
        wrong.append(("publication", "the login may not CREATE in the database, which making a publication takes"))
    if facts.slots >= facts.slots_max:
        wrong.append(("slots", f"all {facts.slots_max} replication slots are in use: raise max_replication_slots"))
    return tuple(wrong)


def _what(one: SourceCleanup) -> str:
    return str(one.what) if one.table is None else f'{one.what} "{one.table}"'


async def password_of(world: Context, statement: CreateSource) -> str:
    """Return the password in a statement, or the value of the secret that it names. Raises NotFound."""
    if statement.secret is None:
        assert statement.password is not None
        return statement.password
    return await secrets.value(world, statement.secret, position=statement.positions.get("password"))


async def _publication(world: World, at: Address, options: SourceOptions) -> Publication | None:
    """Return the existing publication, or None if one must be created. Raises Invalid for an unsuitable publication."""
    found = None if options.publication is None else await world.external.catalog.publication(at, options.publication)
    if found is None and not options.create_publication:
        named_one = "publication.name" if options.publication is None else f'publication "{options.publication}"'
        raise Invalid(f"{named_one} does not exist, and publication.create.enable is false")
    if found is not None and found.lacks:
        raise Invalid(f'publication "{found.name}" does not publish {", ".join(found.lacks)}')
    return found


async def _check(world: World, at: Address, options: SourceOptions, *, makes_publication: bool) -> None:
    facts = await world.external.servers.server(at)
    wrong = refusals(facts, makes_publication=makes_publication)
    if wrong:
        raise Invalid(f"{at.place} cannot be followed: {'; '.join(words for _, words in wrong)}")
    if options.slot is not None and await world.external.servers.slot(at, options.slot) is not None:
        raise Conflict(f'replication slot "{options.slot}" exists at {at.place}: a source makes its own')


@retried
async def _add(
    world: Context, statement: CreateSource, options: SourceOptions, *, makes_publication: bool, asked_by: Asker
) -> Source:
    password = Password(name=statement.secret, value=statement.password)
    new = NewSource(
        statement.name,
        statement.text,
        statement.options,
        password,
        options.publication,
        options.slot,
        owns_publication=makes_publication,
    )
    now = world.clock.now()
    async with world.stores.begin(by=asked_by) as tx:
        source = await tx.sources.add(new, now=now, abandoned_at=now + ABANDONED)
        facts = {"source": source.id, "name": source.name, "statement": statement.text, "asked_by": asked_by.actor}
        await tx.events.append("source.asked", facts, now=now)
    return source


async def _make(world: World, at: Address, source: Source) -> None:
    """Create the publication, then the slot, because the slot must only decode changes after the publication."""
    making = Leftover.PUBLICATION
    try:
        if source.owns_publication:
            await world.external.replication.create_publication(at, source.publication)
        making = Leftover.SLOT
        offset = await world.external.replication.create_slot(at, source.slot)
    except MetaError as error:
        # After a Conflict the object belongs to another owner. A slot whose creation has not begun does not exist.
        theirs = {making} if isinstance(error, Conflict) else set[Leftover]()
        unmade = {Leftover.SLOT} if making is Leftover.PUBLICATION else set[Leftover]()
        await _unmade(world, source.id, keeping=theirs | unmade)
        raise
    await _made(world, source, offset)


@retried
async def _unmade(world: Context, source: SourceId, *, keeping: Collection[Leftover]) -> None:
    async with world.stores.begin() as tx:
        await tx.sources.remove(source, now=world.clock.now(), keeping=keeping)
    world.signals.notify()


@retried
async def _made(world: Context, source: Source, offset: Lsn) -> None:
    async with world.stores.begin() as tx:
        await tx.sources.made(source.id, offset)
        facts = {"source": source.id, "name": source.name, "slot": source.slot, "offset": offset}
        await tx.events.append("source.created", facts, now=world.clock.now())
    world.signals.notify()
