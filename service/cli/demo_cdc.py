"""`tidefill demo-cdc`: tables that follow a live external Postgres, a "production" server of the demo.

`pgbench` fills four tables and keeps changing them. The demo creates a source, four tables that follow them, and two
views while the load continues. It kills the worker and restarts the external server. At the end the load stops. Every
table is compared with the one that it follows, and every view with its query.
"""

import os
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from service.cli.stage import DemoFailedError, Stage, keep_until_interrupted, now, perform
from service.embedded.postgres import EmbeddedPostgres
from service.embedded.postgres_wheel import postgres_programs
from service.embedded.server_account import ServerAccount

SCALE: Final = 10
"""pgbench's scale factor; each unit is a hundred thousand accounts."""
CLIENTS: Final = 4
TRANSACTIONS_PER_SECOND: Final = 300
"""Each transaction changes three tables and inserts a row into the fourth."""
TABLES: Final[Mapping[str, str]] = {
    "pgbench_accounts": "aid",
    "pgbench_tellers": "tid",
    "pgbench_branches": "bid",
    "pgbench_history": "id",
}
"""The tables with their keys. pgbench gives its history no key, but a table without one cannot be followed."""
LARGEST: Final = "pgbench_accounts"
LIMIT: Final = 20_000
"""The first limit of the largest table in rows per second, which makes its progress visible."""
VIEWS: Final[Mapping[str, str]] = {
    "rich_accounts": "SELECT aid, bid, abalance FROM pgbench_accounts WHERE abalance > 1000",
    "every_change": (
        "SELECT id, tid, bid, delta FROM pgbench_history WHERE delta > 0"
        " UNION ALL SELECT id, tid, bid, - delta AS delta FROM pgbench_history WHERE delta <= 0"
    ),
}
SHOWN: Final = "select count(*), sum(abalance) from pgbench_accounts"


@dataclass
class Production:
    """The external server and its load."""

    server: EmbeddedPostgres
    programs: Path
    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    running: "subprocess.Popen[bytes] | None" = None
    thread: threading.Thread | None = None

    def fill(self) -> None:
        """Create and fill the four tables. Raises DemoFailedError."""
        made = self._pgbench("--initialize", "--quiet", "--scale", str(SCALE))
        _, said = made.communicate()
        if made.returncode:
            raise DemoFailedError(f"pgbench could not fill its tables: {said.decode(errors='replace')[-500:]}")
        with psycopg.connect(self.url) as connection:
            connection.execute("alter table pgbench_history add column id bigserial primary key")

    def start_load(self) -> None:
        """Start changing the tables. The load survives restarts of the server."""
        self.thread = threading.Thread(target=self._load, daemon=True)
        self.thread.start()

    def end_load(self) -> None:
        """Stop changing the tables."""
        self.stop.set()
        if self.running is not None:
            self.running.terminate()
        if self.thread is not None:
            self.thread.join()

    def restart(self) -> None:
        """Stop the server and start it again at the same URL."""
        self.server.stop()
        assert self.server.start() == self.url, "the server came back elsewhere"

    def _load(self) -> None:
        pause = threading.Event()
        while not self.stop.is_set():
            # pgbench exits when the server goes away, and is started again.
            rate = ("--rate", str(TRANSACTIONS_PER_SECOND))
            self.running = self._pgbench("--client", str(CLIENTS), "--time", "3600", "--no-vacuum", *rate)
            self.running.communicate()
            pause.wait(0.2)

    def _pgbench(self, *options: str) -> "subprocess.Popen[bytes]":
        parts = conninfo_to_dict(self.url)
        # Passed in the environment, because the process list shows command lines to everybody.
        names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password", "PGDATABASE": "dbname"}
        environment = {name: str(parts[part]) for name, part in names.items()}
        command = [self.programs / "pgbench", *options]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: S603 - our own program, no shell


@dataclass(frozen=True, slots=True)
class Demo:
    """One run against a service and an external server that are ready."""

    stage: Stage
    production: Production

    def run(self) -> bool:
        """Run all steps; return whether every table and view is equal."""
        stage = self.stage
        stage.step(f"pgbench fills four tables at scale {SCALE} in a second server, and changes them from now on")
        self.production.fill()
        self.production.start_load()
        stage.step("CREATE SECRET production_password; CREATE SOURCE production")
        self._source()
        jobs = {table: self._follow(table) for table in TABLES}
        stage.look(jobs[LARGEST], seconds=4)
        views = [self._view(name, query) for name, query in VIEWS.items()]
        stage.kill_worker(jobs[LARGEST])
        stage.step("the external server is restarted")
        began, rows = now(), stage.rows(jobs[LARGEST])
        self.production.restart()
        stage.until(lambda: stage.rows(jobs[LARGEST]) > rows, "history moves again", seconds=120, shown=jobs[LARGEST])
        stage.say(f"the first new row was there {now() - began:.1f} s after it was stopped")
        stage.step("no limit from here on")
        stage.sql(f"ALTER TABLE {LARGEST} SET BACKFILL_RATE_LIMIT TO DEFAULT")
        stage.until(self._backfilled, "every table holds its history", seconds=180, shown=jobs[LARGEST])
        for view in views:
            stage.until(partial(self._created, view), "the view is created", seconds=180, shown=view)
        stage.step("the load stops; every table is compared with the one that it follows, every view with its query")
        self.production.end_load()
        tables = [stage.verify(job, "table", "external table") for job in jobs.values()]
        return all([*tables, *(stage.verify(view) for view in views)])

    def _source(self) -> None:
        parts = conninfo_to_dict(self.production.url)
        self.stage.sql(f"CREATE SECRET production_password WITH (backend = 'meta') AS '{parts['password']}'")
        self.stage.sql(
            "CREATE SOURCE production WITH (connector = 'postgres-cdc',"
            f" hostname = '{parts['host']}', port = '{parts['port']}', username = '{parts['user']}',"
            f" password = secret production_password, database.name = '{parts['dbname']}', slot.name = 'tidefill_demo')"
        )

    def _follow(self, table: str) -> int:
        limit = f" WITH (backfill_rate_limit = {LIMIT})" if table == LARGEST else ""
        statement = f"CREATE TABLE {table} (*){limit} FROM production TABLE 'public.{table}'"
        self.stage.step(statement)
        self.stage.sql(statement)
        return self.stage.service.job_called(table)

    def _view(self, name: str, query: str) -> int:
        statement = f"CREATE MATERIALIZED VIEW {name} AS {query}"
        self.stage.step(statement)
        self.stage.sql(statement, background_ddl="true")
        return self.stage.service.job_called(name)

    def _backfilled(self) -> bool:
        (row,) = self.stage.sql(
            "SELECT count(*) FROM rw_catalog.rw_cdc_progress WHERE split_completed_count < split_total_count"
        )["rows"]
        return int(row[0]) == 0

    def _created(self, job: int) -> bool:
        return self.stage.state(job) == "Created"


def demo_cdc(*, keep: bool) -> int:
    """Run the demo on its own service and external server; return the exit code. `keep` leaves both running until
    Ctrl-C.
    """
    return perform(partial(_run, keep=keep))


def _run(stage: Stage, folder: Path, *, keep: bool) -> bool:
    with production(folder / "production") as there:
        equal = Demo(stage, there).run()
        if keep:
            keep_until_interrupted(stage, SHOWN)
        return equal


@contextmanager
def production(folder: Path) -> Generator[Production]:
    """Run an external server in `folder`. Stop it and its load afterwards."""
    server = EmbeddedPostgres(folder)
    url = server.start()
    # The load runs under our own account, which can access the installed programs.
    programs = postgres_programs(ServerAccount(os.getuid(), os.getgid(), lent=False), folder / "programs")
    there = Production(server, programs, url)
    try:
        yield there
    finally:
        there.end_load()
        server.stop()
