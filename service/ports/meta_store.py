"""Define the meta store of operations: transactions over small aggregates, with domain values in and out.

`Stores.begin(term)` opens a transaction and commits it when the block ends without an error. With a term it asserts
the leader lease *inside the same transaction*, so that a deposed leader can write nothing (I7). Nothing else commits.
With an asker it records the call in the audit trail, so that what happened and who did it cannot differ.

Every method raises Unavailable if the database is unavailable. Instants are UTC and come from the caller.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from service.domain.graph import GraphStatus, GraphView
from service.meta_store.audit import Audit
from service.meta_store.barriers.requests import Requests
from service.meta_store.catalog.logical_views import LogicalViews
from service.meta_store.jobs.limits import Adaptations
from service.meta_store.sources.followed_tables import Following, Slots, SourceCleanups
from service.meta_store.sources.lakes import Lakes
from service.meta_store.sources.sources import Secrets, Sources
from service.meta_store.status import Status
from service.meta_store.tokens import Tokens
from service.ports.actors import Actors, Rescaling
from service.ports.audit import Asker
from service.ports.catalog import Catalog, Cleanups, Visibility
from service.ports.indexes import NamedIndexes, StoredIndexes
from service.ports.jobs import Failures, Fragments, JobQueue, Jobs, Plans
from service.ports.keys import Keys
from service.ports.launches import Launches
from service.ports.limits import Limits
from service.ports.records import (
    BarrierRecord,
    Command,
    Event,
    GraphState,
    Json,
)
from service.ports.snapshots import PartialGraphs, Snapshots
from service.ports.statements import StagingTables, Statements
from service.ports.workers import Workers
from service.protocol.barrier import Barrier
from service.protocol.ids import (
    CommandId,
    Epoch,
    FragmentId,
    Generation,
    GraphId,
    Term,
    WorkerId,
)
from service.protocol.mutation import Mutation
from service.protocol.report import Collected, Failed


class Leases(Protocol):
    """The leader lease: one row with an increasing term. Its expiry is on the database's clock."""

    async def gain(self, holder: str, *, lease: timedelta) -> Term | None:
        """Renew the lease of `holder` (same term), or take over an expired lease (next term).

        Return the term, or None if another process leads.
        """
        ...

    async def renew(self, holder: str, *, lease: timedelta) -> Term | None:
        """Do as `gain`, but return None if `holder` is not the last one that had the lease."""
        ...

    async def take(self) -> bool:
        """Expire the lease now and forget its holder. Return whether a process had the lease."""
        ...

    async def release(self, holder: str) -> None:
        """Expire the lease now, if `holder` has it."""
        ...

    async def held(self) -> bool:
        """Whether a process has the lease."""
        ...


class Graphs(Protocol):
    """Graphs: status, generation, committed and published epochs, pause flag."""

    async def view(self, graph: GraphId, *, now: datetime, lease: timedelta) -> GraphView:
        """Read the input of `decide`. Workers seen within `lease` before `now` are alive."""
        ...

    async def views(
        self, wanted: Collection[GraphId], *, now: datetime, lease: timedelta
    ) -> Mapping[GraphId, GraphView]:
        """Read the views of several graphs. Graphs that are gone are absent."""
        ...

    async def set_status(
        self,
        graph: GraphId,
        status: GraphStatus,
        *,
        now: datetime,
        reason: str | None = None,
        worker: WorkerId | None = None,
    ) -> Generation:
        """Record a status and return the present generation.

        RECOVERING increments the generation, counts a recovery and stores the reason. It deletes the in-flight and
        uncommitted barriers and returns their commands and statements to their queues. WAITING keeps the generation.
        RUNNING stores the worker.
        """
        ...

    async def set_paused(self, graph: GraphId, *, paused: bool, now: datetime, by: str | None = None) -> None:
        """Pause or resume. The time and the actor (`by`) are those of the first of several pauses."""
        ...

    async def state(self, graph: GraphId) -> GraphState:
        """Return the state of a graph. Raises NotFound."""
        ...

    async def states(self, wanted: Collection[GraphId]) -> Mapping[GraphId, GraphState]:
        """Return the states of several graphs. Graphs that are gone are absent."""
        ...

    async def ask_recovery(self, graph: GraphId, reason: str | None) -> None:
        """Set an operator's request for a recovery, or clear it with None. A running recovery already fulfils a
        request, so then nothing is set.
        """
        ...


class Barriers(Protocol):
    """Barriers in flight and their history."""

    async def record(self, barrier: Barrier, *, worker: WorkerId, now: datetime, commands: Sequence[CommandId]) -> None:
        """Store an injected barrier, which carries these commands and its `statements`."""
        ...

    async def for_worker(self, worker: WorkerId, taken: Mapping[GraphId, Epoch] = ...) -> Barrier | None:
        """Return an in-flight barrier that `worker` has neither taken nor answered."""
        ...

    async def answer(self, answer: Collected | Failed, *, now: datetime) -> bool:
        """Store an answer. Return False if the same answer is already stored.

        Raises Stale for another generation, epoch or worker.
        """
        ...

    async def collected(self, graph: GraphId, upto: Epoch) -> Sequence[tuple[Barrier, Collected]]:
        """Return the collected, uncommitted barriers up to and including `upto`, oldest first.

        Raises Invalid if another version of tidefill has stored one of the answers.
        """
        ...

    async def attach(self, graph: GraphId, epoch: Epoch) -> None:
        """Record that a collected barrier waits for the next checkpoint, so that the graph can inject the next one."""
        ...

    async def commit(self, graph: GraphId, epoch: Epoch, *, now: datetime) -> None:
        """Mark the barriers up to `epoch` as committed and set the graph's committed epoch. This is the commit point.

        Also delete the history except for the graph's newest 1,000 barriers, and the payloads of committed barriers.
        """
        ...

    async def history(self, graph: GraphId, *, limit: int, before: Epoch | None = None) -> Sequence[BarrierRecord]: ...


class Commands(Protocol):
    """Durable requests for barriers, oldest first. The leader chooses which one is next."""

    async def add(
        self,
        graph: GraphId,
        mutation: Mutation | None,
        *,
        asked_by: str,
        now: datetime,
        part_of: CommandId | None = None,
        hurried: bool = True,
    ) -> CommandId:
        """Enqueue a command, or one graph's part of a command, which is done when all its parts are done.

        A `hurried` command triggers a barrier at once.
        """
        ...

    async def get(self, command: CommandId) -> Command | None: ...

    async def waiting(self, graph: GraphId) -> Sequence[Command]:
        """Return the commands that no barrier carries yet, oldest first."""
        ...

    async def waiting_of(self, asked_by: str) -> int:
        """Return how many commands of a caller no barrier carries yet, in all graphs."""
        ...

    async def wholes_of(self, asked_by: str, kinds: Collection[str]) -> int:
        """Return how many mutations of these kinds wait that a caller asked for. Their parts do not count."""
        ...

    async def unfinished(self, kind: str, *, scans: Collection[FragmentId] | None = None) -> Sequence[Command]:
        """Return the unfinished commands of a kind of mutation in all graphs, oldest first.

        With `scans` only the commands whose `fragments` have limits for one of these.
        """
        ...

    async def finish(self, commands: Collection[CommandId], *, epoch: Epoch, error: str | None = None) -> None:
        """Finish commands with the epoch of the barrier that carried them, or with `epoch` if none did."""
        ...

    async def carried(self, graph: GraphId, upto: Epoch) -> Sequence[Command]:
        """Return the unfinished commands that barriers up to `upto` carried."""
        ...

    async def parts(self, wholes: Collection[CommandId]) -> Mapping[CommandId, Sequence[Command]]:
        """Return the parts of commands, finished or not. A command without parts is left out."""
        ...


class Events(Protocol):
    """The append-only event log."""

    async def append(self, kind: str, facts: Json, *, now: datetime) -> None: ...

    async def since(self, after: int, *, limit: int, discreet: bool = True) -> Sequence[Event]:
        """Return the oldest events after `after`; those of `DISCREET_EVENTS` only with `discreet`."""
        ...

    async def newest(self) -> int: ...


class Parameters(Protocol):
    """The system parameters that were set."""

    async def all(self) -> Mapping[str, str]: ...

    async def set(self, name: str, text: str) -> None: ...

    async def secret(self, name: str) -> str:
        """Return the secret text of a parameter, which no catalog shows. Empty if there is none."""
        ...

    async def set_secret(self, name: str, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Transaction:
    """The ports of one transaction, and what has none because it feeds no decision. Nothing of it may be used later."""

    leases: Leases
    graphs: Graphs
    barriers: Barriers
    commands: Commands
    catalog: Catalog
    cleanups: Cleanups
    visibility: Visibility
    views: LogicalViews
    indexes: NamedIndexes
    stored_indexes: StoredIndexes
    jobs: Jobs
    queue: JobQueue
    plans: Plans
    failures: Failures
    fragments: Fragments
    actors: Actors
    rescaling: Rescaling
    limits: Limits
    adaptations: Adaptations
    partial_graphs: PartialGraphs
    snapshots: Snapshots
    sources: Sources
    lakes: Lakes
    following: Following
    slots: Slots
    source_cleanups: SourceCleanups
    secrets: Secrets
    statements: Statements
    staging_tables: StagingTables
    workers: Workers
    launches: Launches
    requests: Requests
    status: Status
    events: Events
    parameters: Parameters
    keys: Keys
    tokens: Tokens
    audit: Audit


class Stores(Protocol):
    """Opens transactions."""

    def begin(self, term: Term | None = None, *, by: Asker | None = None) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction. With a term, assert it inside. Raises Deposed, Unavailable.

        A transaction that changes something for a user is `by` its asker, and commits the entry of the audit trail too.
        """
        ...
