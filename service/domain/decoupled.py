"""The values of a graph that belongs to one job. `service.domain.barrier` decides by them."""

from dataclasses import dataclass
from datetime import datetime

from service.protocol.ids import RelationId


@dataclass(frozen=True, slots=True)
class OwnWorker:
    """The state of starting a worker that serves one graph only.

    `failures` counts the consecutive starts that failed, `error` is the error of the last one, and `due` is when the
    next start is tried.
    """

    failures: int = 0
    error: str | None = None
    due: datetime | None = None


@dataclass(frozen=True, slots=True)
class FailedIndex:
    """Why the index of a snapshot job's table could not be built, and when the build is tried again (`due`).

    `failures` counts the tries for which Postgres lacked space, memory or time. An unreachable server or a locked table
    does not count.
    """

    failures: int
    error: str
    due: datetime


@dataclass(frozen=True, slots=True)
class Decoupled:
    """The extra state of a graph of one job.

    The graph of a snapshot job ends after its job has ended or moved to the database graph. A job that *stays* has its
    graph for ever, which publishes epochs of its own once the job is created.
    """

    relation: RelationId | None = None
    """The relation that the job creates."""
    over: bool = False
    """Nothing needs the graph any more: its job has ended or, unless it stays, was created."""
    stays: bool = False
    """The job never merges."""
    created: bool = False
    """The job stays and is created: users read what the graph publishes."""
    merged: bool = False
    """The job continues in the database graph. Its state committed here stays recorded until it is created."""
    unindexed: bool = False
    """The snapshot is loaded, but its table lacks the index that a replay needs."""
    index_failed: FailedIndex | None = None
    """None if the index was not tried yet, or its build never failed."""
    own_worker: OwnWorker | None = None
    """None if workers of the database graph serve this graph as well."""
