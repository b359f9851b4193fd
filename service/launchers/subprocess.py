"""A worker as a process beside the service: one for the database graph, looked after until the service stops.

`supervise` is a tick: it looks at what is there and does what is due. A driver that ended takes the rest of its worker
with it (JVM, Python daemons), because what they still run belongs to a worker nobody listens to (I9). So does a service
that ended: its successor on the same data directory ends what it finds.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import structlog

from service.launchers.processes import wait_for_end
from service.launchers.restarts import Restarts
from service.launchers.worker_environment import WorkerSettings, worker_environment, worker_secrets
from service.launchers.worker_home import WorkerHome, abandoned_homes, make_home
from service.ports.clock import Clock
from service.protocol.ids import WorkerId

WORKER_COMMAND: Final = (sys.executable, "-m", "workers")
_LOGS_KEPT: Final = 20
"""Each worker has a log of its own; a crash loop must not fill the disk."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    worker: WorkerId
    process: subprocess.Popen[bytes]
    home: WorkerHome
    started: float

    def has_ended(self) -> bool:
        """Look without reaping: until its session is cleared, the driver's pid must stay its own."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def clear(self) -> int:
        """End all of the worker's processes, remove its home, and return the driver's exit code."""
        self.home.clear(self.process.pid)
        return self.process.wait()


class SubprocessLauncher:
    """Implements `service.ports.launcher.Launcher` for one worker on this machine."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        clock: Clock,
        new_worker_id: Callable[[], WorkerId],
        command: Sequence[str] = WORKER_COMMAND,
        stop_after: timedelta = timedelta(seconds=10),
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._new_worker_id = new_worker_id
        self._command = command
        self._stop_after = stop_after
        self._running: _Running | None = None
        self._restarts = Restarts()
        self._looked_for_leftovers = False
        self._stopped = False
        # Held in the threads, not on the loop: a cancelled tick leaves its thread at work while the stop comes.
        self._turn = threading.Lock()

    async def supervise(self, given_up: Collection[WorkerId]) -> Collection[WorkerId]:
        """See the port. A worker is returned once, when its processes are gone."""
        return await asyncio.to_thread(self._look, given_up)

    async def stop(self) -> None:
        """Ask the worker to end, then end it; nothing is started afterwards."""
        await asyncio.to_thread(self._stop)

    def _look(self, given_up: Collection[WorkerId]) -> list[WorkerId]:
        with self._turn:
            if self._stopped:
                return []
            gone = [*self._end_leftovers(), *self._end_running(given_up)]
            if self._running is None and self._restarts.allow(self._clock.monotonic()):
                self._running = self._launch()
            return gone

    def _end_running(self, given_up: Collection[WorkerId]) -> list[WorkerId]:
        running = self._running
        if running is None or not (running.worker in given_up or running.has_ended()):
            return []
        exit_code = running.clear()
        self._running = None
        now = self._clock.monotonic()
        self._restarts = self._restarts.after(timedelta(seconds=now - running.started), now=now)
        log = str(self._log_of(running.worker))
        _log.warning("worker.ended", worker=running.worker, exit_code=exit_code, log=log)
        return [running.worker]

    def _end_leftovers(self) -> list[WorkerId]:
        """Once: end the workers of a service that was killed."""
        if self._looked_for_leftovers:
            return []
        ended: list[WorkerId] = []
        for home in abandoned_homes(self._settings.data_dir):
            home.clear()
            _log.warning("worker.leftover_ended", worker=home.worker)
            ended.append(home.worker)
        self._looked_for_leftovers = True
        return ended

    def _launch(self) -> _Running:
        worker = self._new_worker_id()
        home = make_home(self._settings.data_dir, worker, worker_secrets(self._settings))
        try:
            process = self._spawn(home)
        except BaseException:
            home.clear()
            raise
        _log.info("worker.started", worker=worker, pid=process.pid, log=str(self._log_of(worker)))
        return _Running(worker, process, home, self._clock.monotonic())

    def _spawn(self, home: WorkerHome) -> subprocess.Popen[bytes]:
        path = self._log_of(home.worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(path.parent.glob("worker-*.log"), key=_age)[: -(_LOGS_KEPT - 1)]:
            old.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)) as log:
            return subprocess.Popen(  # noqa: S603 - our own program, no shell
                self._command,
                cwd=home.directory,
                env=worker_environment(
                    self._settings, home.worker, home=home.directory, temporary=home.temporary, inherited=os.environ
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _stop(self) -> None:
        with self._turn:
            self._stopped = True
            running = self._running
            if running is None:
                return
            running.process.terminate()
            wait_for_end(running.process.pid, self._stop_after.total_seconds())
            exit_code = running.clear()
            self._running = None
        _log.info("worker.stopped", worker=running.worker, exit_code=exit_code)

    def _log_of(self, worker: WorkerId) -> Path:
        return self._settings.data_dir.resolve() / "logs" / f"worker-{worker}.log"


def _age(path: Path) -> float:
    return path.stat().st_mtime
