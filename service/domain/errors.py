"""What can go wrong, sorted by what the caller should do. `service.api.errors` is the one table from here to HTTP.

    MetaError
    ├─ Refused        you asked for something impossible: never retry as it is
    │  ├─ Invalid           the request itself is wrong (syntax, type, option, value)
    │  ├─ NotFound          the thing named does not exist
    │  ├─ TimedOut          the caller took too long to send it
    │  └─ Conflict          it exists already, is in use, or is in a state that does not allow it
    ├─ Fenced         you are no longer who you were: stop now
    │  ├─ Deposed           a newer leader term exists
    │  └─ Stale             the worker or its generation is of the past
    └─ Unavailable    the world did not answer in time: retry
       └─ Exhausted         it answered that it lacks space, memory or time: retry, though not for ever

Messages are the reference's words where it quotes them; `about` names the thing and `position` the place in a
statement.
"""

from dataclasses import dataclass

from service.protocol.ids import Generation, Term


@dataclass(eq=False)
class MetaError(Exception):
    """The root. `message` is for people and never holds a secret."""

    message: str

    def __str__(self) -> str:
        return self.message


class Refused(MetaError):
    """You asked for something impossible."""


@dataclass(eq=False)
class Invalid(Refused):
    """The request itself is wrong. `position` is a 1-based character offset into the statement; `pointer` a JSON
    pointer or parameter name.
    """

    position: int | None = None
    pointer: str | None = None


@dataclass(eq=False)
class NotFound(Refused):
    """The thing named does not exist. `kind` is what it would have been: relation, job, fragment, parameter."""

    kind: str = "object"
    position: int | None = None


class TimedOut(Refused):
    """The caller took too long to send the request."""


class Conflict(Refused):
    """It exists already, is in use, or is in a state that does not allow this."""


class Fenced(MetaError):
    """You are no longer who you were."""


class Deposed(Fenced):
    """A newer leader term exists."""

    def __init__(self, term: Term) -> None:
        super().__init__(f"leader term {term} is over")


class Stale(Fenced):
    """The worker or its generation is of the past."""

    def __init__(self, generation: Generation | None = None) -> None:
        super().__init__("this worker is no longer known" if generation is None else f"generation {generation} is over")


class Unavailable(MetaError):
    """The world did not answer in time."""


class Exhausted(Unavailable):
    """The world answered that it lacks the space, memory or time for this."""


@dataclass(eq=False)
class Unreachable(Unavailable):
    """A host that a user named does not answer. Any failure may take `within_seconds`: a refusal that comes earlier
    tells by its time what its words do not.
    """

    within_seconds: float = 0.0


class UnderRecovery(Unavailable):
    """The graph is recovering; the words are the reference's."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cluster under recovery[{reason}]")
