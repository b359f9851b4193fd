"""`tidefill demo`: backfill an analyst's views while their tables keep changing, on a service of its own.

One million orders of 5,000 customers are loaded. Writers insert, update (some change keys) and delete, while the
revenue per customer and day is built, and a sink keeps a Delta table of the customers. The demo pauses, resumes,
throttles and releases the view, and kills the worker. The ten products with most revenue and the latest order of each
customer follow. Then a union of two tables with a backfill order is built; its rate limit adapts to the load, and its
actors are doubled. At the end each view is verified against its query, and the Delta table is counted.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from service.cli.client import RefusedError, Service, UnreachableError
from service.cli.stage import DemoFailedError, Stage, keep_until_interrupted, now, perform

ROWS: Final = 1_000_000
WRITERS: Final = 6
BATCH: Final = 400
"""Rows that one statement of a writer changes. Each statement is answered with its epoch, about one a second."""
MOVED: Final = 10_000_000
"""The distance by which keys are moved, beyond all loaded keys."""
LAKE_TRIES: Final = 30
"""For how many seconds the last changes may be on their way to the Delta table."""
LIMIT: Final = 25_000
"""The view's first limit in rows per second and actor, which makes its progress visible."""
CUSTOMERS: Final = "CREATE TABLE customers (id bigint PRIMARY KEY, name text, city text)"
LOAD_CUSTOMERS: Final = (
    "INSERT INTO customers SELECT g, 'customer ' || g, 'city ' || g % 40 FROM generate_series(0, 4999) g"
)
ORDERS: Final = (
    "CREATE TABLE orders"
    " (id bigint PRIMARY KEY, customer bigint, product bigint, status text, amount numeric(12,2), created timestamp)"
)
LOAD: Final = (
    "INSERT INTO orders SELECT g, g % 5000, g % 7919 % 1000, 'open', (g % 100000) / 100.0,"
    f" timestamp '2026-01-01' + g * interval '10 s' FROM generate_series(1, {ROWS}) g"
)
REVENUE: Final = (
    "CREATE MATERIALIZED VIEW revenue AS SELECT c.city, o.customer, o.created::date AS day, count(*) AS orders,"
    " sum(o.amount) AS revenue FROM orders o JOIN customers c ON c.id = o.customer"
    " GROUP BY c.city, o.customer, o.created::date"
)
TOP: Final = (
    "CREATE MATERIALIZED VIEW top_products AS SELECT product, sum(amount) AS revenue FROM orders"
    " GROUP BY product ORDER BY revenue DESC, product LIMIT 10"
)
LATEST: Final = (
    "CREATE MATERIALIZED VIEW latest_orders AS SELECT DISTINCT ON (customer) customer, id, created, amount"
    " FROM orders ORDER BY customer, created DESC, id DESC"
)
ARCHIVE: Final = "CREATE TABLE archive (id bigint PRIMARY KEY, customer bigint, amount numeric(12,2))"
ARCHIVED: Final = "INSERT INTO archive SELECT g, g % 5000, 10 FROM generate_series(1, 20000) g"
SHOWN: Final = "select city, sum(revenue) from revenue group by 1 order by 2 desc limit 5"
LAKE: Final = (
    "CREATE SINK customers_lake FROM customers WITH (connector = 'deltalake', location = '{}', commit_interval = '2 s')"
)
BY_CITY: Final = "SELECT city, count(*) FROM customers GROUP BY city"
FOREIGN: Final = """
import json, sys
from deltalake import DeltaTable
counts = DeltaTable(sys.argv[1]).to_pyarrow_table().group_by("city").aggregate([("id", "count")]).to_pylist()
print(json.dumps(sorted([one["city"], one["id_count"]] for one in counts)))
"""
"""A program that knows delta-rs and nothing of tidefill."""
UNION: Final = (
    "CREATE MATERIALIZED VIEW every_order"
    " WITH (backfill_order = FIXED(archive -> orders), backfill_rate_limit = 'auto')"
    " AS SELECT id, customer, amount FROM archive UNION ALL SELECT id, customer, amount FROM orders"
)


@dataclass
class Writers:
    """Threads that keep `orders` changing until they are stopped."""

    service: Service
    stop: threading.Event = field(default_factory=threading.Event)
    changed: int = 0
    began: float = 0.0
    failed: list[str] = field(default_factory=list[str])
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start writing."""
        self.began = now()
        self.threads = [threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def end(self) -> float:
        """Stop writing. Return the rows changed per second. Raises DemoFailedError if a statement was refused."""
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=120)
        if self.failed:
            raise DemoFailedError(f"a writer was refused: {self.failed[0]}")
        return self.changed / (now() - self.began)

    def _write(self, number: int) -> None:
        turn = 0
        while not self.stop.is_set():
            turn += 1
            # Each writer visits keys of its own, all over the table.
            first = (turn * 7919 + number * ROWS // WRITERS) % ROWS
            fresh = ROWS + (number + 1) * MOVED + turn * BATCH
            for statement in (
                _fresh(fresh),
                f"UPDATE orders SET amount = amount + 50, status = 'paid' WHERE id BETWEEN {first} AND {first + BATCH}",
                f"UPDATE orders SET id = id + {MOVED * 10} WHERE id BETWEEN {first} AND {first + BATCH // 10}",
                f"DELETE FROM orders WHERE id BETWEEN {first + BATCH + 1} AND {first + BATCH + BATCH // 4}",
                f"UPDATE customers SET city = 'city {turn % 40}' WHERE id = {first % 5000}",
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
            except UnreachableError:
                pass
            else:
                with self.lock:
                    self.changed += int(tag.rsplit(maxsplit=1)[-1])
                return


@dataclass(frozen=True, slots=True)
class Demo:
    """One run against a service that is ready."""

    stage: Stage
    lake: Path
    """The folder of the Delta table."""

    def run(self) -> bool:
        """Run all steps; return whether every view equals its query."""
        for table in (CUSTOMERS, ORDERS):
            self.stage.step(table)
            self.stage.sql(table)
        self.stage.step(f"loading {ROWS:,} rows")
        began = now()
        for load in (LOAD_CUSTOMERS, LOAD):
            self.stage.sql(load)
        self.stage.say(f"loaded in {now() - began:.1f} s")
        writers = Writers(self.stage.service)
        self.stage.step("writers insert, update, move keys and delete from now on")
        writers.start()
        self.stage.step(LAKE.format(self.lake))
        self.stage.sql(LAKE.format(self.lake))
        self.stage.step(REVENUE)
        self.stage.sql(REVENUE, background_ddl="true", backfill_rate_limit=str(LIMIT))
        job = self.stage.service.job_called("revenue")
        self._steer(job)
        self.stage.until(lambda: self.stage.state(job) == "Created", "the view is created", seconds=180, shown=job)
        jobs = [job, self._created(TOP, "top_products"), self._created(LATEST, "latest_orders"), self._union()]
        rate = writers.end()
        self.stage.say(f"the writers changed {writers.changed:,} rows, {rate:,.0f} rows/s")
        self.stage.sql("FLUSH")
        self.stage.step("which engine read what: history and changes")
        for one in jobs:
            self.stage.engines(one)
        return all([*(self.stage.verify(one) for one in jobs), self._in_lake()])

    def _in_lake(self) -> bool:
        """Whether a foreign reader counts the same rows in the Delta table as a SELECT over the sink's relation."""
        self.stage.step("customers by city in the Delta table, counted by delta-rs, against the SELECT")
        wanted: list[list[Any]] = sorted(self.stage.sql(BY_CITY)["rows"])
        found: list[list[Any]] = []
        for _ in range(LAKE_TRIES):
            found = json.loads(subprocess.check_output([sys.executable, "-c", FOREIGN, str(self.lake)]))  # noqa: S603 - ours
            if found == wanted:
                break
            threading.Event().wait(1)
        self.stage.say(f"Delta table    {sum(count for _, count in found):>9,} rows in {len(found)} cities")
        self.stage.say(f"query          {sum(count for _, count in wanted):>9,} rows in {len(wanted)} cities")
        return self.stage.verdict(equal=found == wanted)

    def _created(self, statement: str, view: str) -> int:
        """Create a view while its table changes."""
        self.stage.step(statement)
        self.stage.sql(statement)
        return self.stage.service.job_called(view)

    def _union(self) -> int:
        """Create a union that reads two histories in order, in the database graph. Change its actors and its limit
        meanwhile.
        """
        self.stage.step(ARCHIVE)
        self.stage.sql(ARCHIVE)
        self.stage.sql(ARCHIVED)
        self.stage.step(UNION)
        self.stage.sql(UNION, background_ddl="true", streaming_use_snapshot_backfill="false", streaming_parallelism="1")
        job = self.stage.service.job_called("every_order")
        self.stage.look(job, seconds=6)
        changes = self.stage.service.get(f"/v1/jobs/{job}/limit-history")["items"]
        for change in reversed(changes[:4]):
            self.stage.say(f"limit {change['before']:,} -> {change['after']:,} rows/s per actor: {change['reason']}")
        self.stage.step("ALTER MATERIALIZED VIEW every_order SET PARALLELISM = 2")
        self.stage.sql("ALTER MATERIALIZED VIEW every_order SET PARALLELISM = 2")
        actors = {scan["upstream"]: len(scan["actors"]) for scan in self._scans(job)}
        self.stage.say(
            f"actors now: {', '.join(f'{name} {count}' for name, count in actors.items())}; no position was lost"
        )
        self.stage.look(job, seconds=3)
        self.stage.step("no limit from here on")
        self.stage.sql("ALTER MATERIALIZED VIEW every_order SET BACKFILL_RATE_LIMIT TO DEFAULT")
        self.stage.until(lambda: self.stage.state(job) == "Created", "the view is created", seconds=180, shown=job)
        return job

    def _scans(self, job: int) -> Sequence[Mapping[str, Any]]:
        return [one for one in self.stage.service.get(f"/v1/jobs/{job}")["fragments"] if one["scan_type"]]

    def _steer(self, job: int) -> None:
        self.stage.until(lambda: self.stage.rows(job) > ROWS // 20, "5 % are there", seconds=120, shown=job)
        self.stage.step("pause")
        epoch = self.stage.service.post("/v1/mutations", {"type": "pause"}, wait="applied")["epoch"]
        rows = self.stage.rows(job)
        self.stage.say(f"paused at epoch {epoch} with {rows:,} rows; the writers go on")
        self.stage.look(job, seconds=4)
        if self.stage.rows(job) != rows:
            raise DemoFailedError(f"history moved while paused: {rows} -> {self.stage.rows(job)}")
        self.stage.step("resume")
        self.stage.service.post("/v1/mutations", {"type": "resume"}, wait="applied")
        self.stage.look(job, seconds=3)
        self.stage.step("throttle to 2,000 rows/s per actor")
        self.stage.sql("ALTER MATERIALIZED VIEW revenue SET BACKFILL_RATE_LIMIT TO 2000")
        self.stage.look(job, seconds=4)
        self.stage.step(f"release to {LIMIT:,} rows/s per actor")
        self.stage.sql(f"ALTER MATERIALIZED VIEW revenue SET BACKFILL_RATE_LIMIT TO {LIMIT}")
        self.stage.until(lambda: self.stage.rows(job) > ROWS // 3, "a third is there", seconds=120, shown=job)
        self.stage.kill_worker(job)
        self.stage.step("no limit from here on")
        self.stage.sql("ALTER MATERIALIZED VIEW revenue SET BACKFILL_RATE_LIMIT TO DEFAULT")


def demo(*, keep: bool) -> int:
    """Run the demo on a service of its own; return the exit code. `keep` leaves the service running until Ctrl-C."""
    return perform(partial(_run, keep=keep))


def _run(stage: Stage, folder: Path, *, keep: bool) -> bool:
    equal = Demo(stage, folder / "lake" / "customers").run()
    if keep:
        keep_until_interrupted(stage, SHOWN)
    return equal


def _fresh(first: int) -> str:
    keys = f"generate_series({first}, {first + BATCH - 1})"
    return f"INSERT INTO orders SELECT g, g % 5000, g % 1000, 'new', 150.25, now()::timestamp FROM {keys} g"
