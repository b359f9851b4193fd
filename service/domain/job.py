"""Define the life of a job as a table, the only place that allows a transition.

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
    """The state of a job. The catalog row exists from `INITIAL` on: the name is taken and users see the job."""

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
    """The events that change a job's state."""

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
        # Every permit is taken. The job waits and shows its place in the queue.
        (_S.INITIAL, _E.QUEUED): _S.QUEUED,
        # A permit was free at once (a table needs none).
        (_S.INITIAL, _E.STARTED): _S.CREATING,
        # A permit became free. The job holds it until it leaves CREATING or CANCELLING.
        (_S.QUEUED, _E.STARTED): _S.CREATING,
        # The checkpoint that holds every actor's finish has committed (I6).
        (_S.CREATING, _E.FINISHED): _S.CREATED,
        # No barrier has carried the job, so there is nothing to stop and only something to clean up.
        (_S.INITIAL, _E.CANCEL_ASKED): _S.CANCELLED,
        (_S.QUEUED, _E.CANCEL_ASKED): _S.CANCELLED,
        # The job's actors stop only at the next barrier, so a cancel is first a request.
        (_S.CREATING, _E.CANCEL_ASKED): _S.CANCELLING,
        # The barrier with the stop has committed, or a recovery left the job out.
        (_S.CANCELLING, _E.STOPPED): _S.CANCELLED,
        # The state store refused the job's tables before the job started.
        (_S.INITIAL, _E.FAILED): _S.FAILED,
        (_S.QUEUED, _E.FAILED): _S.FAILED,
        # The job failed deterministically, exhausted memory repeatedly, or its index could not be built. The graph
        # continues without it.
        (_S.CREATING, _E.FAILED): _S.FAILED,
        # A created view fails for the first two reasons as well, or because it stored too many rows. It stays readable
        # as it was until it is dropped.
        (_S.CREATED, _E.FAILED): _S.FAILED,
        (_S.CREATED, _E.DROP_ASKED): _S.DROPPING,
        # The failed job has no actors, but its dependents may. One barrier stops both.
        (_S.FAILED, _E.DROP_ASKED): _S.DROPPING,
        (_S.DROPPING, _E.STOPPED): _S.DROPPED,
    }
)

TERMINAL: Final = frozenset({_S.CANCELLED, _S.DROPPED})
"""States without exits. The name is free, and only the job's history is still stored."""
CREATING: Final = frozenset({_S.INITIAL, _S.QUEUED, _S.CREATING})
"""States in which `rw_ddl_progress` lists a job."""
IN_GRAPH: Final = frozenset({_S.CREATING, _S.CREATED, _S.CANCELLING, _S.DROPPING})
"""States in which a recovery rebuilds the job's actors, unless the job has failed or its stop is requested."""
HOLDS_PERMIT: Final = frozenset({_S.CREATING, _S.CANCELLING})


def needs_graph(state: JobState, *, stays: bool, kept: bool) -> bool:
    """Whether a job still needs a graph of its own. `kept` is whether its relation can be read or is being made."""
    return kept and state not in TERMINAL if stays else state in HOLDS_PERMIT


_SAID: Final[Mapping[JobEvent, str]] = {_E.CANCEL_ASKED: "cancelled", _E.DROP_ASKED: "dropped"}
"""The words that users know for these events."""


class IllegalTransition(Conflict):
    """The job's state does not allow the event."""

    def __init__(self, state: JobState, event: JobEvent) -> None:
        super().__init__(f"a job that is {state} cannot be {_SAID.get(event, event)}")
        self.state, self.event = state, event


def after(state: JobState, event: JobEvent) -> JobState:
    """Return the state after the event. Raises IllegalTransition."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None


PERMITS: Final = "max_concurrent_creating_streaming_jobs"
"""The system parameter that limits the jobs in creation."""


def queued_at(place: int | None, by: str = PERMITS) -> str:
    """Return why a job is in the queue. `by` names the parameters that may keep it there."""
    return f"queued at place {place}: {by} is reached"


@dataclass(frozen=True, slots=True)
class Job:
    """One DDL statement that creates a relation. Instants are UTC."""

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
    """Parallelism once the job is created. None if the user set none; its scans then keep their actors."""
    backfill_parallelism: Parallelism | None = None
    """Parallelism until the job is created. None if it is the same."""
    failures: int = 0
    """Consecutive recoveries that blamed this job."""
    recoveries: int = 0
    """Recoveries during the job's creation."""
    graph: GraphId = DATABASE_GRAPH
    """The graph whose barriers the job receives."""
    state_since: datetime | None = None
    """When the job entered its state, if that was recorded."""
    serverless: bool = False
    """The job's graph has its own worker until the job merges."""
    published: bool = True
    """Whether the created relation can be read. The finishing epoch is published a moment after its commit."""
    held_back: str | None = None
    """Why the created relation cannot become visible, for example because its name was taken in schema public."""
    preparing: str | None = None
    """The work that the service does before the job can start, for example the build of an index."""
    resource_group: str | None = None
    """The profile of the job's own worker. None is the profile of all serverless jobs."""
    created_by: str = ""
    """The tenant of the job: the actor, as the audit trail names it. Empty if it was not recorded."""
    own_graph: str | None = None
    """Why the job stays in a graph of its own. None if it merges into the database graph, or began there."""

    @property
    def shown(self) -> "Job":
        """The job as users see it: it is not Created before its relation can be read."""
        early = self.state is JobState.CREATED and not self.published
        return replace(self, state=JobState.CREATING) if early else self

    @property
    def queued_by(self) -> str:
        """The system parameters that may keep the job in the queue."""
        return f"{PERMITS} or serverless_workers_max" if self.serverless else PERMITS

    @property
    def in_partial_graph(self) -> bool:
        """Whether the job has a graph of its own."""
        return self.graph != DATABASE_GRAPH

    @property
    def takes_permit(self) -> bool:
        """Whether the job holds one of the permits of `max_concurrent_creating_streaming_jobs` during its creation."""
        return self.kind is not RelationKind.TABLE

    @property
    def failed(self) -> bool:
        """Whether the job's actors ended with an error. Its stored rows stay as they were until it is dropped."""
        return self.error is not None

    @property
    def present_parallelism(self) -> Parallelism | None:
        """The parallelism that applies in the present state."""
        # A table's actors read the history of its external table, which continues after the table is created.
        creating = self.state in CREATING or self.kind is RelationKind.TABLE
        return self.backfill_parallelism or self.parallelism if creating else self.parallelism
