"""The history of a view in a Delta table on a standalone cluster of Spark, by one executor of one core and by two."""

import json
import tempfile
from pathlib import Path
from typing import Final

from tests.bench.clock import monotonic
from tests.bench.figures import Figure, Section, Target, ratio
from tests.bench.lake_tables import QUERIES, source, view, write
from tests.support.service import Service, data_directory, running
from tests.support.spark_cluster import CONF, spark_cluster

_SLOW: Final = ("spark.executor.extraJavaOptions", "spark.driver.extraJavaOptions")
"""Options by which a test's JVM starts quickly, and computes slowly."""


def executors(rows: int) -> list[Section]:
    """Measure each view after a first one has warmed up the executors."""
    with tempfile.TemporaryDirectory(prefix="tidefill-bench-") as name:
        folder = Path(name)
        write(folder, rows)
        (folder / "cluster").mkdir()
        with spark_cluster(folder / "cluster", workers=1) as cluster:
            by_one, by_two = (_measured(cluster.master, folder, rows, count) for count in (1, 2))
    figures: list[Figure] = []
    for query, one in by_one.items():
        two = by_two[query]
        figures += [
            Figure(f"history of the {query}, one executor", one, "rows/s"),
            Figure("... two executors", two, "rows/s"),
            Figure("... as a multiple of it", ratio(two, one), "x", Target(">=", 1.7)),
        ]
    return [Section(f"From Delta to Delta on a cluster, {rows:,} facts", tuple(figures))]


def _measured(master: str, folder: Path, rows: int, count: int) -> dict[str, float]:
    """Return the rows per second of each query."""
    conf = {name: value for name, value in CONF.items() if name not in _SLOW}
    conf |= {"spark.cores.max": str(count), "spark.default.parallelism": str(count), "spark.executor.memory": "1g"}
    environment = {"TIDEFILL_SPARK_MASTER": master, "TIDEFILL_SPARK_CONF": json.dumps(conf)}
    found: dict[str, float] = {}
    with data_directory() as directory, running(Service(directory, environment)) as service:
        for name in ("facts", "dims"):
            service.run(source(folder, name))
        for name in QUERIES:
            for turn in ("warm", "measured"):
                began = monotonic()
                service.run(view(folder, name, f"{name}_{turn}_{count}"))
                found[name] = rows / (monotonic() - began)
                service.run(f"DROP MATERIALIZED VIEW {name}_{turn}_{count}")
    return found
