"""A real service with a real worker, as a user starts it: `tidefill serve` on a data directory of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
API_TOKEN = "an-api-token-of-the-tests"


class ProblemError(Exception):
    """The service refused: its problem document."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(answer.text)
        self.status = answer.status_code
        self.problem: dict[str, Any] = answer.json()


def until(look: Callable[[], T | None], *, seconds: float, what: str) -> T:
    """Return what `look` gives once it is neither None nor False; fail after a generous deadline, never pass early."""
    deadline = time.monotonic() + seconds  # noqa: TID251 - a deadline, not an assertion on time
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > deadline:  # noqa: TID251 - as above
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)  # noqa: TID251 - another process is asked over HTTP: there is no signal to wait on


@dataclass
class Service:
    """One service process. `environment` is added to the test's own."""

    data_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.port = self.port or _free_port()
        self.http = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {API_TOKEN}"}, timeout=600)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, ready: bool = True) -> "Service":
        """Start the process; with `ready` wait until a worker runs the graph."""
        log = (self.data_dir.parent / f"{self.data_dir.name}.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "serve"],
            env={
                **os.environ,
                "TIDEFILL_DATA_DIR": str(self.data_dir),
                "TIDEFILL_PORT": str(self.port),
                "TIDEFILL_API_TOKEN": API_TOKEN,
                "TIDEFILL_SPARK_MASTER": "local[2]",
                "TIDEFILL_LOG_FORMAT": "json",
                **self.environment,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self, seconds: float = 180) -> None:
        until(lambda: self._ready() or None, seconds=seconds, what=f"ready; log {self.log_tail()}")

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the service ended: {self.log_tail()}"
        try:
            return self.http.get("/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def log_tail(self) -> str:
        path = self.data_dir.parent / f"{self.data_dir.name}.log"
        return path.read_text(errors="replace")[-3000:] if path.exists() else ""

    def stop(self) -> None:
        """SIGTERM, as a user stops it; it takes the worker and the embedded Postgres with it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0, self.log_tail()

    def kill(self) -> None:
        """SIGKILL of the service alone: worker and Postgres are left behind."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def sql(self, text: str, **session: str) -> list[list[Any]]:
        """Run a statement; return its rows. Raises ProblemError."""
        return self.run(text, **session)["rows"]

    def run(self, text: str, **session: str) -> dict[str, Any]:
        """Run a statement; return the whole answer."""
        answer = self.http.post("/v1/sql", json={"sql": text, "session": session})
        if answer.status_code != 200:
            raise ProblemError(answer)
        return answer.json()

    def value(self, text: str) -> Any:
        """Run a query; return its only value."""
        ((value,),) = self.sql(text)
        return value

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        if answer.status_code >= 400:
            raise ProblemError(answer)
        return answer.json()

    def post(self, path: str, body: object = None) -> Any:
        answer = self.http.post(path, json=body) if body is not None else self.http.post(path)
        if answer.status_code >= 400:
            raise ProblemError(answer)
        return answer.json() if answer.content else None

    def job(self, name: str) -> int:
        """Return the id of the job that creates, or created, the relation `name`."""
        return int(self.get(f"/v1/relations/{name}")["job"])

    def progress(self) -> list[dict[str, Any]]:
        """Return the creating jobs' progress."""
        found = self.get("/v1/ddl-progress")
        return found["items"] if isinstance(found, dict) else found

    def worker_pid(self) -> int:
        """Return the process id of the worker that lives."""
        found = self.get("/v1/workers")
        workers = found["items"] if isinstance(found, dict) else found
        return next(int(worker["pid"]) for worker in workers if worker["alive"])

    def kill_worker(self) -> int:
        """SIGKILL of the worker's driver; return its process id."""
        pid = self.worker_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def verified(self, name: str) -> dict[str, Any]:
        """Verify a view and return the result, which must be equal."""
        result = self.post(f"/v1/jobs/{self.job(name)}/verify")
        assert result["equal"], result
        return result


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
