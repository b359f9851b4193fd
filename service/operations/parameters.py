"""Read all system parameters, and set several of them atomically.

A secret part of a parameter (a password in a probe's URL) is stored separately from the visible text. Only the probe
reads it.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from service.domain.errors import Invalid
from service.domain.parameters import SystemParameters, parse_system_parameter
from service.domain.probes import LENGTH_MAX, parse_probe_url
from service.operations.offload import parsed
from service.operations.retrying import retried
from service.operations.world import World
from service.ports.audit import Asker
from service.sql.statements.select import Select

HTTP_PROBE: Final = "backfill_auto_probe_http"
SQL_PROBE: Final = "backfill_auto_probe_sql"
Value = int | bool | str


async def known(world: World) -> SystemParameters:
    """Return every parameter without secrets."""
    async with world.stores.begin() as tx:
        return SystemParameters.of(await tx.parameters.all())


@retried
async def alter(world: World, texts: Mapping[str, str], *, asked_by: Asker) -> SystemParameters:
    """Set parameters from texts and return all parameters. The text `default` sets the built-in value.

    Raises NotFound, Invalid.
    """
    defaults = asdict(SystemParameters())
    wanted = {
        name: defaults[name]
        if name in defaults and text.strip().lower() == "default"
        else await _checked(world, name, parse_system_parameter(name, text))
        for name, text in texts.items()
    }
    secret = wanted.get(HTTP_PROBE)
    if secret:
        wanted[HTTP_PROBE] = parse_probe_url(str(secret), pointer=HTTP_PROBE).shown
    async with world.stores.begin(by=asked_by) as tx:
        if secret is not None:
            await tx.parameters.set_secret(HTTP_PROBE, str(secret))
        for name, value in sorted(wanted.items()):
            await tx.parameters.set(name, str(value).lower() if isinstance(value, bool) else str(value))
        after = SystemParameters.of(await tx.parameters.all())
        if after.backfill_auto_floor > after.backfill_auto_ceiling:
            raise Invalid(
                f"backfill_auto_floor ({after.backfill_auto_floor}) is above backfill_auto_ceiling"
                f" ({after.backfill_auto_ceiling})",
                pointer="backfill_auto_floor",
            )
        await tx.events.append("parameters.altered", {**wanted, "asked_by": asked_by.actor}, now=world.clock.now())
    world.parameters.forget(None)
    world.signals.notify()
    return after


async def _checked(world: World, name: str, value: Value) -> Value:
    """Return the value to store. Raises Invalid for a probe that cannot work. The error does not quote the URL."""
    if name == HTTP_PROBE and value:
        return parse_probe_url(str(value), pointer=name).text
    if name == SQL_PROBE and value:
        if len(str(value)) > LENGTH_MAX:
            raise Invalid(f'"{name}" takes at most {LENGTH_MAX} characters', pointer=name)
        try:
            probe = await parsed(world.parsers, str(value))
        except Invalid as error:
            raise Invalid(f'"{name}": {error}', pointer=name) from None
        if not isinstance(probe, Select):
            raise Invalid(f'"{name}" takes a SELECT', pointer=name)
    return value
