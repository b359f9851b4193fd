"""A one-shot query by plain Spark SQL over JDBC, in a process of its own: a task as JSON on stdin, its seconds as JSON
on stdout.

The session has the worker's own settings: same memory, same two tasks at once. It starts cold, as the worker that it
is compared with did.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from tests.bench.clock import monotonic
from workers.spark.session import Session, start

DRIVER: Final = "org.postgresql:postgresql:42.7.4"
CACHE: Final = Path(__file__).parents[2] / ".cache" / "ivy"
NOT_FETCHED: Final = "the driver could not be fetched"
TASKS: Final = 2


def compute(spark: SparkSession, task: dict[str, Any]) -> float:
    """Write what `query` answers over `tables` into the table or the folder of Parquet files `target`; return the
    seconds.

    `tables` are plain ones with a bigint key `id` from 0 to `rows`, by the names that the query has for them. A missing
    target is created.
    """
    server = urlsplit(task["url"])
    options = {
        "url": f"jdbc:postgresql://{server.hostname}:{server.port}{server.path}?reWriteBatchedInserts=true",
        "user": server.username,
        "password": server.password,
        "driver": "org.postgresql.Driver",
    }
    began = monotonic()
    for name, table in task["tables"].items():
        (
            spark.read.format("jdbc")
            .options(**options, dbtable=table["source"], fetchsize=10_000)
            .options(partitionColumn="id", lowerBound=0, upperBound=table["rows"] + 1, numPartitions=TASKS)
            .load()
            .createOrReplaceTempView(name)
        )
    rows = spark.sql(task["query"])
    if task["target"].startswith("/"):
        rows.write.parquet(task["target"])
    else:
        rows.write.format("jdbc").options(**options, dbtable=task["target"], batchsize=10_000).mode("append").save()
    return monotonic() - began


def _start() -> Session | None:
    """Start Spark with the driver; None where Spark cannot fetch it, which only what it prints tells."""
    with tempfile.TemporaryFile() as printed:
        ours = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            return start(f"local[{TASKS}]", {"spark.jars.packages": DRIVER, "spark.jars.ivy": str(CACHE)})
        except Exception:
            printed.seek(0)
            if b"unresolved dependency" in printed.read():
                return None
            raise
        finally:
            os.dup2(ours, 2)
            printed.seek(0)
            sys.stderr.write(printed.read().decode(errors="replace"))


def main() -> None:
    """Run the task on stdin."""
    task = json.load(sys.stdin)
    session = _start()
    if session is None:
        said: dict[str, Any] = {"unavailable": NOT_FETCHED}
    else:
        said = {"seconds": compute(session.spark, task)}
        session.stop()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
