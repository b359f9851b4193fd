"""One call of a statement, and what runs each class of statements.

A family is a module of this package, as it is one of `service.sql.statements`. `dispatch` imports the families.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from service.domain.parameters import SESSION_DEFAULTS, SystemParameters, bounded
from service.operations.leaving import Gone
from service.operations.statements.outcome import Outcome
from service.operations.world import World
from service.ports.records import Claim
from service.sql.statements.statement import Statement

S = TypeVar("S", bound=Statement)


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the statement's text, and its caller. A change is tied to `claim`; a query, or the wait for a job, ends
    when the caller is `gone`.
    """

    world: World
    text: str
    session: Mapping[str, str]
    asked_by: str
    claim: Claim | None = None
    gone: Gone | None = None

    def limit(self, name: str, known: SystemParameters) -> int:
        """Return the session's value of a variable that a parameter bounds."""
        return bounded(name, self.session.get(name, SESSION_DEFAULTS[name]), known)

    def gone_from(self, *, if_not_exists: bool) -> Gone | None:
        """Return what ends the wait of a CREATE. One with a key waits on, because a repetition gets its answer; unless
        the repetition finds the relation and waits for it again.
        """
        return self.gone if self.claim is None or if_not_exists else None

    async def made(self, tag: str, name: str, notices: tuple[str, ...]) -> Outcome:
        """Return what a CREATE gives: the job of the relation, and whether it goes on in the background."""
        async with self.world.stores.begin() as tx:
            entry = await tx.catalog.named(name)
        if entry is None:
            return Outcome(tag, notices=notices)  # somebody dropped it just now
        return Outcome(tag, notices=notices, job=entry.job, background=not entry.shown)


Handler = Callable[[Call, S], Awaitable[Outcome]]
HANDLERS: Final[dict[type[Statement], Handler[Statement]]] = {}
"""What runs each class of statements."""


def handles(kind: type[S]) -> Callable[[Handler[S]], Handler[S]]:
    """Name the function below as what runs the statements of a class."""

    def named(run: Handler[S]) -> Handler[S]:
        assert kind not in HANDLERS, kind
        HANDLERS[kind] = cast("Handler[Statement]", run)
        return run

    return named
