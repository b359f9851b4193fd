"""`tidefill demo`: the main job, shown on a service of its own while a table keeps changing.

One million orders are loaded; writers insert, update (some move their key) and delete; a materialized view is built
meanwhile; it is paused, resumed, throttled and released; the worker is killed. A view over the view follows, and a
union of two tables in an order, whose limit follows the load and whose actors are doubled meanwhile. At the end each
is verified against its query.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console

from service.cli.client import RefusedError, Service, open_http

ROWS: Final = 1_000_000
WRITERS: Final = 6
BATCH: Final = 400
"""Rows that one statement of a writer changes; a statement is answered with its epoch, about one a second."""
MOVED: Final = 10_000_000
"""How far a moved key jumps: beyond everything loaded."""
LIMIT: Final = 25_000
"""The view's first limit in rows per second and actor, so that there is something to watch."""
START_SECONDS: Final = 240
TABLE: Final = (
    "CREATE TABLE orders"
    " (id bigint PRIMARY KEY, customer bigint, status text, amount numeric(12,2), created timestamptz)"
)
LOAD: Final = (
    "INSERT INTO orders"
    " SELECT g, g % 5000, 'open', (g % 100000) / 100.0, timestamptz '2026-01-01' + g * interval '1 s'"
    f" FROM generate_series(1, {ROWS}) g"
)
VIEW: Final = (
    "CREATE MATERIALIZED VIEW big_orders AS SELECT id, customer, upper(status) AS status, amount * 2 AS doubled"
    " FROM orders WHERE amount >= 100"
)
CHAIN: Final = (
    "CREATE MATERIALIZED VIEW large_orders AS SELECT id, customer, doubled FROM big_orders WHERE doubled > 1500"
)
ARCHIVE: Final = "CREATE TABLE archive (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2))"
ARCHIVED: Final = "INSERT INTO archive SELECT g, g % 5000, 10 FROM generate_series(1, 20000) g"
UNION: Final = (
    "CREATE MATERIALIZED VIEW every_order"
    " WITH (backfill_order = FIXED(archive -> orders), backfill_rate_limit = 'auto')"
    " AS SELECT id, customer, amount FROM archive UNION ALL SELECT id, customer, amount FROM orders"
)


class DemoFailedError(Exception):
    """Something did not happen that had to."""


@dataclass
class Writers:
    """Threads that keep `orders` changing until told to stop."""

    service: Service
    stop: threading.Event = field(default_factory=threading.Event)
    changed: int = 0
    began: float = 0.0
    failed: list[str] = field(default_factory=list[str])
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start writing."""
        self.began = _now()
        self.threads = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def end(self) -> float:
        """Stop and return how many rows were changed per second."""
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=120)
        if self.failed:
            raise DemoFailedError(f"a writer was refused: {self.failed[0]}")
        return self.changed / (_now() - self.began)

    def _write(self, number: int) -> None:
        turn = 0
        while not self.stop.is_set():
            turn += 1
            # Each writer walks through keys of its own, all over the table.
            first = (turn * 7919 + number * ROWS // WRITERS) % ROWS
            fresh = ROWS + (number + 1) * MOVED + turn * BATCH
            for statement in (
                _fresh(fresh),
                f"UPDATE orders SET amount = amount + 50, status = 'paid' WHERE id BETWEEN {first} AND {first + BATCH}",
                f"UPDATE orders SET id = id + {MOVED * 10} WHERE id BETWEEN {first} AND {first + BATCH // 10}",
                f"DELETE FROM orders WHERE id BETWEEN {first + BATCH + 1} AND {first + BATCH + BATCH // 4}",
            ):
                self._run(statement)

    def _run(self, statement: str) -> None:
        while not self.stop.is_set():
            try:
                tag = str(self.service.post("/v1/sql", {"sql": statement})["tag"])
            except RefusedError as error:
                if error.status < 500:
                    self.failed.append(str(error))
                    self.stop.set()
                    return
            except httpx.TransportError:
                pass
            else:
                with self.lock:
                    self.changed += int(tag.rsplit(maxsplit=1)[-1])
                return


@dataclass(frozen=True, slots=True)
class Demo:
    """One run against a service that is ready."""

    console: Console
    service: Service

    def run(self) -> bool:
        """Show everything; return whether the view is equal to its query."""
        self.step(TABLE)
        self.sql(TABLE)
        self.step(f"loading {ROWS:,} rows")
        began = _now()
        self.sql(LOAD)
        self.say(f"loaded in {_now() - began:.1f} s")
        writers = Writers(self.service)
        self.step("writers insert, update, move keys and delete from now on")
        writers.start()
        self.step(VIEW)
        self.sql(VIEW, background_ddl="true", backfill_rate_limit=str(LIMIT))
        job = self.service.job_called("big_orders")
        self._steer(job)
        self._until(lambda: self._state(job) == "Created", "the view is created", seconds=180, shown=job)
        jobs = [job, self._chain(), self._union()]
        rate = writers.end()
        self.say(f"the writers changed {writers.changed:,} rows, {rate:,.0f} rows/s")
        self.sql("FLUSH")
        return all(self._verify(one) for one in jobs)

    def _chain(self) -> int:
        """A view over the view, by the default strategy, while both follow the table."""
        self.step(CHAIN)
        self.sql(CHAIN)
        return self.service.job_called("large_orders")

    def _union(self) -> int:
        """Two histories, one after the other, in the graph that everybody shares; its actors and its limit change."""
        self.step(ARCHIVE)
        self.sql(ARCHIVE)
        self.sql(ARCHIVED)
        self.step(UNION)
        self.sql(UNION, background_ddl="true", streaming_use_snapshot_backfill="false", streaming_parallelism="1")
        job = self.service.job_called("every_order")
        self._look(job, seconds=6)
        changes = self.service.get(f"/v1/jobs/{job}/limit-history")["items"]
        for change in reversed(changes[:4]):
            self.say(f"limit {change['before']:,} -> {change['after']:,} rows/s per actor: {change['reason']}")
        self.step("ALTER MATERIALIZED VIEW every_order SET PARALLELISM = 2")
        self.sql("ALTER MATERIALIZED VIEW every_order SET PARALLELISM = 2")
        actors = {scan["upstream"]: len(scan["actors"]) for scan in self._scans(job)}
        self.say(f"actors now: {', '.join(f'{name} {count}' for name, count in actors.items())}; no position was lost")
        self._look(job, seconds=3)
        self.step("no limit from here on")
        self.sql("ALTER MATERIALIZED VIEW every_order SET BACKFILL_RATE_LIMIT TO DEFAULT")
        self._until(lambda: self._state(job) == "Created", "the view is created", seconds=180, shown=job)
        return job

    def _scans(self, job: int) -> Sequence[Mapping[str, Any]]:
        return [one for one in self.service.get(f"/v1/jobs/{job}")["fragments"] if one["scan_type"]]

    def _steer(self, job: int) -> None:
        self._until(lambda: self._rows(job) > ROWS // 20, "5 % are there", seconds=120, shown=job)
        self.step("pause")
        epoch = self.service.post("/v1/mutations", {"type": "pause"}, wait="applied")["epoch"]
        rows = self._rows(job)
        self.say(f"paused at epoch {epoch} with {rows:,} rows; the writers go on")
        self._look(job, seconds=4)
        if self._rows(job) != rows:
            raise DemoFailedError(f"history moved while paused: {rows} -> {self._rows(job)}")
        self.step("resume")
        self.service.post("/v1/mutations", {"type": "resume"}, wait="applied")
        self._look(job, seconds=3)
        self.step("throttle to 2,000 rows/s per actor")
        self.sql("ALTER MATERIALIZED VIEW big_orders SET BACKFILL_RATE_LIMIT TO 2000")
        self._look(job, seconds=4)
        self.step(f"release to {LIMIT:,} rows/s per actor")
        self.sql(f"ALTER MATERIALIZED VIEW big_orders SET BACKFILL_RATE_LIMIT TO {LIMIT}")
        self._until(lambda: self._rows(job) > ROWS // 3, "a third is there", seconds=120, shown=job)
        self._kill(job)
        self.step("no limit from here on")
        self.sql("ALTER MATERIALIZED VIEW big_orders SET BACKFILL_RATE_LIMIT TO DEFAULT")

    def _kill(self, job: int) -> None:
        worker = next(found for found in self.service.get("/v1/workers") if found["alive"])
        rows = self._rows(job)
        self.step(f"SIGKILL of the worker (pid {worker['pid']}) at {rows:,} rows")
        began = _now()
        os.kill(worker["pid"], signal.SIGKILL)
        self._until(lambda: self._rows(job) > rows, "history moves again", seconds=120, shown=job)
        self.say(f"the first new row was there after {_now() - began:.1f} s; no row was read twice")

    def _verify(self, job: int) -> bool:
        name = self.service.get(f"/v1/jobs/{job}")["job"]["name"]
        self.step(f"verify {name}: the view against its query, at one epoch")
        result = self.service.post(f"/v1/jobs/{job}/verify")
        self.say(f"view   {result['rows']:>9,} rows  digest {result['digest']}")
        self.say(f"query  {result['expected_rows']:>9,} rows  digest {result['expected_digest']}")
        self.console.print("[bold green]equal[/]" if result["equal"] else "[bold red]DIFFERENT[/]")
        return bool(result["equal"])

    def sql(self, text: str, **session: str) -> Mapping[str, Any]:
        """Run one statement."""
        return self.service.post("/v1/sql", {"sql": text, "session": session})

    def step(self, text: str) -> None:
        """Say what is done now."""
        self.console.print(f"[bold cyan]>[/] {text}", highlight=False)

    def say(self, text: str) -> None:
        """Say what came of it."""
        # Without markup: a progress text has brackets of its own.
        self.console.print(f"  {text}", highlight=False, markup=False)

    def _rows(self, job: int) -> int:
        return int(self.service.get(f"/v1/jobs/{job}")["job"]["progress"]["rows"])

    def _state(self, job: int) -> str:
        return str(self.service.get(f"/v1/jobs/{job}")["job"]["state"])

    def _look(self, job: int, *, seconds: float) -> None:
        end = _now() + seconds
        self._until(lambda: _now() >= end, "a few barriers", seconds=seconds + 60, shown=job)

    def _until(self, done: Callable[[], bool], what: str, *, seconds: float, shown: int) -> None:
        deadline, last, pause = _now() + seconds, "", threading.Event()
        while not done():
            if _now() > deadline:
                raise DemoFailedError(f"{what}: not within {seconds:.0f} s; {last}")
            line = _line(self.service.get(f"/v1/jobs/{shown}")["job"])
            if line != last:
                self.say(line)
            last = line
            pause.wait(0.5)


def demo(*, keep: bool) -> int:
    """Run the demo on a service of its own; return the exit code. `keep` leaves the service up until it is
    interrupted.
    """
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="tidefill-demo-"))
    # The embedded server may run under another account, which has to pass through.
    folder.chmod(0o711)
    try:
        with _serving(folder, console) as service:
            try:
                equal = Demo(console, service).run()
            except (DemoFailedError, RefusedError) as error:
                console.print(f"[bold red]failed:[/] {error}")
                console.print((folder / "service.log").read_text()[-2000:], markup=False)
                return 1
            if keep:
                _keep(console, service)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if equal else 4


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
    deadline, pause = _now() + START_SECONDS, threading.Event()
    while not _is_ready(http):
        if process.poll() is not None or _now() > deadline:
            raise SystemExit(f"the service did not start:\n{(folder / 'service.log').read_text()[-2000:]}")
        pause.wait(0.5)


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def _keep(console: Console, service: Service) -> None:
    url = service.http.base_url
    console.print(f"[bold]still running[/] at {url}: open {url}/docs, or in another terminal type")
    console.print(
        f"  tidefill --url {url} sql -c 'select status, count(*) from big_orders group by 1'", highlight=False
    )
    console.print("Ctrl-C ends it and removes everything.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping")


def _fresh(first: int) -> str:
    keys = f"generate_series({first}, {first + BATCH - 1})"
    return f"INSERT INTO orders SELECT g, g % 5000, 'new', 150.25, now() FROM {keys} g"


def _line(job: Mapping[str, Any]) -> str:
    progress = job["progress"]
    waits = f"  ({progress['waiting_for']})" if progress["waiting_for"] else ""
    eta = "" if progress["eta_seconds"] is None else f"  ETA {progress['eta_seconds']:.0f} s"
    return f"{progress['text']}  {progress['rows_per_second']:,.0f} rows/s{eta}{waits}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _now() -> float:
    return time.monotonic()  # noqa: TID251 - a client's own patience
