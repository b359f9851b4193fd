"""A one-shot query by plain Spark over Parquet files, in a process of its own: a task as JSON on stdin, its seconds and
processor seconds as JSON on stdout. The session has the worker's own settings and starts cold.
"""

import json
import resource
import sys
from typing import Any, Final

from pyspark.sql import SparkSession

from tests.bench.clock import monotonic
from workers.spark.session import start

TASKS: Final = 2


def compute(spark: SparkSession, task: dict[str, Any]) -> float:
    """Write what `query` answers over the files of `tables` into the folder `target`; return the seconds."""
    began = monotonic()
    for name, files in task["tables"].items():
        spark.read.parquet(*files).createOrReplaceTempView(name)
    spark.sql(task["query"]).write.mode("overwrite").parquet(task["target"])
    return monotonic() - began


def main() -> None:
    """Run the task on stdin."""
    task = json.load(sys.stdin)
    session = start(f"local[{TASKS}]", {})
    seconds = compute(session.spark, task)
    session.stop()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    sys.stdout.write(json.dumps({"seconds": seconds, "processor": used.ru_utime + used.ru_stime}) + "\n")


if __name__ == "__main__":
    main()
