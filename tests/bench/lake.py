"""Views in Delta tables over Delta tables and over a table in Postgres, beside plain Spark that computes the same from
the same rows, and beside a MERGE that somebody writes by hand.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tests.bench.baselines import NotMeasuredError, in_a_process, jdbc_query
from tests.bench.clock import monotonic
from tests.bench.executors import executors
from tests.bench.figures import Figure, Section, Target, of_samples, ratio
from tests.bench.idle import used_by
from tests.bench.lake_tables import QUERIES, source, view, write
from tests.bench.memory import Memory, peak_of, peaks_of
from tests.bench.tables import Table, Tables
from tests.support.service import Service
from tests.support.spark_lake import SparkWriter
from tests.support.waiting import until

PLAIN: Final = (sys.executable, "-m", "tests.bench.parquet_query")
CHANGED_FACTS: Final = 10_000
CHANGED_DIMS: Final = 100
EPOCHS: Final = 4
"""So many epochs of changes are measured. For the first one the worker reads the inputs, and keeps them."""
COMPUTED: Final = "SELECT id, customer, amount * 2 AS amount, created FROM {}"


def lake(service: Service, tables: Tables, sizes: list[int]) -> list[Section]:
    """Measure tables of several sizes: history, then epochs of changes, and what that takes of memory."""
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
    return [*sections, peaks_of(peaks), *executors(sizes[-1])]


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
    write(folder, rows)
    service.run("ALTER SYSTEM SET barrier_interval_ms = 500")
    for name in ("facts", "dims"):
        service.run(source(folder, name))
    figures: list[Figure] = []
    plain: dict[str, dict[str, float]] = {}
    for name, query in QUERIES.items():
        plain[name] = _plain(folder, query)
        began = monotonic()
        service.run(view(folder, name, f"{name}_view"))
        seconds, told = monotonic() - began, plain[name]["seconds"]
        figures += [
            Figure(f"history of the {name}", rows / seconds, "rows/s"),
            Figure("... plain Spark, Parquet to Parquet", rows / told, "rows/s"),
            Figure("... as a share of it", ratio(told, seconds), "", Target(">=", 0.8)),
        ]
    figures += _epochs(service, folder, rows, sum(one["processor"] for one in plain.values()))
    for name in QUERIES:
        service.run(f"DROP MATERIALIZED VIEW {name}_view")
    for name in ("facts", "dims"):
        service.run(f"DROP TABLE {name}")
    return figures


def _epochs(service: Service, folder: Path, rows: int, again: float) -> list[Figure]:
    """Change some facts and some dims in each of several epochs. `again` is the processor time to compute both views
    anew.
    """
    (first, kept), *others = [_epoch(service, folder, rows, number) for number in range(EPOCHS - 1)]
    version = DeltaTable(folder / "join_view").version()
    shutil.copytree(folder / "join_view", folder / "merged")
    others.append(_epoch(service, folder, rows, EPOCHS - 1))
    used = of_samples("... processor time of the worker", [one for _, one in others], "s")
    return [
        Figure("10,000 changed facts and 100 changed dims, until both views have them: the first time", first, "s"),
        Figure("... processor time of the worker, which reads the inputs and keeps them", kept, "s"),
        of_samples("... every other time", [one for one, _ in others], "s"),
        used,
        Figure("... as a share of computing both anew", ratio(used.value, again), "", Target("<=", 0.2)),
        *_by_hand(folder, version, others[-1][1]),
    ]


def _epoch(service: Service, folder: Path, rows: int, number: int) -> tuple[float, float]:
    """Change rows, and return how many seconds it took until both views had them, and of the worker's processors."""
    versions = {name: DeltaTable(folder / f"{name}_view").version() for name in QUERIES}
    before, every = used_by(service.worker_pid()), max(rows // CHANGED_FACTS, 1)
    DeltaTable(folder / "facts").update(updates={"amount": "amount + 1"}, predicate=f"id % {every} = {number % every}")
    some = f"id >= {number * CHANGED_DIMS} and id < {(number + 1) * CHANGED_DIMS}"
    DeltaTable(folder / "dims").update(updates={"name": "'other ' || name"}, predicate=some)
    committed = monotonic()
    wanted = _total(DeltaTable(folder / "facts"), "amount")
    until(
        lambda: (
            all(DeltaTable(folder / f"{name}_view").version() > one for name, one in versions.items())
            and _total(DeltaTable(folder / "join_view"), "amount") == wanted
            and _total(DeltaTable(folder / "aggregate_view"), "total") == wanted
            and _others(folder) == (number + 1) * CHANGED_DIMS
        ),
        what="the views have the changes",
        seconds=600,
    )
    seconds, after = monotonic() - committed, used_by(service.worker_pid())
    return seconds, sum(one - before.get(pid, 0) for pid, one in after.items())


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
