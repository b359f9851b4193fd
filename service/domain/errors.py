"""Define the errors, sorted by what the caller should do. `service.api.errors` is the one table from here to HTTP.

    MetaError
    ├─ Refused        the request is impossible: never retry it unchanged
    │  ├─ Invalid           the request itself is wrong (syntax, type, option, value)
    │  │  └─ InLake         Postgres cannot read it: Spark can
    │  ├─ NotFound          the named object does not exist
    │  ├─ Forbidden         the caller's role does not permit it
    │  ├─ TimedOut          the caller took too long to send the request
    │  ├─ OverQuota         the caller has as much as its role may have: retry when some of it has ended
    │  └─ Conflict          it exists already, is in use, or is in a state that does not allow the request
    ├─ Fenced         the caller's authority is over: stop now
    │  ├─ Deposed           a newer leader term exists
    │  └─ Stale             the worker or its generation is stale
    └─ Unavailable    a store or server did not answer in time: retry
       ├─ Moved             a question that may be answered later
       ├─ Deadlocked        Postgres rolled the transaction back for another one: run it again as a whole
       ├─ Exhausted         a store answered that it lacks space, memory or time: retry, but not for ever
       └─ InUse             the transaction of another session is in the way: retry when it has ended

A message that RisingWave has too uses RisingWave's text.
"""

from dataclasses import dataclass

from service.domain.roles import Role
from service.protocol.ids import Generation, Term


@dataclass(eq=False)
class MetaError(Exception):
    """The root of all errors. `message` is for users and never contains a secret."""

    message: str

    def __str__(self) -> str:
        return self.message


class Refused(MetaError):
    """The request is impossible. The caller must not retry it unchanged."""


@dataclass(eq=False)
class Invalid(Refused):
    """The request itself is wrong.

    `position` is a 1-based character offset into the statement. `pointer` is a JSON pointer or a parameter's name.
    """

    position: int | None = None
    pointer: str | None = None


class InLake(Invalid):
    """A query reads rows that lie in a lake. Spark can read them, and Postgres cannot."""


@dataclass(eq=False)
class NotFound(Refused):
    """The named object does not exist. `kind` is what it would have been: relation, job, fragment, parameter."""

    kind: str = "object"
    position: int | None = None


class Forbidden(Refused):
    """The role of the caller does not permit the request."""

    def __init__(self, *, needs: Role, has: Role) -> None:
        super().__init__(f"this needs the role {needs}, and the caller has the role {has}")
        self.needs, self.has = needs, has


class TimedOut(Refused):
    """The caller took too long to send the request."""


@dataclass(eq=False)
class OverQuota(Refused):
    """The caller has as much as its role may have. `quota` is the system parameter that limits it to `limit`.

    The request is accepted again once something of the caller has ended, if `retry_soon` within seconds.
    """

    quota: str
    limit: int
    used: int
    retry_soon: bool = False


@dataclass(eq=False)
class TooLarge(Invalid):
    """A result has more bytes than the parameter or variable `limited_by` permits."""

    limited_by: str = ""


class Conflict(Refused):
    """The object exists already, is in use, or is in a state that does not allow the request."""


class Fenced(MetaError):
    """The caller's authority is over. It must stop now."""


class Deposed(Fenced):
    """A newer leader term exists."""

    def __init__(self, term: Term) -> None:
        super().__init__(f"leader term {term} is over")


class Stale(Fenced):
    """The worker or its generation is stale."""

    def __init__(self, generation: Generation | None = None) -> None:
        super().__init__("this worker is no longer known" if generation is None else f"generation {generation} is over")


class Unavailable(MetaError):
    """A store or server did not answer in time. The caller may retry."""


class Moved(Unavailable):
    """The same question may be answered later: a relation that it reads has just changed, or its worker is busy."""


class Deadlocked(Unavailable):
    """Postgres rolled the transaction back, so that another one could go on.

    `service.operations.retrying` runs it again as a whole.
    """


class Exhausted(Unavailable):
    """A store answered that it lacks the space, memory or time. The caller may retry, but not for ever."""


class InUse(Unavailable):
    """The transaction of another session is in the way. The message names it."""


@dataclass(eq=False)
class Unreachable(Unavailable):
    """A host that a user named does not answer.

    A caller answers every such failure only after `within_seconds`, because an earlier refusal would reveal by its time
    what the message hides.
    """

    within_seconds: float = 0.0


class UnderRecovery(Unavailable):
    """The graph is recovering. The message is RisingWave's."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cluster under recovery[{reason}]")
