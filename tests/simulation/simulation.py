"""One schedule from one seed: a cluster, its users and its faults; then the faults cease, and it has to come to rest.

Everything that a schedule does follows from its seed, so that a seed is all that a failure has to say:
`python -m tests.simulation SEED` lives through it again and gives an account.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from threading import Semaphore
from types import SimpleNamespace
from typing import Any, cast

import structlog

from service.domain import loads
from service.domain.errors import MetaError
from service.domain.graph import GraphStatus
from service.domain.job import JobState
from service.loops import schedule
from service.loops.periodic import Pauses
from service.operations import polling
from service.operations.jobs import snapshots
from service.operations.upkeep import lookup_indexes
from service.ports.launcher import Ended
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, WorkerId
from service.protocol.plan import ScanType
from tests.simulation.checker import Checker
from tests.simulation.coverage import SELDOM, Coverage, Phase
from tests.simulation.decoupling import BRIEFLY, LONG, Decoupling, of_a_job
from tests.simulation.faults import CRASHES, STUCK, Faults
from tests.simulation.kernel import BrokenError, Kernel, NoRestError, Process, Task, finish
from tests.simulation.service_process import Clock, Place, ServiceProcess, Staged, loop
from tests.simulation.stage_session import InTurn, Work
from tests.simulation.worker_process import Services, TaskDml, TaskStore, WorkerProcess
from tests.simulation.workload import Call, Insistence, Users
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_meta_tables import Journal
from tests.support.fake_state_store import StateStore
from tests.support.model import Arrangement
from workers import agent, graph
from workers.backfill import scan
from workers.backfill.reading import Replay
from workers.engines import group_merge, history
from workers.engines import operators as operator_engines
from workers.engines import stage_engines as engines_of_stages
from workers.engines import stages as stage_engines
from workers.runners import operators, stage_scan
from workers.runners.port import Stores

ENDS_WITHIN = 600.0
"""Seconds of a schedule, with all its faults: one that takes longer will not come to rest."""
LOOKS_EVERY = 1.5
"""Seconds between two looks of whoever hears no signal. A signal does not reach the other service."""
STAGING = 4
"""Of so many schedules one has views of stages."""
CALM = 3.0
"""Seconds that all else of an epoch takes where nothing holds it up, beyond its intervals: ten times what it should."""
_UNSETTLED = {
    JobState.INITIAL,
    JobState.QUEUED,
    JobState.CREATING,
    JobState.CANCELLING,
    JobState.DROPPING,
}


class FoundError(AssertionError):
    """A schedule broke an invariant."""


@dataclass(frozen=True)
class Ran:
    """What a schedule came to."""

    seed: int
    epochs: int
    generations: int
    faults: Sequence[str]
    seconds: float
    calm: float
    """Seconds of them of which I10 could be said."""
    coverage: Coverage = field(repr=False)


@dataclass
class _Worker:
    running: WorkerProcess
    graph: GraphId
    doomed: bool = False
    asked: bool = False
    reported: bool = False


@dataclass
class Simulation:
    """`arrangement` and `stores` may be given broken ones."""

    seed: int
    arrangement: type[Arrangement] = Arrangement
    told: Callable[[str], None] | None = None
    actions: int | None = None
    staging: bool | None = None
    """Whether there are views of stages; None leaves it to the seed."""
    services: Services = field(default_factory=Services)
    workers: list[_Worker] = field(default_factory=list[_Worker])
    staged: Staged = field(default_factory=Staged)
    builds: list[Coroutine[Any, Any, object]] = field(default_factory=list[Coroutine[Any, Any, object]])
    ended: bool = False

    def __post_init__(self) -> None:
        self.kernel, self.work = Kernel(self.seed, told=self.told), Work()
        if self.staging is None:
            self.staging = self.seed % STAGING == 0
        random = self.kernel.random
        self.faults = Faults.drawn(random)
        self.machine = Process("machine")
        self.vnode_count = random.choice((1, 2, 3, 6))
        self.page_rows, self.pages_max = random.choice((1, 2, 3)), random.choice((1, 1, 2, 5))
        self.slots, self.hurry = random.choice((1, 2, 3)), random.choice((0.5, 0.8, 0.97))
        self.pace = random.choice((0.1, 0.3, 1.0))
        self.blocks = random.choice((2, 32))
        self.skewed = random.choice((0.0, 0.0, 1.5))
        self.lag = timedelta(seconds=random.choice((0.2, 1, 3)))
        self.span = random.choice((200, 1_000, 10_000)) << 16
        self.index_later = random.choice((3, 100_000))
        self.several = 2 if "slow recovery" in self.faults.rates else random.choice((1, 1, 2))
        if self.faults.rates == STUCK:
            self.skewed = 0.0
        self.state_store = StateStore(lambda: self.kernel.seconds)
        self.stores = FakeStores(Clock(self.kernel, 0.0).now)
        tables = self.stores.tables
        tables.parameters["barrier_interval_ms"] = str(round(self.pace * 1000))
        tables.parameters["checkpoint_frequency"] = random.choice(("1", "1", "1", "2", "3"))
        tables.parameters["max_concurrent_creating_streaming_jobs"] = random.choice(("0", "1", "2"))
        self.checker = Checker(tables, self.state_store, self.staged.rows, self.pace)
        self.coverage = Coverage(tables, self._entered)
        self.ambushes = random.choice((0, 3, 8))
        if not random.randrange(4):
            self.faults.arm()
        # Of each barrier the worker may hear so late, and of its answer the leader.
        barrier = self.pace + 2 * LOOKS_EVERY
        allowed = int(tables.parameters["checkpoint_frequency"]) * barrier + CALM
        self.decoupling = Decoupling(self.kernel, tables, allowed)
        if self.several > 1 and self.skewed:
            # What two clocks say of one lease or deadline may differ by as much as it lasts.
            self.decoupling.excuse(float("inf"))
        self.stores.committed, self.faults.told = self._transaction, self._struck
        self.users = Users(
            self.kernel, tables, self.checker, self.staged, self.vnode_count, self.slots, self.decoupling.excuse
        )
        self.users.unlucky, self.users.staging = not random.randrange(4), self.staging
        if self.faults.rates == STUCK:
            self.users.strategies = (*ScanType, ScanType.SNAPSHOT_BACKFILL, ScanType.SNAPSHOT_BACKFILL)
        self._processes = 0

    def run(self) -> Ran:
        """Live through the schedule. Raises FoundError, whose text begins with the seed."""
        sizes: tuple[tuple[Any, str, Any], ...] = (
            (scan, "BLOCK_VNODES", self.blocks),
            (snapshots, "LAG_MAX", self.lag),
            (snapshots, "INDEX_LATER_ROWS", self.index_later),
            (graph, "Replay", partial(Replay, span=self.span)),
            (history, "time", self.work),
            (lookup_indexes, "asyncio", SimpleNamespace(create_task=self._build)),
            (stage_engines, "ActorHistory", self.work.history),
            (stage_engines, "time", self.work),
            (operator_engines, "ActorHistory", self.work.history),
            (group_merge, "time", self.work),
            (group_merge, "VNODES_FIRST", 1),
        )
        with _simulated(self.kernel, sizes):
            try:
                for _ in range(self.several):
                    self._start_service()
                self.kernel.spawn(self.machine, "users", self._act)
                self.kernel.run(lambda: self.ended, within=ENDS_WITHIN)
                self.checker.at_rest()
                for client in self.users.insisting:
                    client.check()
            except (Exception, BrokenError) as error:
                what = str(error) or type(error).__name__
                if isinstance(error, NoRestError):
                    what = f"{what}: {self._unrest()}"
                raise FoundError(f"seed {self.seed}: {what}") from error
            finally:
                self.kernel.end()
                for build in self.builds:
                    build.close()  # one may never have begun, because its process died
        generation = self.stores.tables.graphs[DATABASE_GRAPH].generation
        faults, calm = self.faults.struck, self.decoupling.calm
        return Ran(self.seed, self.checker.epochs, generation, faults, self.kernel.seconds, calm, self.coverage)

    def _transaction(self, journal: Journal) -> None:
        self.checker.transaction(journal)
        self.coverage.transaction(journal)
        self.decoupling.look()

    def _entered(self, job: JobId, phase: Phase) -> None:
        """What happens to a job in a phase that soon passes is found only by who lies in wait for it."""
        random = self.kernel.random
        if phase is not Phase.QUEUED:
            self.faults.arm()
        if self.ambushes and not self.faults.ceased and not random.randrange(SELDOM.get(phase, 8)):
            self.ambushes -= 1
            after = self.pace * random.random() * random.choice((0, 0, 0.01, 0.1, 1))
            self.kernel.spawn(self.machine, "ambush", partial(self._ambush, job), after=after)

    def _ambush(self, job: JobId) -> None:
        if self.faults.ceased:
            return
        match self.kernel.random.randrange(6):
            case 0 if self.faults.rates and self.faults.rates != STUCK:
                self._kill_one(CRASHES)
            case 1:
                self.faults.press()
            case _:
                self._call("ambush", self.users.ambush(job))

    def _struck(self, kind: str) -> None:
        self.coverage.everybody(kind)
        task = self.kernel.current
        if kind in CRASHES or task is None or not of_a_job(task.name):
            self.decoupling.excuse(LONG)

    def _build(self, build: Coroutine[Any, Any, object]) -> Task:
        """Build an index, beside all else that its process does."""
        assert self.kernel.current is not None
        self.builds.append(build)
        return self.kernel.spawn(self.kernel.current.process, "build", lambda: finish(build))

    # The machine.

    async def supervise(
        self, given_up: Collection[WorkerId], *, kept: Collection[GraphId], missing: Collection[GraphId]
    ) -> Sequence[Ended]:
        """As a launcher does: end what was given up or has nothing left to do, though not always at once; start what is
        missing.
        """
        for one in self.workers:
            process = one.running.process
            one.asked = one.asked or one.graph not in kept
            if process.alive and (one.asked or one.running.worker in given_up) and not one.doomed:
                one.doomed = True
                if not self.faults.strikes("unreachable", process.name):
                    late = self.faults.delay() if self.faults.rates and self.kernel.random.randrange(2) else 0.0
                    self.kernel.spawn(self.machine, "end", partial(self.kernel.kill, process), after=late)
        for needy in missing:
            if not any(one.running.process.alive and not one.doomed and one.graph == needy for one in self.workers):
                self._start_worker(needy)
        gone = [one for one in self.workers if not (one.running.process.alive or one.reported)]
        for one in gone:
            one.reported = True
        return [Ended(one.running.worker, one.graph, "it ended", asked=one.asked) for one in gone]

    async def stop(self) -> None:
        """A launcher may be asked to."""

    def _start_service(self) -> None:
        service = ServiceProcess(
            self._place("s", "service crash", "slow"),
            stores=self.stores,
            state_store=self.state_store,
            staged=self.staged,
            launcher=self,
            skew=self.kernel.random.uniform(-self.skewed, self.skewed),
            staging=bool(self.staging),
        )
        self.services.processes.append(service)
        service.start()

    def _start_worker(self, served: GraphId) -> None:
        place = self._place("w", "worker crash", "slow worker")

        def connect(barrier: Barrier) -> Stores:
            tasks = TaskStore(
                place,
                self.state_store,
                self.checker,
                barrier.graph,
                barrier.generation,
                self.staged.rows,
                self.page_rows,
                self.pages_max,
                self.arrangement,
                self.work,
            )
            return Stores(cast("Any", tasks), cast("Any", TaskDml(tasks)))

        worker = WorkerProcess(place, self.services, connect, self.slots, served)
        self.workers.append(_Worker(worker, served))
        worker.start()

    def _place(self, letter: str, crash: str, slow: str) -> Place:
        self._processes += 1
        return Place(
            self.kernel,
            self.faults,
            Process(f"{letter}{self._processes}"),
            self.hurry,
            crash,
            slow,
            self._notice,
            self.decoupling.excuse,
        )

    # The users.

    def _notice(self) -> None:
        """An operator who sees that something hangs does what helps most of the time."""
        if not self.kernel.random.randrange(3):
            after = self.kernel.random.random() * 2
            self.kernel.spawn(
                self.machine, "operator", lambda: self._call("recover", self.users.recover()), after=after
            )

    def _begin(self) -> None:
        random = self.kernel.random
        for _ in range(random.choice((1, 2, 2, 3))):
            self._call("begin", self.users.begin())
        self.kernel.stop(self.pace * 4)
        for _ in range(random.choice((0, 1, 2, 3))):
            if (call := self.users.create()) is not None:
                self._call("create", call)

    def _act(self) -> None:
        random = self.kernel.random
        self._begin()
        for _ in range(self.actions or random.choice((8, 16, 32))):
            self._keep_services()
            if not random.randrange(25):
                self._kill_one(self.faults.rates)
            if not random.randrange(40) and (alive := self.services.alive()):
                self.decoupling.excuse(BRIEFLY)
                self.kernel.spawn(self.machine, "stop", random.choice(alive).stop)
            call = self.users.next()
            if call is not None:
                self._call("user", call)
            if not random.randrange(20) and (client := self.users.insist()) is not None:
                self.kernel.spawn(self.machine, "client", partial(self._insist, client))
            self.kernel.stop(self.pace * random.choice((0.1, 0.5, 1, 2)))
        self._rest()

    def _rest(self) -> None:
        """Faults cease, and everything comes to its end."""
        self.kernel.tell("the faults cease")
        self.faults.cease()
        turns = 0
        while not self._resting():
            self._keep_services()
            if turns % 4 == 0:
                self._call("lift", self.users.lift())
            turns += 1
            self.kernel.stop(0.5)
            self.checker.published()
        self.ended = True

    def _resting(self) -> bool:
        return not self._unrest()

    def _stays(self, graph: GraphId) -> bool:
        """Whether the graph is that of a created job for ever, and users see what it has committed."""
        snapshot, row = self.stores.tables.snapshots.get(graph), self.stores.tables.graphs[graph]
        if snapshot is None or not snapshot.stays or row.status is not GraphStatus.RUNNING:
            return False
        created = self.stores.tables.jobs[snapshot.job].job.state in {JobState.CREATED, JobState.FAILED}
        return created and row.published == row.committed

    def _unrest(self) -> str:
        """Say what is still under way."""
        tables = self.stores.tables
        row = tables.graphs[DATABASE_GRAPH]
        under_way = {
            "the graph does not run": row.status is not GraphStatus.RUNNING,
            "an epoch is not published": not row.committed
            == row.published
            == self.state_store.published.get(DATABASE_GRAPH),
            "a snapshot job has its graph": any(not self._stays(one) for one in tables.graphs if one != DATABASE_GRAPH),
            "a worker has no graph left": any(
                one.running.process.alive and one.graph not in tables.graphs for one in self.workers
            ),
            "statements wait": bool(tables.statements),
            "commands wait": bool(tables.commands),
            "something is to be removed": bool(tables.cleanups or self.staged.rows),
            "jobs are under way": any(one.job.state in _UNSETTLED for one in tables.jobs.values()),
            "something is not shown": any(
                one.owner is None and not (one.shown or one.dropped) for one in tables.relations.values()
            ),
            "clients wait": not all(one.answered for one in self.users.insisting),
            "somebody is late": self.faults.late > 0,
            "a recovery is asked for": row.recover_asked is not None,
        }
        return ", ".join(what for what, so in under_way.items() if so)

    def _call(self, name: str, call: Call) -> Task | None:
        alive = self.services.alive()
        if not alive:
            return None
        service = self.kernel.random.choice(alive)

        def run() -> None:
            try:
                service.run(call)
            except MetaError as error:
                self.kernel.tell(f"refused: {error}")

        return self.kernel.spawn(service.process, name, run)

    def _insist(self, client: Insistence) -> None:
        while not client.answered:
            called = self._call("client", client.call)
            while called is not None and not called.done:
                self.kernel.stop(0.2)
            self.kernel.stop(0.5)

    def _keep_services(self) -> None:
        while len(self.services.alive()) < self.several:
            self._start_service()

    def _kill_one(self, kinds: Collection[str]) -> None:
        """At no place in particular."""
        processes: list[Process] = []
        if "service crash" in kinds:
            processes += [one.process for one in self.services.alive()]
        if "worker crash" in kinds:
            processes += [one.running.process for one in self.workers if one.running.process.alive]
        if processes:
            killed = self.kernel.random.choice(processes)
            self.decoupling.excuse(LONG)
            self.coverage.everybody("service crash" if killed.name.startswith("s") else "worker crash")
            self.kernel.kill(killed)


class _Future:
    """Of a loop that ends by itself."""

    def add_done_callback(self, _: object) -> None:
        return


@dataclass
class _OneThread:
    """A pool of one thread, which runs what it is given in turn."""

    kernel: Kernel
    size: int
    name: str
    waiting: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])
    running: Task | None = None

    def submit(self, work: Callable[..., None], *args: Any) -> SimpleNamespace:
        assert self.size == 1
        assert self.kernel.current is not None
        done: list[bool] = []

        def run() -> None:
            work(*args)
            done.append(True)

        self.waiting.append(run)
        if self.running is None or self.running.done:
            self.running = self.kernel.spawn(self.kernel.current.process, self.name, self._run)
        return SimpleNamespace(done=lambda: bool(done))

    def shutdown(self, *, wait: bool = True) -> None:
        while wait and self.running is not None and not self.running.done:
            self.kernel.stop(0.05)

    def _run(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


def _wait(kernel: Kernel, futures: Collection[SimpleNamespace], seconds: float) -> SimpleNamespace:
    if not all(future.done() for future in futures):
        kernel.stop(seconds)
    return SimpleNamespace(done=[future for future in futures if future.done()])


@contextmanager
def _simulated(kernel: Kernel, sizes: tuple[tuple[Any, str, Any], ...]) -> Generator[None]:
    """Put the simulation in the place of threads, clocks and Spark."""

    def thread(
        target: Callable[..., None], args: tuple[Any, ...] = (), *, daemon: bool, name: str = "thread"
    ) -> SimpleNamespace:
        def start() -> None:
            assert kernel.current is not None
            kernel.spawn(kernel.current.process, name, lambda: target(*args))

        assert daemon
        return SimpleNamespace(start=start)

    def periodically(
        tick: Callable[[], Awaitable[object]], pauses: Pauses, stop: asyncio.Event, *, name: str
    ) -> tuple[str, Callable[[], None]]:
        return name, loop(kernel, tick, pauses, stop.is_set)

    def now(_: object) -> datetime:
        return Clock(kernel, 0.0).now()

    def create_task(periodic: tuple[str, Callable[[], None]]) -> asyncio.Future[None]:
        assert kernel.current is not None
        kernel.spawn(kernel.current.process, *periodic)
        return cast("Any", _Future())

    places: tuple[tuple[Any, str, Any], ...] = (
        (agent, "threading", SimpleNamespace(Thread=thread, Semaphore=Semaphore)),
        (agent, "ThreadPoolExecutor", partial(_OneThread, kernel)),
        (agent, "wait", partial(_wait, kernel)),
        (agent, "datetime", SimpleNamespace(now=now)),
        (schedule, "asyncio", SimpleNamespace(Event=asyncio.Event, create_task=create_task)),
        (schedule, "run_periodically", periodically),
        (stage_scan, "find_failing_row", _nobody),
        (engines_of_stages, "Copiers", partial(InTurn, kernel)),
        (operators, "Copiers", partial(InTurn, kernel)),
        (history, "page_rows_after", _as_it_is),
        *sizes,
        (loads, "ROWS_MAX", 3),
        # Whoever waits looks again at every signal; without one, a second more or less only costs time.
        (polling, "REREAD", timedelta(seconds=LOOKS_EVERY)),
        (schedule, "_IDLE_SECONDS", LOOKS_EVERY),
    )
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    logged = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # A schedule takes milliseconds, and looking for garbage a fifth of them.
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        structlog.configure(**logged)
        for (module, name, _), value in zip(places, before, strict=True):
            setattr(module, name, value)


def _as_it_is(given: object, *_: object, **__: object) -> object:
    return given


def _nobody(*_: object) -> None:
    return
