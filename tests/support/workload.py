"""A table that never stops changing while a view is built from it, and what must be true of both (I1, I3, I6).

The writers run over HTTP and outlive every kill: a statement whose answer was lost may or may not have run, but never
twice; one that was answered has run once.
"""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.support.service import ProblemError, Service
from tests.support.waiting import LONGEST, Repeating, until

ROWS = 20_000
MOVED = 10_000_000
QUERY = "SELECT id, v * 2 AS doubled, upper(note) AS note FROM orders WHERE v % 3 <> 0"
SLOW = 200
"""Rows per second and actor: the backfill outlasts what a test does to it."""
ARRANGEMENT, SNAPSHOT = "doubled", "decoupled"
STRATEGIES = {ARRANGEMENT: "false", SNAPSHOT: "true"}
"""Each view, and whether the session that creates it asks for a snapshot backfill."""


@dataclass
class Workload:
    """`orders` and `ledger` change; views of `strategies` are built from `orders` side by side, at first slowly."""

    service: Service
    strategies: Collection[str] = (ARRANGEMENT,)
    answered: set[int] = field(default_factory=set[int])
    seen: int = 0
    """The most rows of history that were ever reported."""
    jobs: dict[str, int] = field(default_factory=dict[str, int])
    threads: tuple[Repeating, ...] = ()

    def prepare(self) -> None:
        """Load the table and start the view."""
        service = self.service
        service.run("CREATE TABLE orders (id bigint PRIMARY KEY, v int, note text)")
        service.run("CREATE TABLE ledger (n bigint)")
        service.run(f"INSERT INTO orders SELECT g, g % 1000, 'note ' || g FROM generate_series(1, {ROWS}) g")
        service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
        for view in self.strategies:
            create = f"CREATE MATERIALIZED VIEW {view} WITH (backfill_rate_limit = {SLOW}) AS {QUERY}"
            service.run(create, background_ddl="true", streaming_use_snapshot_backfill=STRATEGIES[view])
            self.jobs[view] = service.job(view)

    @property
    def job(self) -> int:
        """The job that is watched."""
        return next(iter(self.jobs.values()))

    @contextmanager
    def running(self) -> Generator[None]:
        """Write, and watch the progress, for as long as this lasts, or until `stop`."""
        with Repeating(self._write) as writing, Repeating(self._look, LONGEST) as looking:
            self.threads = (writing, looking)
            yield

    def stop(self) -> None:
        """Stop writing and watching."""
        for thread in self.threads:
            thread.end()

    def finish(self) -> None:
        """Let the backfill end and check everything; the writers have stopped."""
        service = self.service
        for job in self.jobs.values():
            service.limit(job, None)
        for view in self.strategies:
            service.until_created(view)
        service.flush()
        for view in self.strategies:
            assert service.assert_equal(view, QUERY) > 0
        counted = dict(service.sql("SELECT n, count(*) FROM ledger GROUP BY n"))
        assert set(counted.values()) <= {1}, "a statement ran twice"
        assert self.answered, "no statement was answered"
        assert self.answered <= counted.keys(), "a statement that was answered is lost"

    def _write(self, turn: int) -> None:
        first, fresh = turn * 731 % ROWS, ROWS + turn * 20
        statements = (
            f"INSERT INTO ledger VALUES ({turn})",
            f"INSERT INTO orders SELECT g, {turn}, 'new' FROM generate_series({fresh}, {fresh + 19}) g",
            f"UPDATE orders SET v = v + 1 WHERE id BETWEEN {first} AND {first + 40}",
            f"UPDATE orders SET id = id + {MOVED} WHERE id BETWEEN {first + 10} AND {first + 15}",
            f"DELETE FROM orders WHERE id BETWEEN {first + 50} AND {first + 60}",
        )
        for number, statement in enumerate(statements):
            if self._run(statement) and number == 0:
                self.answered.add(turn)

    def _run(self, statement: str) -> bool:
        try:
            self.service.run(statement)
        except httpx.TransportError:
            return False
        except ProblemError as error:
            if error.status != 503:
                raise
            return False
        return True

    def _look(self, _turn: int) -> None:
        """Rows never decrease, whoever is killed (I6)."""
        try:
            rows = self.service.rows(self.job)
        except (httpx.TransportError, ProblemError):
            return
        assert rows >= self.seen, f"I6: {rows} after {self.seen}"
        self.seen = rows


def until_reading(workload: Workload, rows: int) -> int:
    """Wait until more than `rows` rows of history were read, and the writers were answered."""
    until(lambda: len(workload.answered) > 2 or None, what="the writers are answered")
    return workload.service.until_rows(workload.job, rows)
