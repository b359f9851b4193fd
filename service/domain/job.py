"""The life of a job, as a table: the only place where a transition is allowed.

Initial -> (Queued ->) Creating -> Created -> Dropping -> Dropped
   |          |            |          |-> Failed -> Dropping
   |          |            |-> Cancelling -> Cancelled
   |          |            |-> Failed
   |----------|-> Cancelled, Failed
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from service.domain.errors import Conflict
from service.domain.parallelism import Parallelism
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, RelationId
from service.protocol.relation import RelationKind


class JobState(StrEnum):
    """Where a job is. The catalog row exists from `INITIAL` on, so a name is taken and the job is visible."""

    INITIAL = "Initial"
    QUEUED = "Queued"
    CREATING = "Creating"
    CREATED = "Created"
    CANCELLING = "Cancelling"
    CANCELLED = "Cancelled"
    FAILED = "Failed"
    DROPPING = "Dropping"
    DROPPED = "Dropped"


class JobEvent(StrEnum):
    """What happens to a job."""

    QUEUED = "queued"
    STARTED = "started"
    FINISHED = "finished"
    CANCEL_ASKED = "cancel_asked"
    DROP_ASKED = "drop_asked"
    STOPPED = "stopped"
    FAILED = "failed"


_S, _E = JobState, JobEvent

TRANSITIONS: Final[Mapping[tuple[JobState, JobEvent], JobState]] = MappingProxyType(
    {
        # Every permit is taken: the job waits and shows its place.
        (_S.INITIAL, _E.QUEUED): _S.QUEUED,
        # A permit was free at once (a table needs none).
        (_S.INITIAL, _E.STARTED): _S.CREATING,
        # A permit became free; it is held until the job leaves CREATING or CANCELLING.
        (_S.QUEUED, _E.STARTED): _S.CREATING,
        # The checkpoint that holds every actor's finish has committed (I6).
        (_S.CREATING, _E.FINISHED): _S.CREATED,
        # No barrier has carried it: there is nothing to stop, only to clean up.
        (_S.INITIAL, _E.CANCEL_ASKED): _S.CANCELLED,
        (_S.QUEUED, _E.CANCEL_ASKED): _S.CANCELLED,
        # Its actors stop at the next barrier, so a cancel is a request, not a fact.
        (_S.CREATING, _E.CANCEL_ASKED): _S.CANCELLING,
        # The barrier with the stop has committed, or a recovery left the job out.
        (_S.CANCELLING, _E.STOPPED): _S.CANCELLED,
        # The state store refused its tables before it started.
        (_S.INITIAL, _E.FAILED): _S.FAILED,
        (_S.QUEUED, _E.FAILED): _S.FAILED,
        # It failed the same way several times: the graph goes on without it.
        (_S.CREATING, _E.FAILED): _S.FAILED,
        # A created view met a row that it cannot transform: it stays readable as it was until it is dropped.
        (_S.CREATED, _E.FAILED): _S.FAILED,
        (_S.CREATED, _E.DROP_ASKED): _S.DROPPING,
        # No actor runs for it any more, but for what reads it, which goes no later: they leave with one barrier.
        (_S.FAILED, _E.DROP_ASKED): _S.DROPPING,
        (_S.DROPPING, _E.STOPPED): _S.DROPPED,
    }
)

TERMINAL: Final = frozenset({_S.CANCELLED, _S.DROPPED})
"""States without exits: the name is free, and nothing of the job is stored but its history."""
CREATING: Final = frozenset({_S.INITIAL, _S.QUEUED, _S.CREATING})
"""States in which `rw_ddl_progress` lists a job."""
IN_GRAPH: Final = frozenset({_S.CREATING, _S.CREATED, _S.CANCELLING, _S.DROPPING})
"""States in which a recovery rebuilds the job's actors, unless it has failed or its stop is asked."""
HOLDS_PERMIT: Final = frozenset({_S.CREATING, _S.CANCELLING})


class IllegalTransition(Conflict):
    """The state does not take the event."""

    def __init__(self, state: JobState, event: JobEvent) -> None:
        super().__init__(f"a job that is {state} cannot be {event}")
        self.state, self.event = state, event


def after(state: JobState, event: JobEvent) -> JobState:
    """Return the state that follows. Raises IllegalTransition."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None


@dataclass(frozen=True, slots=True)
class Job:
    """One DDL that creates a relation. Instants are UTC."""

    id: JobId
    relation: RelationId
    name: str
    kind: RelationKind
    statement: str
    state: JobState
    background: bool
    initialized_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    parallelism: Parallelism | None = None
    """Once it is created; None where nothing was asked for, and its scans keep the actors they have."""
    backfill_parallelism: Parallelism | None = None
    """Until it is created; None where it is the same."""
    failures: int = 0
    """Consecutive recoveries that blamed this job."""
    recoveries: int = 0
    """Recoveries it lived through while being created."""
    graph: GraphId = DATABASE_GRAPH
    """Where its barriers come from."""
    state_since: datetime | None = None
    """When it came into its state, where that was recorded."""
    serverless: bool = False
    """Its graph has a worker of its own until the job merges."""
    published: bool = True
    """Whether what it creates can be read: the epoch that finished it is published a moment after it is committed."""
    held_back: str | None = None
    """Why what it created cannot be shown, for example because its name was taken in schema public."""

    @property
    def shown(self) -> "Job":
        """As it is told to people: nothing is Created before it can be read."""
        early = self.state is JobState.CREATED and not self.published
        return replace(self, state=JobState.CREATING) if early else self

    @property
    def failed(self) -> bool:
        """Whether its actors have ended with an error. What is stored of it stays as it was until it is dropped."""
        return self.error is not None

    @property
    def present_parallelism(self) -> Parallelism | None:
        """What holds in the state that it is in."""
        # A table's actors read the history of what it follows, which goes on when the table is created.
        creating = self.state in CREATING or self.kind is RelationKind.TABLE
        return self.backfill_parallelism or self.parallelism if creating else self.parallelism
