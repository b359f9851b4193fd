"""Parse a SQL statement and run the handler of its class.

The service keeps no session: SET answers with the new map of variables, and the client sends it back next time.
Next: `service.sql.parse`, then `service.operations.statements.views` for one of the families.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from service.domain.cutting import DEFINITION_BYTES_MAX
from service.domain.errors import Invalid
from service.domain.parameters import parse_session_variable
from service.domain.roles import Role
from service.operations.auditing import admit
from service.operations.leaving import Gone
from service.operations.offload import parsed
from service.operations.statements import (
    dml,
    indexes,
    jobs,
    logical_views,
    relations,
    select,
    settings,
    sinks,
    sources,
    tables,
    views,
)
from service.operations.statements.call import HANDLERS, Call
from service.operations.statements.outcome import Outcome
from service.operations.statements.telling import told
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.records import Claim
from service.sql.statements.dml import Delete, Insert, Update
from service.sql.statements.select import Select
from service.sql.statements.statement import Statement

FAMILIES: Final = (dml, indexes, jobs, logical_views, relations, select, settings, sinks, sources, tables, views)
"""The modules that register handlers. Importing them fills the registry."""
_NOT_KEPT: Final = (Select, Insert, Update, Delete)
"""The statements whose texts are not kept with objects."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A statement that was parsed, and that its caller may run. `changes`: it does more than read."""

    call: Call
    statement: Statement
    changes: bool

    async def run(self, claim: Claim | None = None, gone: Gone | None = None) -> Outcome:
        """Run the statement.

        DML is linked to `claim`. A query or the wait for a job ends when its caller is `gone`. Raises domain errors,
        with the position of the fault in the text if it has one.
        """
        call = replace(self.call, claim=claim, gone=gone)
        outcome = await HANDLERS[type(self.statement)].run(call, self.statement)
        return outcome if outcome.session else replace(outcome, session=call.session)


async def admitted(world: World, text: str, *, session: Mapping[str, str], asked_by: Asker) -> Admitted:
    """Parse a statement. Raises domain errors, and Forbidden if the asker's role does not permit the statement."""
    checked = {name: parse_session_variable(name, value) for name, value in session.items()}
    world = world.of(asked_by.actor)
    statement = await parsed(world.parsers, text)
    if not isinstance(statement, _NOT_KEPT) and len(text.encode()) > DEFINITION_BYTES_MAX:
        raise Invalid(
            f"a statement other than SELECT, INSERT, UPDATE and DELETE has at most {DEFINITION_BYTES_MAX} bytes"
        )
    said, needs = told(statement, text), HANDLERS[type(statement)].role(statement)
    asked_by = asked_by.saying(said.text, said.target, discreet=said.discreet)
    await admit(world, asked_by, needs)
    return Admitted(Call(world, text, checked, asked_by), statement, changes=needs is not Role.VIEWER)


async def run(
    world: World,
    text: str,
    *,
    session: Mapping[str, str],
    asked_by: Asker,
    claim: Claim | None = None,
    gone: Gone | None = None,
) -> Outcome:
    """Parse and run one statement, as `admitted` and `Admitted.run` do."""
    return await (await admitted(world, text, session=session, asked_by=asked_by)).run(claim, gone)
