"""One worker process: the real agent and the real graph executor over HTTP that loses messages, a state store in memory
and, in Spark's place, the plain-data reference of the arrangement executor.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Protocol, cast

from typing_extensions import override

from service.domain.errors import Fenced, MetaError
from service.operations.barriers import worker_calls
from service.operations.world import World
from service.protocol.api import Gone, Registered, Registration
from service.protocol.barrier import Barrier
from service.protocol.dml import DmlLimits, InsertStaged, Statement, StatementResult, Unfinished
from service.protocol.ids import DATABASE_GRAPH, ActorId, Epoch, FragmentId, Generation, GraphId, RelationId, WorkerId
from service.protocol.plan import FragmentKind, FragmentPlan, JobPlan, OperatorPlan, Prefix, TableScanPlan
from service.protocol.relation import Relation
from service.protocol.report import Collected, Failed, FragmentReport
from service.protocol.request import Rejected, Request, Verified
from service.protocol.stage import Engine
from service.protocol.table_format import POSTGRES
from tests.simulation import dml, shapes
from tests.simulation.decoupling import BRIEFLY
from tests.simulation.kernel import BrokenError, Kernel, Killed, Task
from tests.simulation.service_process import Place, ServiceProcess
from tests.simulation.stage_session import Session, Slice, Work
from tests.simulation.stages import Meaning
from tests.support.fake_state_store import GenerationOverError, Source, StateStore, StoredTable, Target, Writing
from tests.support.http import changed
from tests.support.idle_spark import idle_spark
from tests.support.model import Arrangement, Key, Passed, Reading, Version, VersionedTable
from workers.agent import Agent
from workers.backfill.budget import Budget
from workers.backfill.positions import Positions
from workers.backfill.reading import Reading as ReadWindow
from workers.backfill.scan import ActorState
from workers.backfill.stages import BoundStage
from workers.bootstrap import _failure as failure_of  # pyright: ignore[reportPrivateUsage]
from workers.engines.history import ActorHistory
from workers.engines.operators import OperatorEngine, OperatorTask
from workers.engines.port import ActorOutcome, ScanTask, StageTask, TaskEngine
from workers.engines.stage_engines import StageEngines
from workers.graph import GraphExecutor
from workers.meta_client import MetaClient, ServiceAwayError, StaleWorkerError
from workers.runners.failure import JobFailedError
from workers.runners.history import HistoryScan
from workers.runners.operators import Operator
from workers.runners.port import FragmentRunner, RunningEpoch, Stores
from workers.runners.port import Place as RunnerPlace
from workers.runners.stage_scan import StageScan
from workers.state_store.port import DmlOutcome, StageSession

_AT_ONCE = timedelta(0)
POLL = 2.0
HTTP_TIMEOUT = 6.0
"""Longer than a long poll takes, shorter than the real one: a schedule has a minute."""


class StateStoreError(Exception):
    """A task could not reach the state store."""


class Watching(Protocol):
    """Is told of every page that is read (I4)."""

    def page_read(
        self, epoch: Epoch, fragment: FragmentId, actor: tuple[GraphId, Generation, ActorId], *, rows: int, at: float
    ) -> None: ...


@dataclass
class Services:
    """The address of the service, behind which there may be none, one or several processes."""

    processes: list[ServiceProcess] = field(default_factory=list[ServiceProcess])

    def alive(self) -> list[ServiceProcess]:
        return [one for one in self.processes if one.process.alive]


@dataclass
class _Box:
    """The answer to one call."""

    waiting: Task
    came: bool = False
    value: Any = None
    error: Exception | None = None


@dataclass
class SimulatedClient:
    """The calls of `workers.meta_client.MetaClient`, over a network."""

    place: Place
    services: Services

    def register(self, registration: Registration) -> Registered:
        return self._call("register", lambda world: worker_calls.register(world, registration))

    def next_barrier(self, worker: WorkerId, taken: Mapping[GraphId, Epoch]) -> Barrier | Gone | None:
        return self._call("poll", lambda world: worker_calls.next_barrier(world, worker, taken))

    def answer(self, answer: Collected | Failed) -> bool:
        """Return whether it was taken. As the real one: that it is of the past says nothing of the worker."""
        try:
            self._call("answer", lambda world: worker_calls.answer(world, answer))
        except StaleWorkerError:
            return False
        return True

    def next_request(self, worker: WorkerId, graph: GraphId) -> Request | None:
        """A long poll that looks once: nobody asks, and to look at every signal takes a tenth of a schedule."""
        look = self._call(
            "request", lambda world: worker_calls.next_request(changed(world, poll_wait=_AT_ONCE), worker, graph)
        )
        self.place.kernel.stop(POLL)
        return look

    def respond(self, worker: WorkerId, response: Verified | Rejected) -> None:
        self._call("respond", lambda world: worker_calls.respond(world, worker, response))

    def _call(self, name: str, body: Callable[[World], Awaitable[Any]]) -> Any:
        kernel, faults = self.place.kernel, self.place.faults
        self.place.pass_by(f"http {name}")
        alive = self.services.alive()
        if not alive:
            kernel.stop(0.05)
            raise ServiceAwayError("connection refused")
        service = kernel.random.choice(alive)
        if faults.strikes("doubled", name):
            kernel.spawn(service.process, f"{name}, again", self._handler(service, body, None), after=faults.delay())
        if faults.strikes("lost request", name):
            self.place.noticed()
            kernel.stop(HTTP_TIMEOUT)
            raise ServiceAwayError("timeout")
        task = kernel.current
        assert task is not None
        box = _Box(task)
        kernel.spawn(service.process, name, self._handler(service, body, box))
        kernel.stop(HTTP_TIMEOUT)
        if faults.strikes("lost answer", name):
            self.place.noticed()
            raise ServiceAwayError("connection reset")
        if not box.came:
            raise ServiceAwayError("timeout")
        if box.error is not None:
            raise (
                StaleWorkerError(str(box.error)) if isinstance(box.error, Fenced) else ServiceAwayError(str(box.error))
            )
        return box.value

    def _handler(
        self, service: ServiceProcess, body: Callable[[World], Awaitable[Any]], box: _Box | None
    ) -> Callable[[], None]:
        kernel = self.place.kernel

        def handle() -> None:
            value, error = None, None
            try:
                value = service.run(body)
            except MetaError as failed:
                error = failed
            except Killed:
                if box is not None:
                    kernel.wake(box.waiting)
                raise
            if box is not None:
                box.came, box.value, box.error = True, value, error
                kernel.wake(box.waiting)

        return handle


@dataclass
class TaskStore:
    """The state store of a worker of one generation, with the capabilities of Postgres."""

    capabilities: ClassVar = POSTGRES
    place: Place
    store: StateStore
    watching: Watching
    graph: GraphId
    generation: Generation
    staged: dml.Staged
    page_rows: int
    pages_max: int
    arrangement: type[Arrangement]
    work: Work
    scan: HistoryScan | None = None
    """What runs now."""
    began: float = 0.0
    """When its buckets were filled."""

    def table(self, relation: RelationId) -> StoredTable:
        try:
            return self.store.tables[relation]
        except KeyError:
            raise StateStoreError(f"relation state.t_{relation} does not exist") from None

    def has_rows(self, relation: Relation, count: int, *, at: Epoch) -> bool:
        """Whether a relation has so many rows as of an epoch."""
        self.pass_by("before it counts rows")
        return sum(version.start <= at < version.end for version in self.table(relation.id).versions) >= count

    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        """Whether any version began or ended in `(after, upto]`."""
        self.pass_by("before it looks for changes")
        ends = [end for version in self.table(relation.id).versions for end in (version.start, version.end)]
        return any(after < end <= upto for end in ends)

    def pass_by(self, point: str) -> None:
        """Stop here, die here, or find the store away."""
        self.place.pass_by(f"worker {point}")
        if self.place.faults.strikes("error", point):
            self.place.kernel.tell(f"the task fails at {point}")
            raise StateStoreError(f"failed {point}")

    @contextmanager
    def staging(self, bound: BoundStage, epoch: Epoch, *, allowed_seconds: float | None = None) -> Generator[Session]:
        """See `workers.state_store.port.CopyingStore`. Nothing takes time here."""
        del allowed_seconds
        writing = Writing(self.store, self.graph, self.generation)
        yield Session(self, self.work, Meaning.of(bound), epoch, writing)
        self.commit(writing)

    def page_read(self, curr: Epoch, actor: ActorId, rows: int) -> None:
        """Tell who watches that a page was read now."""
        assert self.scan is not None
        reader = (self.graph, self.generation, actor)
        self.watching.page_read(curr, self.scan.state.id, reader, rows=rows, at=self.began)

    def commit(self, writing: Writing) -> int:
        """Return how many versions the transaction closed."""
        self.pass_by("before its commit")
        if self.place.faults.strikes("slow commit", "worker"):
            self.place.hold_up("worker before its commit")
        closed = writing.commit()
        self.pass_by("after its commit")
        return closed


@dataclass
class TaskDml:
    """The worker's DML login."""

    tasks: TaskStore

    def run(self, statements: Sequence[Statement], epoch: int, _limits: DmlLimits) -> DmlOutcome:
        tasks = self.tasks
        tasks.pass_by("before dml")
        statements, unfinished = self._in_time(statements)
        wanted = {one.relation.id for one in statements}
        tables = {one: tasks.store.tables[one] for one in sorted(wanted) if one in tasks.store.tables}
        before = {relation: table.alive() for relation, table in tables.items()}
        rows = {relation: {key: one.row for key, one in alive.items()} for relation, alive in before.items()}
        touched: dict[RelationId, set[Key]] = {relation: set() for relation in tables}
        results: list[StatementResult] = []
        for statement in statements:
            lost = isinstance(statement, InsertStaged) and statement.id not in tasks.staged
            if statement.relation.id in tables and not lost:
                result, keys = dml.apply(statement, rows[statement.relation.id], tasks.staged)
                touched[statement.relation.id] |= keys
            else:
                result = dml.undefined(statement)
            results.append(result)
        writing = Writing(tasks.store, tasks.graph, tasks.generation)
        for relation, table in tables.items():
            for key in sorted(touched[relation], key=str):
                if key in before[relation]:
                    writing.closed.append((table, key, epoch))
                if key in rows[relation]:
                    writing.inserted.append((table, Version(table.vnode(key), key, rows[relation][key], epoch)))
        tasks.commit(writing)
        changed = {one.relation.id for one, result in zip(statements, results, strict=True) if result.affected}
        return DmlOutcome(
            tuple(results),
            tuple(one.relation.id for one in statements),
            {relation: len(rows[relation]) - len(before[relation]) for relation in tables},
            frozenset(changed),
            unfinished,
        )

    def _in_time(self, statements: Sequence[Statement]) -> tuple[Sequence[Statement], Unfinished]:
        """Return the statements that the epoch's budget is enough for, and what becomes of the others: the one at
        which it ends was the slow one, or was begun late.
        """
        place = self.tasks.place
        if len(statements) < 2 or not place.faults.strikes("slow statement", "worker"):
            return statements, Unfinished()
        ends = place.kernel.random.randrange(len(statements))
        slow, rest = statements[ends].id, [one.id for one in statements[ends + 1 :]]
        if ends == 0 or place.kernel.random.random() < 0.5:
            return statements[:ends], Unfinished(set_aside=(slow,), not_reached=tuple(rest))
        return statements[:ends], Unfinished(not_reached=(slow, *rest))


class PlainEngine:
    """In the place of Spark: the same epoch, row by row."""

    def __init__(self, scan: ScanTask) -> None:
        self.scan, self.query = scan, scan.bound.stage
        self.tasks = cast("TaskStore", scan.store)

    def run(self, task: StageTask) -> list[ActorOutcome]:
        indexes = list(range(len(task.actors)))
        self.tasks.place.kernel.random.shuffle(indexes)
        return [self._actor(task, index) for index in indexes]

    def _actor(self, task: StageTask, index: int) -> ActorOutcome:
        tasks, actor, driver = self.tasks, task.actors[index], self.scan.driver.id
        window = task.windows[driver]
        reading = ReadWindow(window.after if driver in task.changed else window.upto, window.upto, task.at[driver])
        running = tasks.scan
        assert running is not None
        source = Source(tasks.table(driver), reading, task.curr)
        writing = Writing(tasks.store, tasks.graph, tasks.generation)
        target = Target(writing, tasks.table(self.scan.bound.target.id), source, shapes.branch_of(self.query))
        state = ActorState(
            running.state.actors[index].id,
            Positions(
                actor.runs,
                {position.vnode: position for position in actor.positions},
                block_vnodes=self.scan.block_vnodes,
            ),
            Budget(actor.permits, tasks.began, float(actor.permits or 0)),
        )
        pages: list[int] = []

        def passed(point: Passed) -> None:
            if point.point == "page_read":
                pages.append(point.rows)
                tasks.page_read(task.curr, point.actor, point.rows)
            tasks.pass_by(point.point)

        executor = tasks.arrangement(
            cast("VersionedTable", source),
            cast("VersionedTable", target),
            shapes.query_of(self.query),
            running.state,
            passed,
        )
        # The epoch before this one, where nothing is said to have changed since.
        prev = min(reading.after, task.curr - 1)
        executor.run(state, prev, task.curr, Reading(tasks.page_rows, tasks.pages_max, tasks.began))
        closed = 0
        if writing.closed or writing.inserted:
            closed = tasks.commit(writing)
        return ActorOutcome(
            actor=index,
            positions=state.positions.take_changed(),
            snapshot_rows=sum(pages),
            page_rows=task.page_rows,
            upstream_rows=source.halves,
            inserted=len(writing.inserted),
            closed=closed,
            reading_seconds=0.0,
            used_slice=False,
        )


_WORLDS_FAULT = (StateStoreError, GenerationOverError, InterruptedError, shapes.CannotTransformError)
"""What may go wrong in an epoch. All else is ours: an agent would report it, and a recovery hide it."""


class SimulatedExecutor(GraphExecutor):
    """The real one, which says what runs when it runs."""

    @override
    def run(self, barrier: Barrier) -> Collected:
        try:
            return super().run(barrier)
        except Exception as error:
            if barrier.graph == DATABASE_GRAPH and self.stores is not None:
                cast("TaskStore", self.stores.versioned).place.disturbed(BRIEFLY)
            cause = error.__cause__ if isinstance(error, JobFailedError) else error
            if isinstance(cause, _WORLDS_FAULT):
                raise
            raise BrokenError(str(error) or type(error).__name__) from error


@dataclass
class PlainEngines(StageEngines):
    """The real ones, but for Spark's."""

    @override
    def projecting(self) -> TaskEngine:
        return PlainEngine(self.scan_task)


@dataclass(kw_only=True)
class SimulatedScan(StageScan):
    """The real one of a projection, which says that it runs, with an engine of the simulation."""

    @override
    def _compute(self, epoch: RunningEpoch, task: StageTask) -> Sequence[ActorOutcome]:
        tasks = cast("TaskStore", epoch.stores.versioned)
        tasks.scan, tasks.began = self, tasks.place.kernel.seconds
        return super()._compute(epoch, task)

    @override
    def _engines(self, epoch: RunningEpoch) -> StageEngines:
        if self.engines is None:
            self.engines = PlainEngines(self.spark, epoch.stores.versioned, self.bound, self.state.block_vnodes)
        return self.engines


@dataclass(kw_only=True)
class SimulatedStageScan(StageScan):
    """The real one, which says that it runs, and whose slice ends after some pages."""

    @override
    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        tasks = cast("TaskStore", epoch.stores.versioned)
        tasks.scan, tasks.began = self, tasks.place.kernel.seconds
        self.page_rows, self.turns.paces = tasks.page_rows, dict.fromkeys(Engine, Slice(0.0, tasks.pages_max))
        return super().run(epoch)


@dataclass
class SimulatedEngine(OperatorEngine):
    """The real one, which says of which scan a page is passed."""

    scans: Mapping[str, HistoryScan] = field(default_factory=dict[str, HistoryScan])

    @override
    def _passed(self, session: StageSession, task: OperatorTask, alias: str) -> list[ActorHistory]:
        cast("Session", session).tables.scan = self.scans[alias]
        return super()._passed(session, task, alias)


@dataclass(kw_only=True)
class SimulatedOperator(Operator):
    """The real one, whose pages have some rows, however long they take."""

    @override
    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        tasks = cast("TaskStore", epoch.stores.versioned)
        tasks.began = tasks.place.kernel.seconds
        for scan in self.scans.values():
            scan.page_rows, scan.read = tasks.page_rows * tasks.pages_max, 0
        return super().run(epoch)

    @override
    def _engine(self, epoch: RunningEpoch) -> OperatorEngine:
        made = super()._engine(epoch)
        scans = {scan.alias: scan for scan in self.scans.values()}
        self.engine = SimulatedEngine(made.store, made.bound, made.copiers, made.block_vnodes, scans)
        return self.engine


def _join(
    runners: Mapping[RunnerPlace, FragmentRunner], job: JobPlan, fragment: FragmentPlan, now: float
) -> FragmentRunner:
    spark = _SPARK
    if isinstance(fragment, OperatorPlan):
        return SimulatedOperator.join(spark, runners, job, fragment, now)
    assert isinstance(fragment, TableScanPlan)
    if isinstance(fragment.query, Prefix):
        return SimulatedOperator.join(spark, runners, job, fragment, now)
    scan = SimulatedScan if shapes.is_branch(fragment.query) else SimulatedStageScan
    return scan.join(spark, {}.__getitem__, runners, job, fragment, now)


@dataclass
class Turn:
    """What the graphs of snapshot jobs share: one of them runs a Spark job at a time."""

    kernel: Kernel
    taken: bool = False

    def __enter__(self) -> None:
        while self.taken:
            self.kernel.stop(0.05)
        self.taken = True

    def __exit__(self, *_: object) -> None:
        self.taken = False


@dataclass
class StopEvent:
    """A `threading.Event` of which only the waiting is simulated."""

    place: Place
    stopped: bool = False

    def is_set(self) -> bool:
        return self.stopped

    def set(self) -> None:
        self.stopped = True

    def wait(self, timeout: float) -> bool:
        self.place.kernel.stop(timeout)
        return self.stopped


class WorkerProcess:
    """A process with its agent."""

    def __init__(
        self,
        place: Place,
        services: Services,
        connect: Callable[[Barrier], Stores],
        slots: int,
        graph: GraphId = DATABASE_GRAPH,
    ) -> None:
        self.place, self.process = place, place.process
        self.worker = WorkerId(place.process.name)
        history = Turn(place.kernel)

        def executor(graph: GraphId) -> SimulatedExecutor:
            turn = nullcontext() if graph == DATABASE_GRAPH else history
            spark = _SPARK
            joins = {FragmentKind.STREAM_SCAN: _join, FragmentKind.OPERATOR: _join}
            seconds = partial(getattr, place.kernel, "seconds")
            return SimulatedExecutor(self.worker, spark, connect, joins, turn=turn, clock=seconds)

        self.agent = Agent(
            Registration(worker=self.worker, graph=graph, pid=1, host="simulated", parallelism=slots),
            cast("MetaClient", SimulatedClient(place, services)),
            executor,
            _refused,
            lambda barrier, error: failure_of(self.worker, barrier, error),
            stop=cast("Any", StopEvent(place)),
        )

    def start(self) -> None:
        self.place.kernel.spawn(self.process, "epochs", self._run)

    def _run(self) -> None:
        """A process ends when its main thread does."""
        with suppress(StaleWorkerError):
            self.agent.run()
        self.place.kernel.kill(self.process)


_SPARK = idle_spark()


def _refused(request: Request) -> Rejected:
    return Rejected(id=request.id, error="nobody asks in a simulation")
