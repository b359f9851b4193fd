"""A Spark session with Delta Lake, in a process of its own, that changes Delta tables by MERGE, DELETE and append.

It is a program that reads a command in each line of its input, and answers with a line. Its jars come from Spark's own
resolver, so only soaks use it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
_CONF: Final = {
    "spark.jars.packages": PACKAGE,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@dataclass
class SparkWriter:
    """The session, from the outside. Rows are sent as Parquet files."""

    process: "subprocess.Popen[str]"
    folder: TemporaryDirectory[str]

    @classmethod
    def start(cls) -> Self:
        command = [sys.executable, "-m", "tests.support.spark_lake"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return cls(process, TemporaryDirectory())

    def create(self, table: Path, rows: pa.Table, properties: dict[str, str]) -> None:
        """Create a table of these rows."""
        given = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self._run(rows, f"create table delta.`{table}` using delta tblproperties ({given}) as select * from rows")

    def merge(self, table: Path, rows: pa.Table, key: Sequence[str]) -> None:
        """Make a table have these rows, by one MERGE."""
        others = [name for name in rows.schema.names if name not in key]
        differs = " or ".join(f"not (t.{one} <=> s.{one})" for one in others) or "false"
        self._run(
            rows,
            f"merge into delta.`{table}` t using rows s on {_same(key)} when matched and ({differs}) then update set *"
            " when not matched then insert * when not matched by source then delete",
        )

    def upsert(self, table: Path, rows: pa.Table, key: Sequence[str]) -> None:
        """Change or insert rows, by one MERGE."""
        merge = f"merge into delta.`{table}` t using rows s on {_same(key)}"
        self._run(rows, f"{merge} when matched then update set * when not matched then insert *")

    def replace(self, table: Path, gone: str, come: pa.Table) -> None:
        """Delete rows by a condition, and append others."""
        place = f"delta.`{table}`"
        deletes = [f"delete from {place} where {gone}"] if gone else []
        self._run(come, *deletes, f"insert into {place} select * from rows")

    def _run(self, rows: pa.Table, *statements: str) -> None:
        path = Path(self.folder.name) / "rows.parquet"
        pq.write_table(rows, path)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"rows": str(path), "statements": statements}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.strip() == "done", answer

    def stop(self) -> None:
        """End the session."""
        with self.process, suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.folder.cleanup()


def _same(names: Sequence[str]) -> str:
    return " and ".join(f"t.{name} <=> s.{name}" for name in names)


def _session() -> Any:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - in the process of its own only

    builder: Any = SparkSession.builder.master("local[1]")
    for name, value in _CONF.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _answer() -> None:
    # Its log goes elsewhere: standard output has the answers alone.
    spark = _session()
    for line in sys.stdin:
        command = json.loads(line)
        spark.read.parquet(command["rows"]).createOrReplaceTempView("rows")
        for statement in command["statements"]:
            spark.sql(statement)
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _answer()
