"""Store users' secrets by name. Their values are never shown."""

from collections.abc import Sequence

from service.domain.errors import NotFound
from service.operations.naming import or_there
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.sql.statements.target import Target


async def create(
    world: World, name: str, value: str, *, if_not_exists: bool = False, asked_by: Asker
) -> tuple[str, ...]:
    """Store a secret and return notices. Raises Conflict if the name is taken."""

    async def there() -> tuple[str, ...] | None:
        exists = if_not_exists and name in await names(world)
        return (f'secret "{name}" already exists, skipping',) if exists else None

    return await or_there(_add(world, name, value, asked_by=asked_by), there)


@retried
async def _add(world: Context, name: str, value: str, *, asked_by: Asker) -> tuple[str, ...]:
    async with world.stores.begin(by=asked_by) as tx:
        await tx.secrets.add(name, value)
        await tx.events.append("secret.created", {"name": name, "asked_by": asked_by.actor}, now=world.clock.now())
    return ()


@retried
async def change(world: Context, name: str, value: str, *, asked_by: Asker) -> None:
    """Replace the value of a secret. Raises NotFound."""
    async with world.stores.begin(by=asked_by) as tx:
        await tx.secrets.change(name, value)
        await tx.events.append("secret.altered", {"name": name, "asked_by": asked_by.actor}, now=world.clock.now())


@retried
async def drop(world: Context, name: str, *, if_exists: bool = False, asked_by: Asker) -> tuple[str, ...]:
    """Remove a secret and return notices. Raises NotFound, and Conflict while a source or a sink uses it."""
    async with world.stores.begin(by=asked_by) as tx:
        if not await tx.secrets.remove(name):
            if if_exists:
                return (f'secret "{name}" does not exist, skipping',)
            raise NotFound(f'secret "{name}" does not exist', kind="secret")
        await tx.events.append("secret.dropped", {"name": name, "asked_by": asked_by.actor}, now=world.clock.now())
    return ()


async def value(world: Context, name: str, *, position: int | None = None) -> str:
    """Return the value of a secret, for whoever connects with it. Raises NotFound."""
    async with world.stores.begin() as tx:
        found = await tx.secrets.value(name)
    if found is None:
        raise NotFound(f'secret "{name}" does not exist', kind="secret", position=position)
    return found


async def names(world: Context) -> Sequence[str]:
    """Return the names of all secrets, in order."""
    async with world.stores.begin() as tx:
        return await tx.secrets.names()


async def check_secrets(world: Context, target: Target) -> None:
    """Raise NotFound, with a position, if a secret that a statement names does not exist."""
    for option, name in target.secrets.items():
        await value(world, name, position=target.positions.get(option))
