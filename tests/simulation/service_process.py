"""One service process: the real loops' ticks over ports that stop, fail and die where the seed says."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from service.domain.errors import MetaError, Unavailable
from service.domain.leadership import RENEW_EVERY
from service.loops.periodic import Pauses
from service.loops.schedule import ATTEND_EVERY, Schedule
from service.operations import idempotency
from service.operations.barriers import leadership
from service.operations.shared_reads import Read, Together
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.launcher import Launcher
from service.ports.meta_store import Transaction
from service.ports.signals import Topic
from service.protocol.ids import StatementId, Term
from service.telemetry.metrics import Metrics
from service.turns import Turns
from tests.simulation.decoupling import LONG, of_a_job
from tests.simulation.faults import Faults
from tests.simulation.kernel import Kernel, Process, Task, finish
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeLookups, FakePins, FakeTables, StateStore
from tests.support.http import world_of
from tests.support.meta_store import NOW

T = TypeVar("T")


class Alone(Together[Any, Any]):
    """Each caller reads for itself: there is no event loop here on which they could join."""

    async def get(self, key: Any, read: Read[Any, Any]) -> Any:
        return (await read([key])).get(key)


BARRIER_DEADLINE = timedelta(seconds=4)
WORKER_LEASE = timedelta(seconds=3)
_METRICS = Metrics()
"""Costs more to make than an epoch to run, and nobody reads it here."""


@dataclass
class Place:
    """Where something may happen to a process: it stops there for a moment, or for long, or for ever."""

    kernel: Kernel
    faults: Faults
    process: Process
    hurry: float
    """How often it goes on at once."""
    crash: str
    """The kind of fault that ends it."""
    slow: str
    """The kind that holds it up."""
    noticed: Callable[[], None]
    """Told when somebody who waits for this process has reason to grow impatient."""
    disturbed: Callable[[float], None]
    """Told what may hold the database graph up, and for how many seconds."""

    def pass_by(self, name: str) -> None:
        """Let others go on, and strike where a fault is due."""
        kernel, faults = self.kernel, self.faults
        kernel.live()
        if faults.rates:
            if faults.strikes(self.crash, name):
                kernel.tell(f"{self.crash} at {name}")
                kernel.kill(self.process)
            if faults.strikes(self.slow, name):
                self.hold_up(name)
                return
            if of_a_job(kernel.live().name) and faults.strikes("stuck job", name):
                self._stand_still(name, faults.standstill())
                return
        if kernel.random.random() >= self.hurry:
            kernel.stop(kernel.random.random() * 0.01)

    def hold_up(self, name: str) -> None:
        """Take seconds; it may be the whole process that does."""
        seconds = self.faults.delay()
        frozen = not self.kernel.random.randrange(2)
        if frozen:
            self.process.frozen_until = self.kernel.seconds + seconds
        self.kernel.tell(f"{name} takes {seconds} s{', as does all else there' if frozen else ''}")
        self.noticed()
        if frozen or not of_a_job(self.kernel.live().name):
            self.disturbed(seconds + LONG)
        self._stand_still(name, seconds)

    def _stand_still(self, name: str, seconds: float) -> None:
        self.kernel.tell(f"{name} is passed in {seconds} s")
        self.faults.late += 1
        try:
            self.kernel.stop(seconds)
        finally:
            self.faults.late -= 1

    def reach(self, store: str) -> None:
        """Raise Unavailable where a store is away."""
        self.pass_by(store)
        if self.faults.strikes("away", store):
            self.kernel.tell(f"{store} is away")
            raise Unavailable(f"{store} is away")

    def heard(self, store: str) -> None:
        """Raise Unavailable where a store's confirmation is lost."""
        self.pass_by(f"{store}, done")
        if self.faults.strikes("unheard", store):
            self.kernel.tell(f"{store} did it, unheard")
            raise Unavailable(f"{store} did not say whether it did")


@dataclass
class Clock:
    """`skew`: no two machines agree about the time."""

    kernel: Kernel
    skew: float

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.kernel.seconds + self.skew)

    def monotonic(self) -> float:
        return self.kernel.seconds


@dataclass
class SimulatedSignals:
    kernel: Kernel
    faults: Faults
    waiting: list[tuple[Topic, Task]] = field(default_factory=list[tuple[Topic, Task]])
    told: Counter[Topic] = field(default_factory=Counter[Topic])
    told_all: int = 0

    def heard(self, topic: Topic = None) -> int:
        return self.told_all + self.told[topic]

    def notify(self, *topics: Topic) -> None:
        if self.faults.strikes("unnotified", "signal"):
            return
        self.told.update(topics)
        self.told_all += not topics
        for one in [one for one in self.waiting if not topics or one[0] in topics]:
            self.kernel.wake(one[1], after=self.kernel.random.random() * 0.002)
            self.waiting.remove(one)

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        if since is not None and since != self.heard(topic):
            return
        task = self.kernel.current
        assert task is not None
        self.waiting.append((topic, task))
        self.kernel.stop(timeout_seconds)
        if (topic, task) in self.waiting:
            self.waiting.remove((topic, task))


@dataclass
class SimulatedStores:
    """The meta store at the other end of a connection."""

    stores: FakeStores
    place: Place

    def begin(self, term: Term | None = None, *, by: Asker | None = None) -> "_Begin":
        del by
        return _Begin(self.stores, self.place, term)


@dataclass(slots=True)
class _Begin:
    stores: FakeStores
    place: Place
    term: Term | None

    async def __aenter__(self) -> Transaction:
        self.place.reach("meta store")
        return await self.stores.enter(self.term)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        wrote = bool(self.stores.tables.journal)
        self.stores.end(well=kind is None)
        # Where nothing was done it makes no difference whether one hears of it.
        if wrote and kind is None:
            self.place.heard("meta store")


@dataclass
class Staged:
    """Rows that wait outside any epoch; those that are being filled are held."""

    rows: dict[StatementId, Sequence[tuple[int, int]]] = field(
        default_factory=dict[StatementId, Sequence[tuple[int, int]]]
    )
    held: set[StatementId] = field(default_factory=set[StatementId])

    @contextmanager
    def filling(self, statement: StatementId, rows: Sequence[tuple[int, int]]) -> Generator[None]:
        """Stage rows, and hold them: where the block is left before they are accepted, they are nobody's."""
        self.rows[statement] = rows
        self.held.add(statement)
        try:
            yield
        finally:
            self.held.discard(statement)


@dataclass
class SimulatedStaging:
    """The end of staged rows; how they come is the schedule's business."""

    staged: Staged
    place: Place

    async def unheld(self) -> Sequence[StatementId]:
        return sorted(self.staged.rows.keys() - self.staged.held)

    async def drop(self, statement: StatementId) -> None:
        self.place.reach("staging")
        self.staged.rows.pop(statement, None)


class ServiceProcess:
    """A process with its world, its loops and its doors."""

    def __init__(
        self,
        place: Place,
        *,
        stores: FakeStores,
        state_store: StateStore,
        staged: Staged,
        launcher: Launcher,
        skew: float,
        staging: bool,
    ) -> None:
        self.place, self.process, self.kernel, self.staging = place, place.process, place.kernel, staging
        self.world = world_of(
            SimulatedStores(stores, place),
            tables=FakeTables(state_store, self._passing),
            fences=FakeFences(state_store, self._passing),
            lookups=FakeLookups(state_store, self._passing),
            pins=FakePins(state_store),
            answers=Alone(),
            awaited=Alone(),
            unfinished=Alone(),
            staging=SimulatedStaging(staged, place),
            clock=Clock(place.kernel, skew),
            signals=SimulatedSignals(place.kernel, place.faults),
            barriers=SimulatedSignals(place.kernel, place.faults),
            requests=SimulatedSignals(place.kernel, place.faults),
            lease=WORKER_LEASE,
            barrier_deadline=BARRIER_DEADLINE,
            metrics=_METRICS,
            limits=Turns("changes of limits", running=1_000, waiting=0),  # its calls have no event loop to wait in
        )
        self.schedule = Schedule(self.world, self.process.name, launcher)

    def start(self) -> None:
        """Run the loops that `service.loops.schedule` has."""
        schedule, random = self.schedule, self.kernel.random
        loops = (
            ("elector", schedule.elect, Pauses(RENEW_EVERY)),
            ("barriers", schedule.pulse, Pauses(timedelta(0))),
            ("queue", schedule.start_jobs, Pauses(timedelta(0))),
            ("cleanup", schedule.clean_up, Pauses(timedelta(0))),
            ("graphs", schedule.attend, Pauses(ATTEND_EVERY)),
            ("claims", schedule.renew, Pauses(idempotency.RENEW_EVERY)),
            ("maintenance", schedule.tidy, Pauses(timedelta(seconds=random.choice((0.5, 5))))),
            ("launcher", schedule.supervise, Pauses(timedelta(seconds=1))),
            ("lookups", schedule.index, Pauses(timedelta(0))),
        )
        # A schedule without stages needs no index.
        for name, tick, pauses in loops if self.staging else loops[:-1]:
            self.kernel.spawn(self.process, name, loop(self.kernel, tick, pauses), after=random.random() * 0.01)

    def stop(self) -> None:
        """End as `Schedule.run` does: let others lead at once."""
        resigning = self.kernel.spawn(self.process, "resigning", self._resign)
        while not resigning.done:
            self.kernel.stop(0.05)

    def _resign(self) -> None:
        with suppress(MetaError):
            finish(leadership.resign(self.world, self.process.name))
        self.kernel.kill(self.process)

    def run(self, body: Callable[[World], Awaitable[T]]) -> T:
        """Carry a call out, within a task of this process."""
        return finish(cast("Coroutine[Any, Any, T]", body(self.world)))

    def _passing(self, name: str) -> None:
        """The port names the place: what came before it was done."""
        if name in {"before fence", "before roll back"} and self.place.faults.strikes("slow recovery", name):
            self.place.hold_up(name)
        if name.startswith("after"):
            self.place.heard(f"state store {name}")
        else:
            self.place.reach(f"state store {name}")


def loop(
    kernel: Kernel, tick: Callable[[], Awaitable[object]], pauses: Pauses, over: Callable[[], bool] = lambda: False
) -> Callable[[], None]:
    """As `service.loops.periodic` runs a tick, but that only what the world did wrong is passed over."""

    def run() -> None:
        failures = 0
        while not over():
            try:
                finish(cast("Any", tick()))
            except MetaError as error:
                failures += 1
                kernel.tell(f"failed: {error}")
            else:
                failures = 0
            kernel.stop(pauses.after(failures) + 1e-4)

    return run
