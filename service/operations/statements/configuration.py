"""Session variables (`SET`, `SHOW`) and system parameters (`ALTER SYSTEM`, `SHOW PARAMETERS`)."""

from collections.abc import Mapping

from service.domain.compatibility import WITHOUT_EFFECT, notice
from service.domain.errors import NotFound
from service.domain.parameters import BOUNDED, SESSION_DEFAULTS, SystemParameters, bounded, parse_session_variable
from service.operations import parameters
from service.operations.statements.outcome import Outcome
from service.operations.world import World
from service.sql.statements import ast as s


async def run(
    world: World,
    statement: s.SetVariable | s.ShowVariable | s.AlterSystem | s.ShowParameters,
    session: Mapping[str, str],
    *,
    asked_by: str,
) -> Outcome:
    """Run one of these statements. Raises NotFound for an unknown name, Invalid for a bad value, Unavailable."""
    match statement:
        case s.SetVariable(name=name, value=value):
            changed = {**session, name: parse_session_variable(name, value)}
            if name in BOUNDED:
                bounded(name, changed[name], await parameters.known(world))
            notices = (notice(name),) if name in WITHOUT_EFFECT else ()
            return Outcome("SET_VARIABLE", notices=notices, session=changed)
        case s.ShowVariable(name=name):
            return _show(session, name)
        case s.AlterSystem(name=name, value=value):
            return Outcome("ALTER_SYSTEM", notices=await _alter_system(world, name, value, asked_by=asked_by))
        case s.ShowParameters():
            known = await parameters.known(world)
            rows = tuple((name, _text(getattr(known, name))) for name in SystemParameters.__slots__)
            return Outcome("SHOW", (("Name", "text"), ("Value", "text")), rows)


def _show(session: Mapping[str, str], name: str | None) -> Outcome:
    known = {**SESSION_DEFAULTS, **session}
    if name is None:
        return Outcome("SHOW", (("Name", "text"), ("Setting", "text")), tuple(sorted(known.items())))
    if name not in known:
        raise NotFound(f'unrecognized configuration parameter "{name}"', kind="parameter")
    return Outcome("SHOW", ((name, "text"),), ((known[name],),))


async def _alter_system(world: World, name: str, text: str, *, asked_by: str) -> tuple[str, ...]:
    after = await parameters.alter(world, {name: text}, asked_by=asked_by)
    if name == "barrier_interval_ms" and after.barrier_interval_ms > 300_000:
        return ("barrier_interval_ms is above 5 minutes: changes will be seen late",)
    if name == "checkpoint_frequency" and after.checkpoint_frequency > 60:
        return ("checkpoint_frequency is above 60: changes will be seen late",)
    return ()


def _text(value: float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
