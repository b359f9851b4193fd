"""TPC-H as views in Delta tables, over Delta tables that another program changes, while workers die, until the time is
over. A foreign reader finds what each query answers over the same rows in Postgres.
"""

import os
import sys
from pathlib import Path
from random import Random

import pytest

from tests.support import queries_tpch, tpch
from tests.support.mirrored_lake import Mirrored, in_lake
from tests.support.service import ProblemError, Service
from tests.support.soaking import seeds
from tests.support.spark_lake import SparkWriter
from tests.support.waiting import until

pytestmark = pytest.mark.soak

SCALE = float(os.environ.get("TPCH_SCALE", "0.002"))
QUERIES = os.environ.get("TPCH_QUERIES", ",".join(queries_tpch.QUERIES)).split(",")
WRITER = os.environ.get("TPCH_WRITER", "spark")
"""The program that changes the tables: a Spark session, or `delta-rs`."""
AT_ONCE = 6
COMPARISONS = 3
REFUSED_MAX = 3


def test_i12_i14_tpch_from_delta_to_delta(service: Service, tmp_path: Path) -> None:
    spark = SparkWriter.start() if WRITER == "spark" else None
    try:
        _follow(Mirrored(service, tmp_path / "lake", queries_tpch.TABLES, spark), tmp_path)
    finally:
        if spark is not None:
            spark.stop()


def _follow(tables: Mirrored, folder: Path) -> None:
    service = tables.service
    service.run("ALTER SYSTEM SET barrier_interval_ms = 200")
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
    for text in queries_tpch.TABLES.values():
        service.run(tables.mirror(text))
    for statement in tpch.filled(SCALE):
        service.run(tables.mirror(statement))
    service.flush()
    tables.create()
    refused: dict[str, str] = {}
    for seed in seeds():
        random, full, names = Random(seed), 0, QUERIES
        for first in range(0, len(names), AT_ONCE):
            views = _Views(tables, folder / f"views-{seed}-{first}")
            refused |= views.create(names[first : first + AT_ONCE])
            full += views.follow(random)
            views.drop()
        assert full > len(names) // 2
    sys.stdout.writelines(f"{name} is refused: {why}\n" for name, why in refused.items())
    assert len(refused) <= REFUSED_MAX, refused


class _Views:
    """Some queries as views, each in a Delta table."""

    def __init__(self, tables: Mirrored, folder: Path) -> None:
        self.tables, self.service, self.folder = tables, tables.service, folder
        self.wanted: dict[str, tuple[list[str], str]] = {}
        """Of each view its columns, and what it shall hold, as a query over the tables of the service."""

    def create(self, views: list[str]) -> dict[str, str]:
        """Create the views, and return why one is refused."""
        refused: dict[str, str] = {}
        for name in views:
            query = queries_tpch.QUERIES[name]
            columns = self.service.run(f"SELECT * FROM ({self.tables.mirror(query)}) q LIMIT 0")["columns"]
            names = [one["name"].removeprefix("m_") for one in columns]
            listed = ", ".join(_bounded(one, column["type"]) for one, column in zip(names, columns, strict=True))
            place = f"USING delta LOCATION '{self.folder / name}' WITH (commit_interval = '500 ms')"
            text = f"CREATE MATERIALIZED VIEW {name} {place} AS SELECT {listed} FROM ({query}) q"
            try:
                self.service.run(text, background_ddl="true")
            except ProblemError as error:
                refused[name] = error.problem["detail"]
                continue
            self.wanted[name] = names, self.tables.mirror(f"SELECT {listed} FROM ({query}) q")
        return refused

    def follow(self, random: Random) -> int:
        """Change the tables and kill the worker, compare some times, and return how many views have rows."""
        self._change(random, 6)
        self.service.kill_worker()
        for name in self.wanted:
            self.service.until_created(name)
        full = set[str]()
        for number in range(COMPARISONS):
            self._change(random, 8)
            if number == 1:
                self.service.kill_worker()
            for name in self.wanted:
                full |= {name} if self._equal(name) else set()
        for name in self.wanted:
            assert self._verified(name), name
        sys.stdout.write(f"{', '.join(self.wanted)}: equal {COMPARISONS} times\n")
        sys.stdout.flush()
        return len(full)

    def drop(self) -> None:
        for name in self.wanted:
            self.service.run(f"DROP MATERIALIZED VIEW {name}")

    def _change(self, random: Random, count: int) -> None:
        for _ in range(count):
            self.service.run(self.tables.mirror(tpch.changed(random, SCALE)))
        self.service.flush()
        self.tables.sync(random, queries_tpch.TABLES)

    def _verified(self, name: str) -> bool:
        """Whether the view is equal to its query. Spark has no answer for some results of sums."""
        try:
            return self.service.verified(name)["equal"]
        except ProblemError as error:
            return "only the state store computes a stage" in str(error)

    def _equal(self, name: str) -> bool:
        """Wait until a foreign reader finds what the query answers, and return whether that are any rows."""
        columns, query = self.wanted[name]
        expected = sorted(map(tuple, self.service.sql(query)), key=repr)
        until(
            lambda: in_lake(self.folder / name, columns) == expected,
            what=lambda: (name, in_lake(self.folder / name, columns)[:5], expected[:5], self.service.log_tail()),
            seconds=600,
        )
        return bool(expected)


def _bounded(name: str, kind: str) -> str:
    """Return a column, cast if Delta has no such type."""
    return f"{name}::numeric(38, 6) as {name}" if kind == "numeric" else name
