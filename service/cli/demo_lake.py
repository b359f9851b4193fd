"""`tidefill demo-lake`: from Delta to Delta, while another program keeps committing to the tables that are read.

A program that knows delta-rs and nothing of tidefill fills two Delta tables, and appends, updates and deletes from then
on. tidefill reads them in place. It builds a view that joins and groups them, and a sink that writes their join into a
third Delta table. The demo throttles, pauses and resumes the view, and kills the worker. At the end the view is
verified against its query, and a program of delta-rs computes the join anew and compares it with the third table.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from service.cli.stage import DemoFailedError, Stage, keep_until_interrupted, now, perform

ROWS: Final = 200_000
LIMIT: Final = 10_000
"""The view's first limit in rows per second and actor, which makes its progress visible."""
TRIES: Final = 60
"""For how many seconds the last commits may be on their way to the third table."""
FILL: Final = """
import sys
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
folder, rows = sys.argv[1], int(sys.argv[2])
fed = {"delta.enableChangeDataFeed": "true"}
ids = pa.array(range(5000), pa.int64())
cities = pa.array([f"city {one % 40}" for one in range(5000)])
write_deltalake(f"{folder}/customers", pa.table({"id": ids, "city": cities}), configuration=fed)
for first in range(0, rows, rows // 4):
    ids = pa.array(range(first, first + rows // 4), pa.int64())
    cents = pc.cast(pc.multiply(ids, 7), pa.decimal128(20, 0))
    amounts = pc.cast(pc.divide(cents, pa.scalar(100, pa.decimal128(3, 0))), pa.decimal128(12, 2), safe=False)
    customers = pa.array([one % 5000 for one in range(first, first + rows // 4)], pa.int64())
    table = pa.table({"id": ids, "customer": customers, "amount": amounts})
    write_deltalake(f"{folder}/orders", table, mode="append", configuration=fed)
"""
CHANGE: Final = """
import select, sys
from decimal import Decimal
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
folder, rows = sys.argv[1], int(sys.argv[2])
turn = 0
# Until its input ends.
while not select.select([sys.stdin], [], [], 2.0)[0]:
    turn += 1
    first = rows + turn * 500
    fresh = range(first, first + 500)
    table = pa.table({
        "id": pa.array(fresh, pa.int64()),
        "customer": pa.array([one % 5000 for one in fresh], pa.int64()),
        "amount": pa.array([Decimal(one % 900) for one in fresh], pa.decimal128(12, 2)),
    })
    write_deltalake(f"{folder}/orders", table, mode="append")
    if turn % 3 == 0:
        DeltaTable(f"{folder}/orders").delete(f"id >= {turn * 1000} and id < {turn * 1000 + 200}")
    if turn % 2 == 0:
        DeltaTable(f"{folder}/customers").update(updates={"city": f"'city {turn % 40}'"}, predicate=f"id = {turn}")
print(DeltaTable(f"{folder}/orders").version() + DeltaTable(f"{folder}/customers").version())
"""
COMPARE: Final = """
import json, sys
from deltalake import DeltaTable
folder = sys.argv[1]
def rows(name): return DeltaTable(f"{folder}/{name}").to_pyarrow_table()
def totals(table):
    found = table.group_by("city").aggregate([("amount", "count"), ("amount", "sum")]).to_pylist()
    return sorted([one["city"], one["amount_count"], str(one["amount_sum"])] for one in found)
wanted = rows("orders").join(rows("customers").rename_columns(["customer", "city"]), "customer", join_type="inner")
print(json.dumps([totals(wanted), totals(rows("orders_by_city"))]))
"""
JOIN: Final = (
    "CREATE MATERIALIZED VIEW orders_by_city USING delta LOCATION '{}/orders_by_city' WITH (commit_interval = '2 s')"
    " AS SELECT o.id, c.city, o.amount FROM orders o JOIN customers c ON c.id = o.customer"
)
REVENUE: Final = (
    "CREATE MATERIALIZED VIEW revenue AS SELECT city, count(*) AS orders, sum(amount) AS revenue"
    " FROM orders_by_city GROUP BY city"
)
SHOWN: Final = "select * from revenue order by revenue desc limit 5"


@dataclass(frozen=True, slots=True)
class Demo:
    """One run against a service that is ready. `lake` is the folder of the Delta tables."""

    stage: Stage
    lake: Path

    def run(self) -> bool:
        """Run all steps; return whether the views and the third table are equal to what they should be."""
        stage = self.stage
        stage.step(f"a program of delta-rs fills two Delta tables, {ROWS:,} orders of 5,000 customers")
        _program(FILL, self.lake, ROWS)
        with self._changing():
            for table in ("customers", "orders"):
                self._say(
                    f"CREATE TABLE {table} (*, PRIMARY KEY (id))"
                    f" WITH (connector = 'deltalake', location = '{self.lake}/{table}')"
                )
            stage.step(JOIN.format(self.lake))
            stage.sql(JOIN.format(self.lake), background_ddl="true", backfill_rate_limit=str(LIMIT))
            job = stage.service.job_called("orders_by_city")
            self._steer(job)
            stage.until(lambda: stage.state(job) == "Created", "the view is created", seconds=180, shown=job)
            self._say(REVENUE)
            stage.look(job, seconds=4)
        stage.sql("FLUSH")
        stage.step("which engine read what: history and changes")
        stage.engines(job)
        grouped = stage.service.job_called("revenue")
        return all([stage.verify(job), stage.verify(grouped), self._compared()])

    def _say(self, statement: str) -> None:
        self.stage.step(statement)
        self.stage.sql(statement)

    def _steer(self, job: int) -> None:
        stage = self.stage
        stage.until(lambda: stage.rows(job) > ROWS // 20, "5 % are there", seconds=120, shown=job)
        stage.step("pause")
        stage.service.post("/v1/mutations", {"type": "pause"}, wait="applied")
        rows = stage.rows(job)
        stage.look(job, seconds=3)
        if stage.rows(job) != rows:
            raise DemoFailedError(f"history moved while paused: {rows} -> {stage.rows(job)}")
        stage.step("resume")
        stage.service.post("/v1/mutations", {"type": "resume"}, wait="applied")
        stage.until(lambda: stage.rows(job) > ROWS // 4, "a quarter is there", seconds=120, shown=job)
        stage.kill_worker(job)
        stage.step("no limit from here on")
        stage.sql("ALTER MATERIALIZED VIEW orders_by_city SET BACKFILL_RATE_LIMIT TO DEFAULT")

    @contextmanager
    def _changing(self) -> Generator[None]:
        """Have a program commit to both tables every two seconds."""
        self.stage.step("it appends, updates and deletes from now on")
        began, command = now(), [sys.executable, "-c", CHANGE, str(self.lake), str(ROWS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603 - ours
            try:
                yield
            finally:
                commits, _ = program.communicate("end")
        if program.returncode:
            raise DemoFailedError("the program that changes the tables has failed")
        self.stage.say(f"the program made {int(commits):,} commits in {now() - began:.0f} s")

    def _compared(self) -> bool:
        """Whether delta-rs finds in the third table what it computes from the other two."""
        self.stage.step("orders by city, computed by delta-rs and Arrow from the two tables, against the third one")
        wanted, found = list[list[object]](), list[list[object]]()
        for _ in range(TRIES):
            wanted, found = json.loads(_program(COMPARE, self.lake))
            if found == wanted:
                break
            threading.Event().wait(1)
        for what, totals in (("third table", found), ("computed", wanted)):
            count = sum(int(str(one[1])) for one in totals)
            self.stage.say(f"{what:<14} {count:>9,} rows in {len(totals)} cities")
        return self.stage.verdict(equal=found == wanted)


def demo_lake(*, keep: bool) -> int:
    """Run the demo on a service of its own; return the exit code. `keep` leaves the service running until Ctrl-C."""
    return perform(partial(_run, keep=keep))


def _run(stage: Stage, folder: Path, *, keep: bool) -> bool:
    lake = folder / "lake"
    lake.mkdir()
    equal = Demo(stage, lake).run()
    if keep:
        keep_until_interrupted(stage, SHOWN)
    return equal


def _program(text: str, *arguments: object) -> str:
    return subprocess.check_output([sys.executable, "-c", text, *map(str, arguments)], text=True)  # noqa: S603 - ours
