"""Run workers as processes on this machine: one for each graph that needs one, supervised until it stops.

`supervise` is a tick: it looks at the present state and does what is due. When a driver has ended, the launcher kills
the rest of its worker (JVM, Python daemons), because no service accepts their results (I9). When a service has ended,
the next one on the same data directory ends its workers. A tick does not wait for a worker to end by itself, so a slow
one does not delay the others.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

from service.domain.backoff import Restarts
from service.launchers.processes import wait_for_end, when_ended
from service.launchers.worker_environment import WorkerSettings, worker_environment, worker_secrets
from service.launchers.worker_home import WorkerHome, abandoned_homes, make_home
from service.ports.clock import Clock
from service.ports.launcher import Ended
from service.protocol.ids import GraphId, WorkerId

WORKER_COMMAND: Final = (sys.executable, "-m", "workers")
_LOGS_KEPT: Final = 20
"""Each worker has a log of its own, and a crash loop must not fill the disk."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Running:
    worker: WorkerId
    process: subprocess.Popen[bytes]
    home: WorkerHome
    started: float
    asked: float | None = None
    """When the worker was asked to end."""

    def has_ended(self) -> bool:
        """Whether the driver has ended. It is not reaped: its pid must not be reused before its session is cleared."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def ask(self, now: float) -> None:
        """Ask the worker to end, once."""
        if self.asked is None:
            # Not `terminate`, because that reaps a process that has ended.
            os.kill(self.process.pid, signal.SIGTERM)
            self.asked = now

    def clear(self) -> int:
        """End all of the worker's processes, remove its home, and return the driver's exit code."""
        self.home.clear(self.process.pid)
        return self.process.wait()


class SubprocessLauncher:
    """Implements `service.ports.launcher.Launcher` for workers on this machine."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        clock: Clock,
        new_worker_id: Callable[[], WorkerId],
        command: Sequence[str] = WORKER_COMMAND,
        stop_after: timedelta = timedelta(seconds=10),
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_end` is called when a worker has ended, so that the next tick can follow soon."""
        self._settings = settings
        self._clock = clock
        self._new_worker_id = new_worker_id
        self._command = command
        self._stop_after = stop_after
        self._on_end = on_end
        self._running: dict[GraphId, _Running] = {}
        self._restarts: dict[GraphId, Restarts] = {}
        self._looked_for_leftovers = False
        self._stopped = False
        # A lock of threads, not of the event loop: the thread of a cancelled tick continues, and `stop` must wait for
        # it.
        self._turn = threading.Lock()

    @property
    def graphs(self) -> set[GraphId]:
        """The graphs that have a worker here."""
        return set(self._running)

    async def supervise(
        self, given_up: Collection[WorkerId], *, kept: Collection[GraphId], missing: Collection[GraphId]
    ) -> Sequence[Ended]:
        """See the port."""
        before = set(self._running)
        ended = await asyncio.to_thread(self._look, given_up, kept, missing)
        for graph in self._running.keys() - before:
            when_ended(self._running[graph].process.pid, self._on_end)
        return ended

    async def stop(self) -> None:
        """Ask the workers to end, then kill them. No worker is started afterwards."""
        await asyncio.to_thread(self._stop)

    def _look(
        self, given_up: Collection[WorkerId], kept: Collection[GraphId], missing: Collection[GraphId]
    ) -> list[Ended]:
        with self._turn:
            if self._stopped:
                return []
            ended = [*self._end_leftovers(), *self._end_running(given_up, kept)]
            self._restarts = {graph: one for graph, one in self._restarts.items() if graph in kept}
            now = self._clock.monotonic()
            for graph in missing:
                if graph not in self._running and self._restarts.get(graph, Restarts()).allow(now):
                    ended += self._launch(graph)
            return ended

    def _end_running(self, given_up: Collection[WorkerId], kept: Collection[GraphId]) -> Iterator[Ended]:
        for graph, running in list(self._running.items()):
            if self._is_due(running, given_up, wanted=graph in kept) or running.has_ended():
                try:
                    exit_code = running.clear()
                except TimeoutError as error:
                    # The kernel keeps one of its processes. The next tick tries again, so that other workers do not
                    # wait.
                    _log.warning("worker.not_ended", worker=running.worker, graph=graph, error=str(error))
                    continue
                del self._running[graph]
                yield self._ended(graph, running, exit_code)

    def _is_due(self, running: _Running, given_up: Collection[WorkerId], *, wanted: bool) -> bool:
        """Whether a worker must be killed now. A worker whose graph no longer needs it is asked to end first."""
        now = self._clock.monotonic()
        if not wanted:
            running.ask(now)
        if running.asked is not None:
            return now - running.asked >= self._stop_after.total_seconds()
        return running.worker in given_up

    def _ended(self, graph: GraphId, running: _Running, exit_code: int) -> Ended:
        if running.asked is not None:
            _log.info("worker.stopped", worker=running.worker, graph=graph, exit_code=exit_code)
            return Ended(running.worker, graph, "it is needed no more", asked=True)
        log = self._log_of(running.worker)
        _log.warning("worker.ended", worker=running.worker, graph=graph, exit_code=exit_code, log=str(log))
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        lived = timedelta(seconds=self._clock.monotonic() - running.started)
        return self._failed(graph, running.worker, f"it ended with {how}, see {log.name}", lived)

    def _failed(self, graph: GraphId, worker: WorkerId, reason: str, lived: timedelta) -> Ended:
        now = self._clock.monotonic()
        restarts = self._restarts[graph] = self._restarts.get(graph, Restarts()).after(lived, now=now)
        wait = timedelta(seconds=restarts.not_before - now)
        return Ended(worker, graph, reason, failures=restarts.died_young, wait=wait)

    def _end_leftovers(self) -> list[Ended]:
        """End the workers of a service that was killed. Done once, in the first tick, also for a worker that the kernel
        keeps: its graph is fenced, and its process must not keep others from being started.
        """
        if self._looked_for_leftovers:
            return []
        self._looked_for_leftovers = True
        ended: list[Ended] = []
        for home in abandoned_homes(self._settings.data_dir):
            try:
                home.clear()
            except TimeoutError as error:
                # The next service tries again.
                home.lock.close()
                _log.warning("worker.not_ended", worker=home.worker, error=str(error))
                continue
            _log.warning("worker.leftover_ended", worker=home.worker)
            ended.append(Ended(home.worker, None, "its service was killed"))
        return ended

    def _launch(self, graph: GraphId) -> Iterator[Ended]:
        """Start a worker. If the machine does not let it start, yield it as one that has ended."""
        worker = self._new_worker_id()
        settings = self._settings.of_graph(graph)
        try:
            home = make_home(settings.data_dir, worker, worker_secrets(settings))
            try:
                process = self._spawn(settings, home)
            except BaseException:
                home.clear()
                raise
        except OSError as error:
            _log.warning("worker.not_started", worker=worker, graph=graph, error=str(error))
            yield self._failed(graph, worker, f"it could not be started: {error}", timedelta(0))
            return
        _log.info("worker.started", worker=worker, graph=graph, pid=process.pid, log=str(self._log_of(worker)))
        self._running[graph] = _Running(worker, process, home, self._clock.monotonic())

    def _spawn(self, settings: WorkerSettings, home: WorkerHome) -> subprocess.Popen[bytes]:
        path = self._log_of(home.worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The log of a running worker is kept, even if its last entry is old.
        needed = {self._log_of(running.worker) for running in self._running.values()}
        for old in sorted(path.parent.glob("worker-*.log"), key=_age)[: -(_LOGS_KEPT - 1)]:
            if old not in needed:
                old.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)) as log:
            return subprocess.Popen(  # noqa: S603 - our own program, no shell
                self._command,
                cwd=home.directory,
                env=worker_environment(
                    settings, home.worker, home=home.directory, temporary=home.temporary, inherited=os.environ
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _stop(self) -> None:
        with self._turn:
            self._stopped = True
            deadline = self._clock.monotonic() + self._stop_after.total_seconds()
            for running in self._running.values():
                running.ask(self._clock.monotonic())
            for graph, running in self._running.items():
                wait_for_end(running.process.pid, max(deadline - self._clock.monotonic(), 0))
                try:
                    self._ended(graph, running, running.clear())
                except TimeoutError as error:
                    _log.warning("worker.not_ended", worker=running.worker, graph=graph, error=str(error))
            self._running = {}

    def _log_of(self, worker: WorkerId) -> Path:
        return self._settings.data_dir.resolve() / "logs" / f"worker-{worker}.log"


def _age(path: Path) -> float:
    return path.stat().st_mtime
