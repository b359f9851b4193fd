"""The meta store as operations use it: transactions over small aggregates, domain values in and out.

`Stores.begin(term)` opens a transaction and commits it when the block ends without an error. With a term it asserts
the leader lease *inside the same transaction*, so that a deposed leader can write nothing (I7). Nothing else commits.

Every method may raise Unavailable (the database is away). Instants are UTC and come from the caller.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Protocol

from service.domain.barrier import GraphStatus, GraphView
from service.ports.actors import Actors
from service.ports.catalog import Catalog, LogicalViews
from service.ports.jobs import Fragments, Jobs
from service.ports.keys import Keys
from service.ports.limits import Limits
from service.ports.records import (
    BarrierRecord,
    Command,
    Event,
    GraphState,
    Json,
)
from service.ports.requests import Requests
from service.ports.snapshots import Snapshots
from service.ports.source_records import Following, Secrets, SourceCleanups, Sources
from service.ports.statements import Statements
from service.ports.workers import Workers
from service.protocol.barrier import Barrier
from service.protocol.ids import (
    CommandId,
    Epoch,
    Generation,
    GraphId,
    RelationId,
    Term,
    WorkerId,
)
from service.protocol.mutation import Mutation
from service.protocol.report import Collected, Failed


class Leases(Protocol):
    """The leader lease: one row with a growing term, on the database's own clock."""

    async def gain(self, holder: str, *, lease: timedelta) -> Term | None:
        """Renew the lease of `holder` (same term) or take it over if it has expired (next term); None: someone else
        leads.
        """
        ...

    async def release(self, holder: str) -> None:
        """Let it expire now, if `holder` has it."""
        ...

    async def held(self) -> bool:
        """Return whether somebody has it."""
        ...


class Graphs(Protocol):
    """Graphs: status, generation, committed and published epochs, pause flag."""

    async def view(self, graph: GraphId, *, now: datetime, lease: timedelta) -> GraphView:
        """Read all that `decide` looks at; workers seen within `lease` before `now` are alive."""
        ...

    async def views(
        self, wanted: Collection[GraphId], *, now: datetime, lease: timedelta
    ) -> Mapping[GraphId, GraphView]:
        """Read the same of several graphs; those that are gone are left out."""
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
        """Record a status. RECOVERING bumps the generation, counts a recovery, stores the reason, forgets the
        in-flight and uncommitted barriers and puts their commands and statements back into their queues; WAITING
        keeps the generation; RUNNING names the worker. Returns the present generation.
        """
        ...

    async def set_paused(self, graph: GraphId, *, paused: bool, now: datetime) -> None: ...

    async def state(self, graph: GraphId) -> GraphState:
        """Return how a graph stands. Raises NotFound."""
        ...

    async def states(self, wanted: Collection[GraphId]) -> Mapping[GraphId, GraphState]:
        """Return the same of several graphs; those that are gone are left out."""
        ...

    async def set_published(
        self,
        graph: GraphId,
        epoch: Epoch,
        *,
        now: datetime,
        created: bool = True,
        held_back: Collection[RelationId] = (),
    ) -> None:
        """Record that the state store shows `epoch`: on the graph, on the barriers up to it, and, if something was
        `created`, on the relations that were created and not yet shown, but for those that are held back.
        """
        ...

    async def ask_recovery(self, graph: GraphId, reason: str | None) -> None:
        """Set (or with None clear) an operator's wish for a recovery. One that is under way fulfils it: then nothing is
        set.
        """
        ...


class Barriers(Protocol):
    """Barriers in flight and their history."""

    async def record(self, barrier: Barrier, *, worker: WorkerId, now: datetime, commands: Sequence[CommandId]) -> None:
        """Store an injected barrier: it carries these commands and its `statements`."""
        ...

    async def for_worker(self, worker: WorkerId, taken: Mapping[GraphId, Epoch] = ...) -> Barrier | None:
        """Return an in-flight barrier that `worker` has yet to answer, besides those it has taken."""
        ...

    async def answer(self, answer: Collected | Failed, *, now: datetime) -> bool:
        """Store an answer; False when the same was stored before. Raises Stale for another generation, epoch or
        worker.
        """
        ...

    async def collected(self, graph: GraphId, upto: Epoch) -> Sequence[tuple[Barrier, Collected]]:
        """Return the collected, uncommitted barriers up to and with `upto`, oldest first."""
        ...

    async def attach(self, graph: GraphId, epoch: Epoch) -> None:
        """A collected non-checkpoint barrier waits for the next checkpoint; the graph may go on."""
        ...

    async def commit(self, graph: GraphId, epoch: Epoch, *, now: datetime) -> None:
        """Mark the barriers up to `epoch` committed and set the graph's committed epoch: the commit point. Older
        history beyond the newest 1,000 barriers of the graph is deleted, and payloads of committed barriers are
        emptied.
        """
        ...

    async def history(self, graph: GraphId, *, limit: int, before: Epoch | None = None) -> Sequence[BarrierRecord]: ...


class Commands(Protocol):
    """Durable requests for barriers, first in, first out."""

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
        """Queue a command, or one graph's part of a command: the whole is done when all its parts are. A barrier is
        made at once for one that is `hurried`.
        """
        ...

    async def get(self, command: CommandId) -> Command | None: ...

    async def waiting(self, graph: GraphId) -> Sequence[Command]:
        """Return what no barrier carries yet, oldest first."""
        ...

    async def finish(self, commands: Collection[CommandId], *, epoch: Epoch, error: str | None = None) -> None:
        """Answer commands with the epoch of the barrier that carried them, or with `epoch` where none did."""
        ...

    async def carried(self, graph: GraphId, upto: Epoch) -> Sequence[Command]:
        """Return the unfinished commands that barriers up to `upto` carried."""
        ...

    async def parts(self, whole: CommandId) -> Sequence[Command]:
        """Return what was queued as a part of a command, finished or not."""
        ...


class Events(Protocol):
    """The append-only event log."""

    async def append(self, kind: str, facts: Json, *, now: datetime) -> None: ...

    async def since(self, after: int, *, limit: int) -> Sequence[Event]: ...

    async def newest(self) -> int: ...


class Parameters(Protocol):
    """System parameters that were set."""

    async def all(self) -> Mapping[str, str]: ...

    async def set(self, name: str, text: str) -> None: ...

    async def secret(self, name: str) -> str:
        """Return what is kept apart of a parameter, shown in no catalog; empty where nothing is."""
        ...

    async def set_secret(self, name: str, text: str) -> None: ...


class Transaction(Protocol):
    """One transaction and its aggregates."""

    @property
    def leases(self) -> Leases: ...
    @property
    def graphs(self) -> Graphs: ...
    @property
    def barriers(self) -> Barriers: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def fragments(self) -> Fragments: ...
    @property
    def actors(self) -> Actors: ...
    @property
    def snapshots(self) -> Snapshots: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def views(self) -> LogicalViews: ...
    @property
    def sources(self) -> Sources: ...
    @property
    def following(self) -> Following: ...
    @property
    def source_cleanups(self) -> SourceCleanups: ...
    @property
    def secrets(self) -> Secrets: ...
    @property
    def statements(self) -> Statements: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def events(self) -> Events: ...
    @property
    def parameters(self) -> Parameters: ...
    @property
    def keys(self) -> Keys: ...


class Stores(Protocol):
    """Opens transactions."""

    def begin(self, term: Term | None = None) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction; with a term, assert it inside. Raises Deposed, Unavailable."""
        ...
