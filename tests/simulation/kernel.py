"""One thread, one clock, one seed: every process of the simulation is a set of greenlets that run one after the other.

Production code is run as it is: its coroutines never really suspend, for the ports beneath them stop the greenlet
instead, and its blocking calls stop it in the same way. Who goes on next, and how much later, is decided by the seed.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, TypeVar

import greenlet

T = TypeVar("T")
_greenlet: Any = greenlet


class Killed(BaseException):
    """The process of this task is gone. No handler of production code catches it."""


class BrokenError(BaseException):
    """Something is not so that has to be. Production code, which lives on after most errors, does not survive it."""


class NoRestError(BrokenError):
    """What was waited for did not come within the time that it may take."""


@dataclass(eq=False)
class Process:
    """What dies at once, and what stands still at once: no task of it goes on before `frozen_until`."""

    name: str
    alive: bool = True
    frozen_until: float = 0.0
    tasks: list["Task"] = field(default_factory=list["Task"])


@dataclass(eq=False)
class Task:
    """One thread of a process. `turn` grows whenever it goes on: older appointments of it are void."""

    name: str
    process: Process
    run: Callable[[], object]
    runner: "_Runner | None" = None
    turn: int = 0
    done: bool = False
    killed: bool = False

    def cancel(self) -> None:
        """Go on: what is cancelled may have ended already, and nobody may rely on it."""


class _Runner:
    """A greenlet that runs one task after another: to make one costs as much as a whole look at the graph."""

    idle: Final[list["_Runner"]] = []

    def __init__(self) -> None:
        self.task: Task | None = None
        self.failure: BaseException | None = None
        self.greenlet: Any = _greenlet.greenlet(self._run)

    def _run(self) -> None:
        while True:
            assert self.task is not None
            try:
                if not self.task.killed:
                    self.task.run()
            except Killed:
                pass
            except _greenlet.GreenletExit:
                raise
            except BaseException as failure:  # noqa: BLE001 - handed to whoever runs the simulation
                self.failure = failure
            self.task.done, self.task.runner, self.task = True, None, None
            _Runner.idle.append(self)
            self.greenlet.parent.switch()


class Kernel:
    """The scheduler. Methods that stop are called by tasks; `run` by whoever holds the simulation."""

    def __init__(self, seed: int, *, told: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.seconds = 0.0
        self.told = told
        self.current: Task | None = None
        self._queue: list[tuple[float, int, int, Task]] = []
        self._number = 0
        self._hub: Any = None
        self._tasks: list[Task] = []

    def tell(self, text: str) -> None:
        """Add a line to the account of a schedule that is replayed."""
        if self.told is not None:
            name = "-" if self.current is None else f"{self.current.process.name}.{self.current.name}"
            self.told(f"{self.seconds:10.4f} {name}: {text}")

    def spawn(self, process: Process, name: str, run: Callable[[], object], *, after: float = 0.0) -> Task:
        """Let a process do something from now on; a dead one does nothing."""
        task = Task(name, process, run, done=not process.alive)
        if process.alive:
            if len(process.tasks) > 32:
                process.tasks = [one for one in process.tasks if not one.done]
            process.tasks.append(task)
            self._tasks.append(task)
            self._appoint(task, after)
        return task

    def live(self) -> Task:
        """Return the task that calls. Raises Killed where it has ended: its handlers do nothing after its death."""
        task = self.current
        assert task is not None
        if task.killed:
            raise Killed
        return task

    def stop(self, seconds: float) -> None:
        """Let others run for so long, or until this task is woken."""
        self._appoint(self.live(), seconds)
        self._hub.switch()
        self.live()

    def wake(self, task: Task, *, after: float = 0.0) -> None:
        """Let a task that stopped go on earlier."""
        if not task.done:
            self._appoint(task, after)

    def kill(self, process: Process) -> None:
        """End a process: each of its tasks ends where it stands. Raises Killed where the caller is one of them."""
        if process.alive:
            self.tell(f"{process.name} is killed")
        process.alive = False
        for task in process.tasks:
            if not task.done:
                task.killed = True
                if task is not self.current:
                    self._appoint(task, 0.0)
        process.tasks = []
        if self.current is not None and self.current.killed:
            raise Killed

    def run(self, until: Callable[[], bool], *, within: float) -> None:
        """Let tasks run until something is so. Raises what a task raises, and NoRestError when it takes too long."""
        self._hub = _greenlet.getcurrent()
        deadline = self.seconds + within
        while not until():
            if not self._queue or self.seconds > deadline:
                raise NoRestError("it does not come to rest")
            self._step()

    def end(self) -> None:
        """End every task, so that its runner can serve the next simulation."""
        self._hub = _greenlet.getcurrent()
        for task in self._tasks:
            task.killed = True
        for task in self._tasks:
            if not task.done and task.runner is not None:
                self._resume(task)
        self._queue.clear()

    def _appoint(self, task: Task, seconds: float) -> None:
        self._number += 1
        heappush(self._queue, (self.seconds + seconds, self._number, task.turn, task))

    def _step(self) -> None:
        at, _, turn, task = heappop(self._queue)
        if task.done or task.turn != turn:
            return
        self.seconds = max(self.seconds, at)
        if task.process.frozen_until > self.seconds and not task.killed:
            self._appoint(task, task.process.frozen_until - self.seconds)
            return
        failure = self._resume(task)
        if failure is not None:
            raise failure

    def _resume(self, task: Task) -> BaseException | None:
        if task.runner is None:
            task.runner = _Runner.idle.pop() if _Runner.idle else _Runner()
            task.runner.task = task
        task.turn += 1
        self.current, runner = task, task.runner
        runner.greenlet.parent = self._hub
        runner.greenlet.switch()
        self.current = None
        failure, runner.failure = runner.failure, None
        return failure


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose ports stop the task and never the coroutine."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("a coroutine waits for something that is not simulated")
