"""Define the call of a statement and the registry of handlers, one per statement class.

The families of statements are modules of this package and of `service.sql.statements`. `dispatch` imports them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from service.domain.parameters import SESSION_DEFAULTS, SystemParameters, bounded
from service.domain.roles import Role
from service.operations.leaving import Gone
from service.operations.statements.outcome import Outcome
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.records import Claim
from service.sql.statements.statement import Statement

S = TypeVar("S", bound=Statement)


@dataclass(frozen=True, slots=True)
class Call:
    """The text of a statement and its caller.

    DML is linked to the idempotency key of `claim`. A query or the wait for a job ends when `gone` reports that the
    caller has disconnected.
    """

    world: World
    text: str
    session: Mapping[str, str]
    asked_by: Asker
    claim: Claim | None = None
    gone: Gone | None = None

    def limit(self, name: str, known: SystemParameters) -> int:
        """Return the session's value of a variable that has a system parameter as its upper bound."""
        return bounded(name, self.session.get(name, SESSION_DEFAULTS[name]), known)

    def gone_from(self, *, if_not_exists: bool) -> Gone | None:
        """Return the `gone` of a CREATE, or None if the CREATE waits on after its caller has disconnected.

        A CREATE with an idempotency key waits on, because a repetition gets its response. With IF NOT EXISTS it need
        not, because the repetition finds the relation and waits for it.
        """
        return self.gone if self.claim is None or if_not_exists else None

    async def made(self, tag: str, name: str, notices: tuple[str, ...]) -> Outcome:
        """Return the outcome of a CREATE: the relation's job, and whether it continues in the background."""
        async with self.world.stores.begin() as tx:
            entry = await tx.catalog.named(name)
        if entry is None:
            return Outcome(tag, notices=notices)  # the relation has just been dropped
        return Outcome(tag, notices=notices, job=entry.job, background=not entry.shown)


Handler = Callable[[Call, S], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Handled:
    """What runs a statement, and the role that its caller needs."""

    run: Handler[Statement]
    needs: Role | Callable[[Statement], Role]

    def role(self, statement: Statement) -> Role:
        """Return the role that this statement needs."""
        return self.needs if isinstance(self.needs, Role) else self.needs(statement)


HANDLERS: Final[dict[type[Statement], Handled]] = {}
"""The handler of each statement class."""


def handles(kind: type[S], *, needs: Role | Callable[[S], Role]) -> Callable[[Handler[S]], Handler[S]]:
    """Register the decorated function as the handler of a statement class, with the role that its caller needs."""

    def named(run: Handler[S]) -> Handler[S]:
        assert kind not in HANDLERS, kind
        role = cast("Role | Callable[[Statement], Role]", needs)
        HANDLERS[kind] = Handled(cast("Handler[Statement]", run), role)
        return run

    return named
