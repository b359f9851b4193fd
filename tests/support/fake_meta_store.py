"""The meta store in memory: it sits the same examination as the real one (`tests/conformance`), where that is not about
what locks decide between transactions that overlap. Next: `tests.support.fake_meta_jobs`, `fake_meta_statements`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy.engine.result import IteratorResult, Result, SimpleResultMetaData
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.errors import Deposed, NotFound, Stale
from service.domain.graph import DATABASE_POLICY, GraphPolicy, GraphStatus, GraphView, InFlight, Line, OwnWorker
from service.domain.job import JobState, needs_graph
from service.domain.launching import OwnJob
from service.meta_store.stores import portless
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import DISCREET_EVENTS, BarrierRecord, Command, Event, GraphState, Json, WorkerRecord
from service.ports.workers import FORGOTTEN_AFTER
from service.protocol.api import Registration
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.dml import InsertStaged
from service.protocol.ids import DATABASE_GRAPH, CommandId, Epoch, FragmentId, Generation, GraphId, Term, WorkerId
from service.protocol.mutation import Add, Mutation, Resume, Stop
from service.protocol.report import Collected, Failed
from tests.support.fake_meta_indexes import FakeNamedIndexes, FakeStoredIndexes
from tests.support.fake_meta_jobs import (
    FakeActors,
    FakeCatalog,
    FakeCleanups,
    FakeFailures,
    FakeFragments,
    FakeJobQueue,
    FakeJobs,
    FakePlans,
    FakeRescaling,
    FakeVisibility,
)
from tests.support.fake_meta_launches import FakeLaunches
from tests.support.fake_meta_snapshots import FakeLimits, FakePartialGraphs, FakeSnapshots
from tests.support.fake_meta_statements import FakeKeys, FakeStagingTables, FakeStatements
from tests.support.fake_meta_tables import (
    BarrierRow,
    GraphRow,
    Journal,
    LeaseRow,
    Tables,
    WorkerRow,
    printable,
    undo,
)

HISTORY_KEPT = 1_000
_NONE: Mapping[GraphId, Epoch] = {}


@dataclass(frozen=True, slots=True)
class FakeLeases:
    tables: Tables
    now: Callable[[], datetime]

    async def gain(self, holder: str, *, lease: timedelta) -> Term | None:
        now, row = self.now(), self.tables.lease[None]
        running = row.expires_at > now
        if running and row.holder != holder:
            return None
        term = row.term if running else Term(row.term + 1)
        self.tables.lease.put(None, LeaseRow(term, holder, now + lease))
        return term

    async def renew(self, holder: str, *, lease: timedelta) -> Term | None:
        return await self.gain(holder, lease=lease) if self.tables.lease[None].holder == holder else None

    async def take(self) -> bool:
        held = await self.held()
        if held:
            self.tables.lease.put(None, replace(self.tables.lease[None], holder="", expires_at=self.now()))
        return held

    async def release(self, holder: str) -> None:
        row = self.tables.lease[None]
        if row.holder == holder:
            self.tables.lease.put(None, replace(row, expires_at=self.now()))

    async def held(self) -> bool:
        return self.tables.lease[None].expires_at > self.now()


@dataclass(frozen=True, slots=True)
class FakeGraphs:
    tables: Tables

    async def view(self, graph: GraphId, *, now: datetime, lease: timedelta) -> GraphView:
        tables, row = self.tables, self._row(graph)
        database = graph == DATABASE_GRAPH
        barriers = [one for one in tables.barriers.values() if one.barrier.graph == graph]
        flying = next((one for one in barriers if one.state != "ATTACHED"), None)
        waiting = [one for one in tables.commands.values() if one.graph == graph and one.epoch is None]
        return GraphView(
            graph=graph,
            status=row.status,
            generation=row.generation,
            committed=row.committed,
            published=row.published,
            newest=max(one.newest for one in tables.graphs.values()),
            worker=row.worker,
            alive=frozenset(
                one
                for one, worker in tables.workers.items()
                if worker.registration.graph == self._serving(graph) and worker.alive(now - lease)
            ),
            leaving=frozenset(
                one
                for one, worker in tables.workers.items()
                if worker.registration.graph == self._serving(graph) and worker.alive(now - lease) and worker.leaving
            ),
            in_flight=None if flying is None else _in_flight(flying),
            uncommitted=len(barriers) - (flying is not None),
            attached=max((one.barrier.curr for one in barriers if one.state == "ATTACHED"), default=None),
            last_injected_at=row.last_injected_at,
            attempts=row.attempts,
            recovering_since=row.recovering_since,
            commands_waiting=any(one.hurried for one in waiting),
            stops_waiting=any(isinstance(one.mutation, Stop) for one in waiting),
            commands_open=any(one.graph == graph and not one.done for one in tables.commands.values()),
            statements_waiting=database and any(one.waits(singly=False) for one in tables.statements.values()),
            statements_queued=database
            and any(one.waits(singly=alone) for one in tables.statements.values() for alone in (False, True)),
            backfilling=self._backfilling(graph, lambda limit: limit != 0),
            hurries=not row.paused and self._backfilling(graph, lambda limit: limit is None),
            recover_asked=row.recover_asked,
            cleanups_waiting=database and bool(tables.cleanups),
            unsettled=self._unsettled(),
            line=await FakeJobQueue(tables).line() if database else Line(),
            policy=DATABASE_POLICY if database else self._policy(graph),
            parameters=dict(tables.parameters.items()),
        )

    async def views(
        self, wanted: Collection[GraphId], *, now: datetime, lease: timedelta
    ) -> Mapping[GraphId, GraphView]:
        return {one: await self.view(one, now=now, lease=lease) for one in wanted if one in self.tables.graphs}

    async def set_status(
        self,
        graph: GraphId,
        status: GraphStatus,
        *,
        now: datetime,
        reason: str | None = None,
        worker: WorkerId | None = None,
    ) -> Generation:
        row = replace(self._row(graph), status=status)
        match status:
            case GraphStatus.RECOVERING:
                row = _ended(row, None if reason is None else printable(reason), now)
                self._forget(graph, row.last_error)
            case GraphStatus.RUNNING:
                assert worker is not None
                row = replace(row, worker=worker, attempts=row.attempts + 1)
            case GraphStatus.WAITING:
                pass
        self.tables.graphs.put(graph, row)
        return row.generation

    async def set_paused(self, graph: GraphId, *, paused: bool, now: datetime, by: str | None = None) -> None:
        row = self._row(graph)
        since, actor = ((row.paused_since, row.paused_by) if row.paused else (now, by)) if paused else (None, None)
        self.tables.graphs.put(graph, replace(row, paused=paused, paused_since=since, paused_by=actor))

    async def state(self, graph: GraphId) -> GraphState:
        row = self._row(graph)
        return GraphState(
            status=row.status,
            generation=row.generation,
            committed=row.committed,
            published=row.published,
            paused=row.paused,
            paused_since=row.paused_since,
            recoveries=row.recoveries,
            last_error=row.last_error,
            paused_by=row.paused_by,
        )

    async def states(self, wanted: Collection[GraphId]) -> Mapping[GraphId, GraphState]:
        return {one: await self.state(one) for one in wanted if one in self.tables.graphs}

    async def ask_recovery(self, graph: GraphId, reason: str | None) -> None:
        row = self._row(graph)
        if reason is None or row.status is GraphStatus.RUNNING:
            asked = None if reason is None else printable(reason)
            self.tables.graphs.put(graph, replace(row, recover_asked=asked))

    def _row(self, graph: GraphId) -> GraphRow:
        try:
            return self.tables.graphs[graph]
        except KeyError:
            raise NotFound(f"graph {graph} not found", kind="graph") from None

    def _unsettled(self) -> bool:
        tables, running = self.tables, {JobState.CREATING, JobState.CREATED}
        return (
            any(not scan.finished for scan in tables.scans.values())
            or any(one.rescale_due and one.job.state in running for one in tables.jobs.values())
            or any(
                not (one.shown or one.dropped) and tables.jobs[one.job].job.state is JobState.CREATED
                for one in tables.relations.values()
            )
        )

    def _backfilling(self, graph: GraphId, how: Callable[[int | None], bool]) -> bool:
        for fragment, scan in self.tables.scans.items():
            if scan.finished:
                continue
            row = self.tables.fragments[fragment]
            job = self.tables.jobs[row.job]
            moving = how(row.rate_limit) and not row.waiting
            if moving and job.job.graph == graph and job.job.state in {JobState.CREATING, JobState.CREATED}:
                return True
        return False

    def _serving(self, graph: GraphId) -> GraphId:
        """Return the graph whose workers serve this one."""
        snapshot = self.tables.snapshots.get(graph)
        own = snapshot is not None and self.tables.jobs[snapshot.job].job.serverless
        return graph if own else DATABASE_GRAPH

    def _policy(self, graph: GraphId) -> GraphPolicy:
        tables, snapshot = self.tables, self.tables.snapshots[graph]
        own = self._serving(graph) == graph
        open_ = [
            row for row in tables.of_job(snapshot.job) if row.id in tables.scans and not tables.scans[row.id].finished
        ]
        job = tables.jobs[snapshot.job].job
        return GraphPolicy(
            relation=job.relation,
            over=not needs_graph(job.state, stays=snapshot.stays, kept=not tables.relations[job.relation].dropped),
            stays=snapshot.stays,
            created=snapshot.stays and job.state not in {JobState.CREATING, JobState.CANCELLING},
            merged=snapshot.merged,
            unindexed=not (open_ or snapshot.indexed),
            index_failed=tables.failed_indexes.get(graph),
            own_worker=tables.own_workers.get(graph, OwnWorker()) if own else None,
            graphs=sum(1 for _ in tables.snapshots.items()),
        )

    def _forget(self, graph: GraphId, reason: str | None) -> None:
        """End the uncommitted barriers; what they carried waits again."""
        ended = [key for key in self.tables.barriers if key[0] == graph]
        for key in ended:
            row = self.tables.barriers.take(key)
            assert row is not None
            failure = row.failure if row.failure is not None else reason
            self.tables.history.put(key, replace(row, state="ABANDONED", failure=failure, answer=None))
        epochs = {epoch for _, epoch in ended}
        for command, one in list(self.tables.commands.items()):
            if one.graph == graph and one.epoch in epochs:
                self.tables.commands.put(command, replace(one, epoch=None))
        for statement, carried in list(self.tables.statements.items()):
            if carried.carried_by in epochs:
                self.tables.statements.put(statement, replace(carried, carried_by=None, carried_to=None))


def _ended(row: GraphRow, reason: str | None, now: datetime) -> GraphRow:
    return replace(
        row,
        generation=Generation(row.generation + 1),
        recoveries=row.recoveries + 1,
        last_error=reason,
        recovering_since=now,
        worker=None,
        last_injected_at=None,
        recover_asked=None,
    )


def _in_flight(row: BarrierRow) -> InFlight:
    return InFlight(
        epoch=row.barrier.curr,
        kind=row.barrier.kind,
        injected_at=row.injected_at,
        collected=row.state == "COLLECTED",
        failure=row.answer if isinstance(row.answer, Failed) else None,
    )


@dataclass(frozen=True, slots=True)
class FakeBarriers:
    tables: Tables

    async def record(self, barrier: Barrier, *, worker: WorkerId, now: datetime, commands: Sequence[CommandId]) -> None:
        tables, graph = self.tables, self.tables.graphs[barrier.graph]
        if graph.generation != barrier.generation or graph.newest >= barrier.curr:
            raise Stale(barrier.generation)
        mine = [one for one in tables.barriers.values() if one.barrier.graph == barrier.graph]
        assert all(one.state == "ATTACHED" for one in mine), "two barriers in flight"
        tables.graphs.put(barrier.graph, replace(graph, newest=barrier.curr, last_injected_at=now))
        tables.barriers.put((barrier.graph, barrier.curr), BarrierRow(barrier, worker, now))
        for command in commands:
            tables.commands.put(command, replace(tables.commands[command], epoch=barrier.curr))
        for statement in barrier.statements:
            row = tables.statements.get(statement.id)
            if row is not None:
                last = statement.last if isinstance(statement, InsertStaged) else row.carried_to
                tables.statements.put(statement.id, replace(row, carried_by=barrier.curr, carried_to=last))

    async def for_worker(self, worker: WorkerId, taken: Mapping[GraphId, Epoch] = _NONE) -> Barrier | None:
        mine = [
            row.barrier
            for (graph, epoch), row in self.tables.barriers.items()
            if row.worker == worker and row.state == "INJECTED" and taken.get(graph) != epoch
        ]
        return min(mine, key=lambda barrier: (barrier.graph != DATABASE_GRAPH, barrier.curr), default=None)

    async def answer(self, answer: Collected | Failed, *, now: datetime) -> bool:
        key = (answer.graph, answer.epoch)
        row = self.tables.barriers.get(key) or self.tables.history.get(key)
        if row is None or not self.counts(row, answer):
            raise Stale(answer.generation)
        if row.state != "INJECTED":
            return False
        match answer:
            case Collected():
                row = replace(row, state="COLLECTED", answer=answer, collected_at=now, timings=answer.timings_ms)
            case Failed():
                told = answer.model_copy(update={"error": printable(answer.error)})
                row = replace(row, state="FAILED", answer=told, collected_at=now, failure=told.error)
        self.tables.barriers.put(key, row)
        return True

    def counts(self, row: BarrierRow, answer: Collected | Failed) -> bool:
        """Whether it is the answer of the worker and the generation that were asked, and both are of the present."""
        worker = self.tables.workers.get(answer.worker)
        return (
            row.worker == answer.worker
            and row.barrier.generation == answer.generation
            and row.state != "ABANDONED"
            and not (worker is not None and worker.given_up)
        )

    async def collected(self, graph: GraphId, upto: Epoch) -> Sequence[tuple[Barrier, Collected]]:
        return [(one.barrier, one.answer) for one in self._answered(graph, upto) if isinstance(one.answer, Collected)]

    async def attach(self, graph: GraphId, epoch: Epoch) -> None:
        row = self.tables.barriers.get((graph, epoch))
        if row is not None and row.state == "COLLECTED":
            self.tables.barriers.put((graph, epoch), replace(row, state="ATTACHED"))

    async def commit(self, graph: GraphId, epoch: Epoch, *, now: datetime) -> None:
        rows = self._answered(graph, epoch)
        assert rows, (graph, epoch)
        assert rows[-1].barrier.curr == epoch, (graph, epoch)
        for row in rows:
            key = (graph, row.barrier.curr)
            self.tables.barriers.take(key)
            self.tables.history.put(key, replace(row, state="COMMITTED", committed_at=now, answer=None))
        row = replace(self.tables.graphs[graph], committed=epoch)
        if any(one.barrier.kind is not BarrierKind.INITIAL for one in rows):
            row = replace(row, attempts=0, recovering_since=None)
        self.tables.graphs.put(graph, row)
        for old in sorted(key for key in self.tables.history if key[0] == graph)[:-HISTORY_KEPT]:
            self.tables.history.take(old)

    async def history(self, graph: GraphId, *, limit: int, before: Epoch | None = None) -> Sequence[BarrierRecord]:
        rows = {**self.tables.history, **self.tables.barriers}
        epochs = sorted(
            (epoch for of, epoch in rows if of == graph and (before is None or epoch < before)), reverse=True
        )
        return [_record(rows[graph, epoch]) for epoch in epochs[:limit]]

    def _answered(self, graph: GraphId, upto: Epoch) -> list[BarrierRow]:
        """Return what was collected and not committed, oldest first."""
        found = [
            row
            for (of, epoch), row in self.tables.barriers.items()
            if of == graph and epoch <= upto and row.state in {"COLLECTED", "ATTACHED"}
        ]
        return sorted(found, key=lambda row: row.barrier.curr)


def _record(row: BarrierRow) -> BarrierRecord:
    mutation = row.barrier.mutation
    kept = mutation.model_copy(update={"jobs": ()}) if isinstance(mutation, Add) else mutation
    return BarrierRecord(
        barrier=row.barrier.model_copy(update={"mutation": kept, "statements": ()}),
        injected_at=row.injected_at,
        collected_at=row.collected_at,
        committed_at=row.committed_at,
        published_at=row.published_at,
        failure=row.failure,
        timings_ms=row.timings,
    )


@dataclass(frozen=True, slots=True)
class FakeCommands:
    tables: Tables

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
        del now
        command = Command(CommandId(next(self.tables.ids)), graph, mutation, asked_by, hurried=hurried)
        self.tables.commands.put(command.id, command)
        if part_of is not None:
            self.tables.parts.put(part_of, (*self.tables.parts.get(part_of, ()), command.id))
        return command.id

    async def get(self, command: CommandId) -> Command | None:
        found = self._one(command)
        return None if found is None else self._whole(found)

    async def waiting(self, graph: GraphId) -> Sequence[Command]:
        return [
            self._whole(one)
            for _, one in sorted(self.tables.commands.items())
            if one.graph == graph and one.epoch is None
        ]

    async def waiting_of(self, asked_by: str) -> int:
        return sum(one.asked_by == asked_by and one.epoch is None for _, one in self.tables.commands.items())

    async def wholes_of(self, asked_by: str, kinds: Collection[str]) -> int:
        parts = {part for _, its in self.tables.parts.items() for part in its}
        waiting = [one for _, one in self.tables.commands.items() if one.asked_by == asked_by and one.epoch is None]
        return sum(one.id not in parts and one.mutation is not None and one.mutation.type in kinds for one in waiting)

    async def unfinished(self, kind: str, *, scans: Collection[FragmentId] | None = None) -> Sequence[Command]:
        return [
            self._whole(one)
            for _, one in sorted(self.tables.commands.items())
            if one.mutation is not None
            and one.mutation.type == kind
            and (scans is None or not set(getattr(one.mutation, "fragments", ())).isdisjoint(scans))
        ]

    async def finish(self, commands: Collection[CommandId], *, epoch: Epoch, error: str | None = None) -> None:
        for command in commands:
            found = self.tables.commands.take(command)
            if found is not None:
                text = None if error is None else printable(error)
                self.tables.finished_commands.put(
                    command, replace(found, done=True, epoch=found.epoch or epoch, error=text)
                )

    async def carried(self, graph: GraphId, upto: Epoch) -> Sequence[Command]:
        return [
            self._whole(one)
            for _, one in sorted(self.tables.commands.items())
            if one.graph == graph and one.epoch is not None and one.epoch <= upto
        ]

    async def parts(self, wholes: Collection[CommandId]) -> Mapping[CommandId, Sequence[Command]]:
        return {one: parts for one in wholes if (parts := self._parts(one))}

    def _parts(self, whole: CommandId) -> list[Command]:
        return [part for one in self.tables.parts.get(whole, ()) if (part := self._one(one)) is not None]

    def _one(self, command: CommandId) -> Command | None:
        return self.tables.commands.get(command) or self.tables.finished_commands.get(command)

    def _whole(self, command: Command) -> Command:
        """Return a command as what its parts make of it: a Resume is over with the first, all else with the last."""
        parts = self._parts(command.id)
        if not parts:
            return command
        epochs = [one.epoch for one in (command, *parts) if one.epoch is not None]
        epoch = min(epochs, default=None) if isinstance(command.mutation, Resume) else max(epochs, default=None)
        return replace(command, epoch=epoch, done=command.done and all(part.done for part in parts))


@dataclass(frozen=True, slots=True)
class FakeWorkers:
    tables: Tables

    async def register(self, registration: Registration, *, now: datetime) -> None:
        row = self.tables.workers.get(registration.worker)
        launch = self.tables.launches.get(registration.worker)
        over = (row is not None and row.given_up) or (launch is not None and launch.end is not None)
        if registration.graph not in self.tables.graphs or over:
            raise Stale
        row = WorkerRow(registration, now, now) if row is None else replace(row, seen_at=now)
        self.tables.workers.put(registration.worker, row)

    async def seen(self, worker: WorkerId, *, now: datetime) -> None:
        row = self.tables.workers.get(worker)
        if row is None or row.given_up or row.registration.graph not in self.tables.graphs:
            raise Stale
        self.tables.workers.put(worker, replace(row, seen_at=max(row.seen_at, now)))

    async def leave(self, worker: WorkerId) -> bool:
        row = self.tables.workers.get(worker)
        if row is None or row.leaving:
            return False
        self.tables.workers.put(worker, replace(row, leaving=True))
        return True

    async def give_up(self, worker: WorkerId) -> None:
        row = self.tables.workers.get(worker)
        if row is not None:
            self.tables.workers.put(worker, replace(row, given_up=True))

    async def forget(self, *, now: datetime) -> int:
        running = {graph.worker for graph in self.tables.graphs.values()}
        old = [
            worker
            for worker, row in self.tables.workers.items()
            if row.seen_at < now - FORGOTTEN_AFTER and worker not in running
        ]
        for worker in old:
            self.tables.workers.take(worker)
        return len(old)

    async def all(self, *, now: datetime, lease: timedelta) -> Sequence[WorkerRecord]:
        newest = sorted(self.tables.workers.values(), key=lambda row: row.registered_at, reverse=True)
        return [
            WorkerRecord(
                worker=row.registration.worker,
                graph=row.registration.graph,
                host=row.registration.host,
                pid=row.registration.pid,
                parallelism=row.registration.parallelism,
                registered_at=row.registered_at,
                seen_at=row.seen_at,
                alive=row.alive(now - lease),
                leaving=row.leaving,
                serving=any(graph.worker == row.registration.worker for graph in self.tables.graphs.values()),
            )
            for row in newest
        ]

    async def wanted(self) -> Mapping[GraphId, OwnJob]:
        creating = (one for one in self.tables.snapshots.values() if not one.merged)
        jobs = {one.graph: self.tables.jobs[one.job].job for one in creating}
        states = {JobState.CREATING, JobState.CREATED}
        own = {
            graph: job
            for graph, job in jobs.items()
            if job.serverless and job.state in states and (job.own_graph or job.state is JobState.CREATING)
        }
        return {graph: OwnJob(own[graph].id, own[graph].resource_group) for graph in sorted(own)}

    async def start_failed(self, graph: GraphId, failed: OwnWorker) -> None:
        if graph in self.tables.snapshots:
            error = None if failed.error is None else printable(failed.error)
            self.tables.own_workers.put(graph, replace(failed, error=error))


@dataclass(frozen=True, slots=True)
class FakeEvents:
    tables: Tables

    async def append(self, kind: str, facts: Json, *, now: datetime) -> None:
        one = next(self.tables.ids)
        stored = {name: printable(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
        self.tables.events.put(one, Event(one, now, kind, stored))

    async def since(self, after: int, *, limit: int, discreet: bool = True) -> Sequence[Event]:
        hidden = () if discreet else DISCREET_EVENTS
        shown = [event for one, event in sorted(self.tables.events.items()) if one > after]
        return [event for event in shown if not event.kind.startswith(hidden)][:limit]

    async def newest(self) -> int:
        return max(self.tables.events, default=0)


@dataclass(frozen=True, slots=True)
class FakeParameters:
    tables: Tables

    async def all(self) -> Mapping[str, str]:
        return dict(self.tables.parameters)

    async def set(self, name: str, text: str) -> None:
        self.tables.parameters.put(name, text)

    async def secret(self, name: str) -> str:
        return self.tables.secrets.get(name, "")

    async def set_secret(self, name: str, text: str) -> None:
        self.tables.secrets.put(name, text)


class _Empty:
    """A connection to a database in which nothing is stored, and from which nothing is read."""

    async def execute(self, *_: object) -> Result[Any]:
        return IteratorResult(SimpleResultMetaData([""]), iter(()))


_EMPTY: Final = cast("AsyncConnection", _Empty())
"""A connection to nothing: a store without a port has no form in memory, and its tests run on Postgres."""


def fake_transaction(tables: Tables, now: Callable[[], datetime]) -> Transaction:
    """Return the ports of a transaction on these tables."""
    return Transaction(
        leases=FakeLeases(tables, now),
        graphs=FakeGraphs(tables),
        barriers=FakeBarriers(tables),
        commands=FakeCommands(tables),
        catalog=FakeCatalog(tables),
        cleanups=FakeCleanups(tables),
        visibility=FakeVisibility(tables),
        indexes=FakeNamedIndexes(tables),
        stored_indexes=FakeStoredIndexes(tables),
        jobs=FakeJobs(tables),
        queue=FakeJobQueue(tables),
        plans=FakePlans(tables),
        failures=FakeFailures(tables),
        fragments=FakeFragments(tables),
        actors=FakeActors(tables),
        rescaling=FakeRescaling(tables),
        limits=FakeLimits(tables),
        partial_graphs=FakePartialGraphs(tables),
        snapshots=FakeSnapshots(tables),
        statements=FakeStatements(tables),
        staging_tables=FakeStagingTables(tables),
        workers=FakeWorkers(tables),
        launches=FakeLaunches(tables),
        events=FakeEvents(tables),
        parameters=FakeParameters(tables),
        keys=FakeKeys(tables),
        **portless(_EMPTY),
    )


def _ignored(_: Journal) -> None:
    return


@dataclass
class FakeStores:
    """See `service.ports.meta_store.Stores`. `now` is the database's own clock; `committed` is told what each
    transaction changed, when it has.
    """

    now: Callable[[], datetime]
    committed: Callable[[Journal], None] = _ignored
    tables: Tables = field(default_factory=Tables)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._transaction: Transaction = fake_transaction(self.tables, self.now)

    def begin(self, term: Term | None = None, *, by: Asker | None = None) -> "FakeBegin":
        """One transaction at a time, so that what its term allows cannot change before it ends."""
        del by
        return FakeBegin(self, term)

    async def enter(self, term: Term | None) -> Transaction:
        """Open the transaction."""
        await self._one_at_a_time.acquire()
        if term is not None and self.tables.lease[None].term != term:
            self._one_at_a_time.release()
            raise Deposed(term)
        return self._transaction

    def end(self, *, well: bool) -> None:
        """Commit, or take everything back."""
        journal = self.tables.journal
        try:
            if well and journal:
                self.committed(journal)
                journal.clear()
            else:
                undo(journal)
        finally:
            self._one_at_a_time.release()


@dataclass(slots=True)
class FakeBegin:
    """The block of one transaction. A class, for there are hundreds in a second."""

    stores: FakeStores
    term: Term | None

    async def __aenter__(self) -> Transaction:
        return await self.stores.enter(self.term)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stores.end(well=kind is None)
