"""Views in Delta tables over Delta tables and over a table in Postgres, beside plain Spark that computes the same from
the same rows, and beside a MERGE that somebody writes by hand.
"""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from tests.bench.baselines import NotMeasuredError, in_a_process, jdbc_query
from tests.bench.clock import monotonic
from tests.bench.figures import Figure, Section, Target, ratio
from tests.bench.idle import used_by
from tests.bench.memory import Memory, peak_of, peaks_of
from tests.bench.tables import Table, Tables
from tests.support.mirrored_lake import FED
from tests.support.service import Service
from tests.support.spark_lake import SparkWriter
from tests.support.waiting import until

PLAIN: Final = (sys.executable, "-m", "tests.bench.parquet_query")
CHUNK: Final = 1_000_000
DIMS: Final = 100_000
CHANGED_FACTS: Final = 10_000
CHANGED_DIMS: Final = 100
QUERIES: Final = {
    "join": "SELECT f.id, f.amount, d.name FROM facts f JOIN dims d ON d.id = f.dim",
    "aggregate": (
        "SELECT d.name, count(*) AS n, sum(f.amount) AS total FROM facts f JOIN dims d ON d.id = f.dim GROUP BY d.name"
    ),
}


COMPUTED: Final = "SELECT id, customer, amount * 2 AS amount, created FROM {}"


def lake(service: Service, tables: Tables, sizes: list[int]) -> list[Section]:
    """Measure tables of several sizes: history, then one epoch of changes, and what that takes of memory."""
    sections: list[Section] = []
    peaks: list[Figure] = []
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="tidefill-bench-") as folder:
            with Memory(service) as memory:
                figures = _measured(service, rows, Path(folder))
            peaks.append(peak_of(rows, [memory]))
            sections.append(Section(f"From Delta to Delta, {rows:,} facts", tuple(figures)))
            computed = tuple(_from_postgres(service, tables.of(rows), Path(folder)))
            sections.append(Section(f"From Postgres to Delta, {rows:,} rows with a computed column", computed))
    return [*sections, peaks_of(peaks)]


def _from_postgres(service: Service, table: Table, folder: Path) -> list[Figure]:
    began = monotonic()
    place = f"USING delta LOCATION '{folder / 'computed'}' WITH (commit_interval = '1 s')"
    text = COMPUTED.replace("amount * 2", "(amount * 2)::numeric(14, 2)").format(table.name)
    service.run(f"CREATE MATERIALIZED VIEW computed {place} AS {text}")
    seconds = monotonic() - began
    service.run("DROP MATERIALIZED VIEW computed")
    with service.store() as store:
        store.execute("drop schema if exists bench cascade; create schema bench")
        store.execute(f"create table bench.facts as select * from {table.name}".encode())
        store.execute("alter table bench.facts add primary key (id)")
        store.execute("analyze bench.facts")
    told, missing = None, ""
    try:
        told = jdbc_query(service, COMPUTED.format("f"), {"f": ("bench.facts", table.rows)}, str(folder / "jdbc"))
    except NotMeasuredError as error:
        missing = str(error)
    with service.store() as store:
        store.execute("drop schema bench cascade")
    return [
        Figure("history", table.rows / seconds, "rows/s"),
        Figure("... plain Spark, JDBC to Parquet", told and table.rows / told, "rows/s", note=missing),
        Figure("... as a share of it", told and ratio(told, seconds), "", Target(">=", 1.0)),
    ]


def _measured(service: Service, rows: int, folder: Path) -> list[Figure]:
    _write(folder, rows)
    service.run("ALTER SYSTEM SET barrier_interval_ms = 500")
    for name in ("facts", "dims"):
        place = f"WITH (connector = 'deltalake', location = '{folder / name}')"
        service.run(f"CREATE TABLE {name} (*, PRIMARY KEY (id)) {place}")
    figures: list[Figure] = []
    plain: dict[str, dict[str, float]] = {}
    for name, query in QUERIES.items():
        plain[name] = _plain(folder, query)
        began = monotonic()
        place = f"USING delta LOCATION '{folder / name}_view' WITH (commit_interval = '1 s')"
        listed = query.replace("sum(f.amount)", "sum(f.amount)::numeric(38, 2)")
        service.run(f"CREATE MATERIALIZED VIEW {name}_view {place} AS {listed}")
        seconds, told = monotonic() - began, plain[name]["seconds"]
        figures += [
            Figure(f"history of the {name}", rows / seconds, "rows/s"),
            Figure("... plain Spark, Parquet to Parquet", rows / told, "rows/s"),
            Figure("... as a share of it", ratio(told, seconds), "", Target(">=", 0.8)),
        ]
    figures += _epoch(service, folder, rows, plain)
    for name in QUERIES:
        service.run(f"DROP MATERIALIZED VIEW {name}_view")
    for name in ("facts", "dims"):
        service.run(f"DROP TABLE {name}")
    return figures


def _epoch(service: Service, folder: Path, rows: int, plain: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """Change some facts and some dims, and measure until both views have it."""
    assert service.process is not None
    versions = {name: DeltaTable(folder / f"{name}_view").version() for name in QUERIES}
    shutil.copytree(folder / "join_view", folder / "merged")
    before, began = used_by(service.worker_pid()), monotonic()
    every = max(rows // CHANGED_FACTS, 1)
    DeltaTable(folder / "facts").update(updates={"amount": "amount + 1"}, predicate=f"id % {every} = 0")
    DeltaTable(folder / "dims").update(updates={"name": "'other ' || name"}, predicate=f"id < {CHANGED_DIMS}")
    committed = monotonic()
    wanted = _total(DeltaTable(folder / "facts"), "amount")
    until(
        lambda: (
            all(DeltaTable(folder / f"{name}_view").version() > one for name, one in versions.items())
            and _total(DeltaTable(folder / "join_view"), "amount") == wanted
            and _total(DeltaTable(folder / "aggregate_view"), "total") == wanted
            and _others(folder) == CHANGED_DIMS
        ),
        what="the views have the changes",
        seconds=600,
    )
    seconds, after = monotonic() - committed, used_by(service.worker_pid())
    used = sum(one - before.get(pid, 0) for pid, one in after.items())
    again = sum(one["processor"] for one in plain.values())
    return [
        Figure("10,000 changed facts and 100 changed dims, until both views have them", seconds, "s"),
        Figure("... processor time of the worker", used, "s", note=f"{committed - began:.1f} s took the two commits"),
        Figure("... as a share of computing both anew", ratio(used, again), "", Target("<=", 0.2)),
        *_by_hand(folder, versions["join"], used),
    ]


def _by_hand(folder: Path, version: int, used: float) -> list[Figure]:
    """Bring the rows that changed in the join into a copy of it as it was, by a MERGE of Spark that is warm."""
    feed = pa.table(DeltaTable(folder / "join_view").load_cdf(starting_version=version + 1).read_all())
    came = sorted(feed.to_pylist(), key=lambda row: row["_commit_version"])
    last = {row["id"]: row for row in came if row["_change_type"] in {"insert", "update_postimage"}}
    schema = pa.schema([("id", pa.int64()), ("amount", pa.decimal128(12, 2)), ("name", pa.string())])
    rows = pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in last.values()], schema)
    writer = SparkWriter.start()
    try:
        writer.upsert(folder / "merged", rows.slice(0, 10), ["id"])
        before, began = used_by(writer.process.pid), monotonic()
        writer.upsert(folder / "merged", rows, ["id"])
        seconds, after = monotonic() - began, used_by(writer.process.pid)
    except (AssertionError, OSError):
        return [Figure("a MERGE of the join's rows by hand", None, "", note="Delta's jars could not be fetched")]
    finally:
        writer.stop()
    by_hand = sum(one - before.get(pid, 0) for pid, one in after.items())
    return [
        Figure("... a MERGE of the join's rows by hand, one task", seconds, "s", note=f"{rows.num_rows:,} rows"),
        Figure("... its processor time", by_hand, "s"),
        Figure("... of both views, as a multiple of that of this MERGE", ratio(used, by_hand), "x"),
    ]


def _write(folder: Path, rows: int) -> None:
    dims = min(DIMS, rows)
    ids = pa.array(range(dims), pa.int64())
    names = pa.array([f"dim {one}" for one in range(dims)])
    write_deltalake(folder / "dims", pa.table({"id": ids, "name": names}), configuration=FED)
    for first in range(0, rows, CHUNK):
        ids = pa.array(range(first, min(first + CHUNK, rows)), pa.int64())
        cents = pc.cast(pc.cast(pc.bit_wise_and(ids, pa.scalar(0xFFFF)), pa.int32()), pa.decimal128(12, 2))
        facts = {"id": ids, "dim": pc.subtract(ids, pc.multiply(pc.divide(ids, dims), dims)), "amount": cents}
        write_deltalake(folder / "facts", pa.table(facts), mode="append", configuration=FED)


def _plain(folder: Path, query: str) -> dict[str, float]:
    files = {
        name: [unquote(one.removeprefix("file://")) for one in DeltaTable(folder / name).file_uris()]
        for name in ("facts", "dims")
    }
    task = {"tables": files, "query": query, "target": str(folder / "plain")}
    return in_a_process(PLAIN, task)


def _total(table: DeltaTable, column: str) -> Any:
    return pc.sum(table.to_pyarrow_table(columns=[column]).column(column)).as_py()


def _others(folder: Path) -> int:
    names = DeltaTable(folder / "aggregate_view").to_pyarrow_table(columns=["name"]).column("name")
    return sum(str(one).startswith("other ") for one in names.to_pylist())
