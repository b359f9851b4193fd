"""A service for the demos, and the actions that they share: announce a step, run SQL, watch, verify."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console

from service.cli.client import RefusedError, Service, open_http
from service.cli.detail import work_text

START_SECONDS: Final = 240


class DemoFailedError(Exception):
    """A demo's expectation was not met."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A console and a service that is ready."""

    console: Console
    service: Service

    def sql(self, text: str, **session: str) -> Mapping[str, Any]:
        """Run one statement."""
        return self.service.post("/v1/sql", {"sql": text, "session": session})

    def step(self, text: str) -> None:
        """Announce the next step."""
        self.console.print(f"[bold cyan]>[/] {text}", highlight=False)

    def say(self, text: str) -> None:
        """Print the result of a step."""
        # Without markup, because a progress text has brackets of its own.
        self.console.print(f"  {text}", highlight=False, markup=False)

    def verdict(self, *, equal: bool) -> bool:
        """Print the result of a comparison, and return it."""
        self.console.print("[bold green]equal[/]" if equal else "[bold red]DIFFERENT[/]")
        return equal

    def rows(self, job: int) -> int:
        """Return how many rows of history a job has read."""
        return int(self.service.get(f"/v1/jobs/{job}")["job"]["progress"]["rows"])

    def state(self, job: int) -> str:
        """Return a job's state."""
        return str(self.service.get(f"/v1/jobs/{job}")["job"]["state"])

    def kill_worker(self, job: int) -> None:
        """Kill the worker with SIGKILL, and wait until history advances again."""
        worker = next(found for found in self.service.items("/v1/workers") if found["alive"])
        rows = self.rows(job)
        self.step(f"SIGKILL of the worker (pid {worker['pid']}) at {rows:,} rows")
        began = now()
        os.kill(worker["pid"], signal.SIGKILL)
        self.until(lambda: self.rows(job) > rows, "history moves again", seconds=120, shown=job)
        self.say(f"the first new row was there after {now() - began:.1f} s; no row was read twice")

    def verify(self, job: int, held: str = "view", wanted: str = "query") -> bool:
        """Compare a view with its query, or a table with the one that it follows. Return whether they are equal."""
        name = self.service.get(f"/v1/jobs/{job}")["job"]["name"]
        self.step(f"verify {name}: the {held} against the {wanted}")
        result = self.service.post(f"/v1/jobs/{job}/verify")
        self.say(f"{held:<14} {result['rows']:>9,} rows  digest {result['digest']}")
        self.say(f"{wanted:<14} {result['expected_rows']:>9,} rows  digest {result['expected_digest']}")
        return self.verdict(equal=bool(result["equal"]))

    def engines(self, job: int) -> None:
        """Show how many rows each engine has read for a job."""
        found = self.service.get(f"/v1/jobs/{job}")
        self.say(f"{found['job']['name']:<14} {work_text(found['engines'])}")

    def look(self, job: int, *, seconds: float) -> None:
        """Show a job's progress for `seconds`."""
        end = now() + seconds
        self.until(lambda: now() >= end, "a few barriers", seconds=seconds + 60, shown=job)

    def until(self, done: Callable[[], bool], what: str, *, seconds: float, shown: int) -> None:
        """Show the progress of the job `shown` until `done` returns true.

        Raises DemoFailedError after `seconds`.
        """
        deadline, last, pause = now() + seconds, "", threading.Event()
        while not done():
            if now() > deadline:
                raise DemoFailedError(f"{what}: not within {seconds:.0f} s; {last}")
            line = _line(self.service.get(f"/v1/jobs/{shown}")["job"])
            if line != last:
                self.say(line)
            last = line
            pause.wait(0.5)


def perform(run: Callable[[Stage, Path], bool]) -> int:
    """Run a demo on a service of its own, with a folder that is removed afterwards; return the exit code."""
    # These signals end the demo in order, so nothing stays running. A signal that is ignored (`nohup`) stays ignored.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, signal.default_int_handler)
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="tidefill-demo-"))
    # The embedded server may run under another account, which must be able to traverse the folder.
    folder.chmod(0o711)
    try:
        with _serving(folder, console) as service:
            stage = Stage(console, service)
            try:
                equal = run(stage, folder)
            except (DemoFailedError, RefusedError) as error:
                console.print(f"[bold red]failed:[/] {error}")
                console.print((folder / "service.log").read_text()[-2000:], markup=False)
                return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if equal else 4


def keep_until_interrupted(stage: Stage, query: str) -> None:
    """Leave everything running until Ctrl-C, and print how to use it."""
    url = stage.service.http.base_url
    stage.console.print(f"[bold]still running[/] at {url}: open it in a browser, or in another terminal type")
    stage.console.print(f"  {asking(str(url), query)}", highlight=False, markup=False, soft_wrap=True)
    stage.console.print("Ctrl-C ends it and removes everything.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        stage.console.print("stopping")


def asking(url: str, query: str) -> str:
    """Return the shell command that runs a query on the service, with the program that runs now."""
    return shlex.join([sys.argv[0], "sql", "--url", url, "-c", query])


def now() -> float:
    """Return the seconds of a monotonic clock."""
    return time.monotonic()  # noqa: TID251 - a client's own patience


@contextmanager
def _serving(folder: Path, console: Console) -> Generator[Service]:
    port = _free_port()
    console.print("[bold cyan]>[/] starting Postgres, the service and one Spark worker", highlight=False)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEFILL_")}
    environment |= {"TIDEFILL_DATA_DIR": str(folder / "data"), "TIDEFILL_PORT": str(port)}
    with (folder / "service.log").open("wb") as log:
        command = [sys.executable, "-m", "service.cli", "serve"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603 - ourselves
    try:
        with open_http(f"http://127.0.0.1:{port}", None) as http:
            _wait_ready(http, process, folder)
            yield Service(http)
    finally:
        process.terminate()
        process.wait()


def _wait_ready(http: httpx.Client, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline, pause = now() + START_SECONDS, threading.Event()
    while not _is_ready(http):
        if process.poll() is not None or now() > deadline:
            raise SystemExit(f"the service did not start:\n{(folder / 'service.log').read_text()[-2000:]}")
        pause.wait(0.5)


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _line(job: Mapping[str, Any]) -> str:
    progress = job["progress"]
    waits = f"  ({progress['waiting_for']})" if progress["waiting_for"] else ""
    eta = "" if progress["eta_seconds"] is None else f"  ETA {progress['eta_seconds']:.0f} s"
    return f"{progress['text']}  {progress['rows_per_second']:,.0f} rows/s{eta}{waits}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
