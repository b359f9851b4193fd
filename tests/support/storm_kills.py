"""SIGKILL of whatever a service consists of, at random, and the supervisor that starts it again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.disturbing import Disturber
from tests.support.faulty_service import FAULT, order_fault
from tests.support.processes import name_of, session_of, working_in
from tests.support.service import Service
from tests.support.state_store_locks import writers_awaited

POINTS: Final = "before_commit", "before_publish", "after_publish", "before_roll_back", "after_roll_back"
POINT_SECONDS: Final = 10
"""How long a service may take to come to its point; one that does not is spared."""
KILLS: Final = {
    "backend": 25,
    "postgres": 12,
    "driver": 12,
    "jvm": 8,
    "python": 8,
    "service": 10,
    "everything": 5,
    **dict.fromkeys(POINTS, 4),
}
"""Each kind, and how often it comes: those that cost a start of Spark less often than the others."""


@dataclass
class Killer(Disturber):
    """Kills something; the service that was killed is started again after a while."""

    KINDS = KILLS
    every: tuple[float, float] = (5, 20)
    began: int = 0
    """How long the log was when the service was last started."""

    def disturb(self, kind: str) -> bool:
        return self._at_point(kind) if kind in POINTS else self._kill(kind)

    def revive(self) -> None:
        process = self.service.process
        assert process is not None
        code = process.poll()
        if code is None:
            return
        if code != -signal.SIGKILL:
            # It cannot start while its server is killed under its feet: whoever started it tries again.
            assert "service.listening" not in self._last_run(), (code, self.service.log_tail())
            self.kills["(ended at its start)"] += 1
        self.over.wait(self.random.choice((0, 0, self.random.uniform(0, 6))))
        self.began = self.service.log.stat().st_size
        self.service.start(ready=False)

    def _kill(self, kind: str) -> bool:
        if self.random.random() < 0.5:
            with writers_awaited(self.service, seconds=3):
                return self._end(list(self._victims(kind)))
        return self._end(list(self._victims(kind)))

    def _end(self, victims: list[int]) -> bool:
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.service.process is not None
        if self.service.process.pid in victims:
            self.service.process.wait()
        return bool(victims)

    def _victims(self, kind: str) -> Iterator[int]:
        assert self.service.process is not None
        match kind:
            case "service":
                yield self.service.process.pid
            case "postgres":
                yield from server(self.service)
            case "everything":
                yield self.service.process.pid
                yield from worker(self.service)
                yield from server(self.service)
            case "backend":
                yield from self._one(server(self.service)[1:])
            case "driver":
                yield from (pid for pid in worker(self.service) if session_of(pid) == pid)
            case "jvm":
                yield from (pid for pid in worker(self.service) if name_of(pid) == "java")
            case _:
                others = [pid for pid in worker(self.service) if session_of(pid) != pid and name_of(pid) != "java"]
                yield from self._one(others)

    def _one(self, pids: list[int]) -> list[int]:
        return [self.random.choice(pids)] if pids else []

    def _at_point(self, point: str) -> bool:
        file = Path(self.service.environment[FAULT])
        order_fault(file, point)
        if point.endswith("roll_back"):
            self._end(list(self._victims("backend")))
        assert self.service.process is not None
        try:
            self.service.process.wait(timeout=POINT_SECONDS)
        except subprocess.TimeoutExpired:
            file.unlink(missing_ok=True)
        return self.service.process.poll() is not None

    def _last_run(self) -> str:
        return self.service.log.read_bytes()[self.began :].decode(errors="replace")


def server(service: Service) -> list[int]:
    """Return the processes of the embedded Postgres, its head first."""
    cluster = (service.data_dir / "postgres" / "cluster").resolve()
    try:
        head = int((cluster / "postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        head = 0
    return sorted(working_in(lambda where: where == cluster), key=lambda pid: pid != head)


def worker(service: Service) -> list[int]:
    """Return the processes of every worker that the service has started."""
    homes = (service.data_dir / "workers").resolve()
    return list(working_in(lambda where: where.parent == homes))
