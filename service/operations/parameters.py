"""Read all system parameters, and set several of them atomically.

Parts of probes are secret: a password in a URL, literals in a query. The whole text is stored separately from the
visible one. Only the probe reads it.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Final

from service.domain.errors import Invalid
from service.domain.parameters import SystemParameters, parse_system_parameter
from service.domain.probes import LENGTH_MAX, parse_probe_url
from service.domain.roles import Role
from service.operations.offload import parsed
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.sql.statements.select import Select
from service.sql.text.tokens import without_literals

HTTP_PROBE: Final = "backfill_auto_probe_http"
SQL_PROBE: Final = "backfill_auto_probe_sql"
Value = int | bool | str


async def known(world: Context, role: Role = Role.VIEWER) -> SystemParameters:
    """Return every parameter without secrets. Only admins see the path of the HTTP probe."""
    async with world.stores.begin() as tx:
        return await _seen(tx, role)


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
    secrets = {name: str(wanted[name]) for name in (HTTP_PROBE, SQL_PROBE) if name in wanted}
    wanted |= {name: _shown(name, secret) for name, secret in secrets.items() if secret}
    async with world.stores.begin(by=asked_by) as tx:
        for name, secret in sorted(secrets.items()):
            await tx.parameters.set_secret(name, secret)
        for name, value in sorted(wanted.items()):
            await tx.parameters.set(name, str(value).lower() if isinstance(value, bool) else str(value))
        after = await _seen(tx, asked_by.role)
        if after.backfill_auto_floor > after.backfill_auto_ceiling:
            raise Invalid(
                f"backfill_auto_floor ({after.backfill_auto_floor}) is above backfill_auto_ceiling"
                f" ({after.backfill_auto_ceiling})",
                pointer="backfill_auto_floor",
            )
        await tx.events.append("parameters.altered", {**wanted, "asked_by": asked_by.actor}, now=world.clock.now())
    world.calls.parameters.forget(None)
    world.signals.notify()
    return after


async def _seen(tx: Transaction, role: Role) -> SystemParameters:
    found = SystemParameters.of(await tx.parameters.all())
    if not (secret := await tx.parameters.secret(HTTP_PROBE)):
        return found
    url = parse_probe_url(secret, pointer=HTTP_PROBE)
    return replace(found, backfill_auto_probe_http=url.shown_to_admins if role is Role.ADMIN else url.shown)


def _shown(name: str, secret: str) -> str:
    return parse_probe_url(secret, pointer=name).shown if name == HTTP_PROBE else without_literals(secret)


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
