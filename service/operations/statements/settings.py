"""Read and set session variables (`SET`, `SHOW`) and system parameters (`ALTER SYSTEM`, `SHOW PARAMETERS`)."""

from service.domain.compatibility import notice
from service.domain.errors import NotFound
from service.domain.parameters import BOUNDED, SESSION_DEFAULTS, SystemParameters, bounded, parse_session_variable
from service.domain.roles import Role
from service.operations import parameters
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.sql.statements.settings import AlterSystem, SetVariable, ShowParameters, ShowVariable


@handles(SetVariable, needs=Role.VIEWER)
async def _set(call: Call, statement: SetVariable) -> Outcome:
    name = statement.name
    changed = {**call.session, name: parse_session_variable(name, statement.value)}
    if name in BOUNDED:
        bounded(name, changed[name], await parameters.known(call.world))
    notices = () if name in SESSION_DEFAULTS else (notice(name),)
    return Outcome("SET_VARIABLE", notices=notices, session=changed)


@handles(ShowVariable, needs=Role.VIEWER)
async def _show(call: Call, statement: ShowVariable) -> Outcome:
    known, name = {**SESSION_DEFAULTS, **call.session}, statement.name
    if name is None:
        return Outcome("SHOW", (("Name", "text"), ("Setting", "text")), tuple(sorted(known.items())))
    if name not in known:
        raise NotFound(f'unrecognized configuration parameter "{name}"', kind="parameter")
    return Outcome("SHOW", ((name, "text"),), ((known[name],),))


@handles(AlterSystem, needs=Role.ADMIN)
async def _alter_system(call: Call, statement: AlterSystem) -> Outcome:
    after = await parameters.alter(call.world, {statement.name: statement.value}, asked_by=call.asked_by)
    return Outcome("ALTER_SYSTEM", notices=_late(statement.name, after))


def _late(name: str, after: SystemParameters) -> tuple[str, ...]:
    if name == "barrier_interval_ms" and after.barrier_interval_ms > 300_000:
        return ("barrier_interval_ms is above 5 minutes: changes will be seen late",)
    if name == "checkpoint_frequency" and after.checkpoint_frequency > 60:
        return ("checkpoint_frequency is above 60: changes will be seen late",)
    return ()


@handles(ShowParameters, needs=Role.VIEWER)
async def _show_parameters(call: Call, _: ShowParameters) -> Outcome:
    known = await parameters.known(call.world, call.asked_by.role)
    rows = tuple((name, _text(getattr(known, name))) for name in SystemParameters.__slots__)
    return Outcome("SHOW", (("Name", "text"), ("Value", "text")), rows)


def _text(value: float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
