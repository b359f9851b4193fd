"""A real service with a real worker, as a user starts it: `tidefill serve` on a data directory of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from service.embedded.orphans import end_orphans
from service.launchers.worker_home import abandoned_homes
from tests.support.processes import name_of as name_of
from tests.support.processes import parent_of, processes, state_of
from tests.support.processes import session_of as session_of
from tests.support.run_directories import run_directory
from tests.support.waiting import PATIENCE, until
from tests.support.waiting import Repeating as Repeating

API_TOKEN = "an-api-token-of-the-tests"
WORKER_TOKEN = "a-worker-token-of-the-tests"
SERVE = (sys.executable, "-m", "service.cli", "serve")
FAULTY = (sys.executable, "-m", "tests.support.faulty_service")


PATIENT = {"statement_timeout": f"{PATIENCE * 1000:.0f}"}
"""The limits of sessions that set no others: the machine may be busy, and a first query over a lake waits for
the start of its process.
"""
ARRANGEMENT = {"streaming_use_snapshot_backfill": "false"}
"""The session of a test that is about jobs created in the database graph."""


class ProblemError(Exception):
    """The service refused: its problem document."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(answer.text)
        self.status = answer.status_code
        self.problem: dict[str, Any] = answer.json()


@contextmanager
def data_directory() -> Generator[Path]:
    """An empty directory that the embedded server's own account can pass through."""
    with run_directory() as directory:
        yield directory / "data"


@dataclass
class Service:
    """One service process. `environment` is added to the test's own; `command` may start a service with faults."""

    data_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    command: Sequence[str] = SERVE
    token: str | None = API_TOKEN
    port: int = 0
    session: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of every session that says nothing else."""
    process: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        self.http = httpx.Client(base_url=self.url, headers=self.headers, timeout=600)
        self.calls = ThreadPoolExecutor(max_workers=16, thread_name_prefix="call")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    # Its life.

    def start(self, *, ready: bool = True) -> "Service":
        """Start the process; with `ready` wait until a worker runs the graph."""
        self.data_dir.mkdir(exist_ok=True, mode=0o711)
        given = {
            "TIDEFILL_DATA_DIR": str(self.data_dir),
            "TIDEFILL_PORT": str(self.port),
            "TIDEFILL_WORKER_TOKEN": WORKER_TOKEN,
            "TIDEFILL_SPARK_MASTER": "local[2]",
            "TIDEFILL_LOG_FORMAT": "json",
            **({} if self.token is None else {"TIDEFILL_API_TOKEN": self.token}),
            **self.environment,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env={**os.environ, **given}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until a worker runs the graph."""
        until(self._ready, what=lambda: f"ready; its log ends with {self.log_tail()}")

    def _ready(self) -> bool:
        return self._answers("/readyz")

    def is_alive(self) -> bool:
        """Whether the process answers, with or without a worker."""
        return self._answers("/livez")

    def leads(self) -> bool:
        """Whether this service is the leader, as far as it knows."""
        try:
            return self.http.get("/readyz?leader=true", timeout=10).json()["checks"]["leader"] == "ok"
        except httpx.TransportError:
            return False

    def _answers(self, path: str) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the service ended: {self.log_tail()}"
        try:
            return self.http.get(path, timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def log(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.log"

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def stop(self) -> None:
        """SIGTERM, as a user stops it; it takes the worker and the embedded Postgres with it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=PATIENCE) == 0, self.log_tail()

    def kill(self) -> None:
        """SIGKILL of the service alone: worker and Postgres are left behind."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def is_stopped(self) -> bool:
        """Whether a SIGSTOP holds the process."""
        assert self.process is not None
        return state_of(self.process.pid) == "T"

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def wait_killed(self) -> None:
        """Wait until the process has been killed by a fault of its own."""
        assert self.process is not None
        assert self.process.wait(timeout=PATIENCE) == -signal.SIGKILL, self.log_tail()

    def restart(self) -> None:
        """Start again where an earlier process was killed."""
        self.start()

    def clear(self) -> None:
        """End whatever is left of it, however its process ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        for home in abandoned_homes(self.data_dir):
            home.clear()
        end_orphans((self.data_dir / "postgres" / "cluster").resolve())
        self.http.close()
        self.calls.shutdown(wait=True, cancel_futures=True)

    # HTTP.

    def sql(self, text: str, **session: str) -> list[list[Any]]:
        """Run a statement; return its rows. Raises ProblemError."""
        return self.run(text, **session)["rows"]

    def run(self, text: str, **session: str) -> dict[str, Any]:
        """Run a statement; return the whole answer."""
        return self.post("/v1/sql", {"sql": text, "session": {**PATIENT, **self.session, **session}})

    def later(self, text: str, **session: str) -> "Future[dict[str, Any]]":
        """Run a statement in a session of its own; return its answer to come."""
        return self.calls.submit(self.run, text, **session)

    def refused(self, text: str, **session: str) -> ProblemError:
        """Run a statement that must be refused; return the refusal."""
        try:
            self.run(text, **session)
        except ProblemError as error:
            return error
        raise AssertionError(f"not refused: {text}")

    def value(self, text: str) -> Any:
        """Run a query; return its only value."""
        ((value,),) = self.sql(text)
        return value

    def get(self, path: str, **parameters: Any) -> Any:
        return self.call("GET", path, params=parameters)

    def items(self, path: str) -> list[Any]:
        """Return a list that is whole."""
        found = self.get(path)
        assert found["next"] is None, path
        return found["items"]

    def post(self, path: str, body: object = None, **more: Any) -> Any:
        return self.call("POST", path, **({} if body is None else {"json": body}), **more)

    def patch(self, path: str, body: object) -> Any:
        return self.call("PATCH", path, json=body)

    def call(self, method: str, path: str, **more: Any) -> Any:
        """Call the service; return the JSON of its answer. Raises ProblemError."""
        answer = self.http.request(method, path, **more)
        if answer.status_code >= 400:
            raise ProblemError(answer)
        return answer.json() if answer.content else None

    # What it says.

    def graph(self) -> dict[str, Any]:
        """Return where the database graph stands."""
        (graph,) = self.items("/v1/graphs")
        return graph

    def published(self) -> int:
        return int(self.graph()["published"])

    def barriers(self, *, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Return the barriers whose epoch is above `after`, oldest first."""
        found = self.get("/v1/barriers", limit=limit)["items"]
        return [barrier for barrier in reversed(found) if int(barrier["epoch"]) > after]

    def job(self, name: str) -> int:
        """Return the id of the job that creates, or created, the relation `name`."""
        return int(self.get(f"/v1/relations/{name}")["job"])

    def detail(self, job: int) -> dict[str, Any]:
        return self.get(f"/v1/jobs/{job}")

    def state(self, job: int) -> str:
        return self.detail(job)["job"]["state"]

    def rows(self, job: int) -> int:
        """Return how many rows of history a job has read, as of the committed epoch."""
        return int(self.detail(job)["job"]["progress"]["rows"])

    def progress(self) -> list[dict[str, Any]]:
        """Return the progress of the jobs that are queued or being created."""
        return self.items("/v1/ddl-progress")

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers that live."""
        return [worker for worker in self.items("/v1/workers") if worker["alive"]]

    def worker_pid(self) -> int:
        """Return the process id of the worker that lives."""
        (worker,) = self.workers()
        return int(worker["pid"])

    # What is done to it.

    def flush(self) -> int:
        """Force a checkpoint; return its epoch, which is published."""
        return int(self.post("/v1/barriers")["epoch"])

    def mutate(self, body: object) -> int:
        """Inject a mutation; return the epoch at which every actor has applied it."""
        return int(self.post("/v1/mutations?wait=applied", body)["epoch"])

    def limit(self, job: int, rows_per_second: int | None) -> int:
        """Set a job's rate limit; return the epoch at which it took effect."""
        return int(self.call("PATCH", f"/v1/jobs/{job}", json={"backfill_rate_limit": rows_per_second})["epoch"])

    def kill_worker(self) -> int:
        """SIGKILL of the worker's driver; return its process id."""
        pid = self.worker_pid()
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_jvm(self) -> None:
        """SIGKILL of the worker's JVM alone."""
        driver = self.worker_pid()
        (jvm,) = (pid for pid in processes() if parent_of(pid) == driver and name_of(pid) == "java")
        os.kill(jvm, signal.SIGKILL)

    def expire(self, lease: str) -> None:
        """Let a lease run out now: `leader`, or `worker` for that of every worker."""
        expired = {
            "leader": "update tidefill.leader_lease set expires_at = clock_timestamp()",
            "worker": "update tidefill.worker set seen_at = seen_at - interval '1 hour'",
        }
        with self.store() as connection:
            connection.execute(expired[lease].encode())

    # What a test waits for.

    def until_created(self, name: str) -> int:
        """Wait until a relation is created and readable; return its job."""
        job = self.job(name)
        self.post(f"/v1/jobs/{job}/wait?timeout_seconds=600")
        return job

    def until_rows(self, job: int, above: int) -> int:
        """Wait until a job has read more than so many rows of history; return how many."""
        return until(
            lambda: rows if (rows := self.rows(job)) > above else None,
            what=lambda: f"more than {above} rows: {self.detail(job)['job']}",
        )

    def until_recovered(self, generation: int) -> dict[str, Any]:
        """Wait until a generation after `generation` has published an epoch; return the graph."""

        def look() -> dict[str, Any] | None:
            try:
                graph = self.graph()
            except ProblemError as error:
                if error.status != 503:
                    raise
                return None
            if graph["generation"] <= generation or graph["status"] != "RUNNING":
                return None
            newest = self.barriers(limit=1)[-1]
            return graph if newest["generation"] > generation and newest["published_at"] is not None else None

        return until(look, what=lambda: f"recovered: {self.log_tail()}")

    # What must hold.

    def verified(self, name: str) -> dict[str, Any]:
        """Verify a view and return the result, which must be equal."""
        result = self.post(f"/v1/jobs/{self.job(name)}/verify")
        assert result["equal"], result
        return result

    def assert_equal(self, view: str, query: str) -> int:
        """Assert that a view equals a query at one epoch, and that it verifies; return the number of its rows."""
        counts = f"(select count(*) from {view}), (select count(*) from ({query}) q)"
        held, expected, differing = self.sql(
            f"select {counts}, (select count(*) from"
            f" ((table {view} except all ({query})) union all (({query}) except all table {view})) d)"
        )[0]
        assert (held, differing) == (expected, 0), (view, held, expected, differing)
        self.verified(view)
        return int(held)

    # The state store, seen from inside.

    def database_url(self) -> str:
        """Return the database's URL, with a superuser: the embedded server's where none was given."""
        if "TIDEFILL_DATABASE_URL" in self.environment:
            return self.environment["TIDEFILL_DATABASE_URL"]
        home = self.data_dir / "postgres"
        password, port = (home / "password").read_text(), (home / "port").read_text()
        return f"postgresql://tidefill:{password}@127.0.0.1:{port}/tidefill"

    @contextmanager
    def store(self) -> "Generator[psycopg.Connection]":
        """Connect to the database as its owner, in autocommit."""
        with psycopg.connect(self.database_url(), autocommit=True, application_name="tidefill-test") as connection:
            yield connection

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query of the owner gives."""
        with self.store() as connection:
            return connection.execute(query.encode()).fetchall()

    # Between tests.

    def reset(self) -> None:
        """Leave nothing behind: default parameters, not paused, no relations, ready."""
        self.wait_ready()
        defaults = dict.fromkeys(self.get("/v1/system-parameters"), "default")
        # A drop takes a barrier.
        self.patch("/v1/system-parameters", defaults | {"barrier_interval_ms": 100})
        if self.graph()["paused"]:
            self.mutate({"type": "resume"})
        for job in self.progress():
            with suppress(ProblemError):  # it may have finished meanwhile
                self.post(f"/v1/jobs/{job['ddl_id']}/cancel")
        while relations := self.get("/v1/relations", limit=1)["items"]:
            kind = relations[0]["kind"].upper()
            self.run(f'DROP {kind} IF EXISTS "{relations[0]["name"]}" CASCADE')
        for source in self.items("/v1/sources"):
            self.run(f'DROP SOURCE IF EXISTS "{source["name"]}" CASCADE')
        for secret in self.items("/v1/secrets"):
            name = secret["name"].replace('"', '""')
            self.run(f'DROP SECRET IF EXISTS "{name}"')
        self.patch("/v1/system-parameters", defaults)


@contextmanager
def running(service: Service) -> Generator[Service]:
    """Run a service and end all of it, whatever became of it meanwhile."""
    try:
        yield service.start()
    finally:
        service.clear()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
