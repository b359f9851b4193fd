"""System parameters: read them all, set some, all or none."""

from collections.abc import Mapping
from dataclasses import asdict

from service.domain.parameters import SystemParameters, parse_system_parameter
from service.operations.world import World


async def current(world: World) -> Mapping[str, int | bool]:
    """Return every parameter with its value."""
    async with world.stores.begin() as tx:
        return asdict(SystemParameters.of(await tx.parameters.all()))


async def alter(world: World, texts: Mapping[str, str]) -> Mapping[str, int | bool]:
    """Set parameters given as texts, `default` for the built-in value; return all of them. Raises NotFound, Invalid."""
    defaults = asdict(SystemParameters())
    wanted = {
        name: defaults[name]
        if name in defaults and text.strip().lower() == "default"
        else parse_system_parameter(name, text)
        for name, text in texts.items()
    }
    async with world.stores.begin() as tx:
        for name, value in wanted.items():
            await tx.parameters.set(name, str(value).lower())
        after = asdict(SystemParameters.of(await tx.parameters.all()))
        await tx.events.append("parameters.altered", wanted, now=world.clock.now())
    world.signals.notify()
    return after
