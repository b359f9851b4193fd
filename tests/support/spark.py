"""One Spark session for all tests of a run, with the settings of a worker."""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from workers.backfill.stages import BoundStage
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stage_changes import SparkStageChanges
from workers.engines.stage_lookups import BROADCAST_BYTES
from workers.engines.stage_parts import SparkPartEngine
from workers.engines.stage_spark import SparkStageEngine
from workers.spark.session import start
from workers.state_store.port import VersionedStore


@contextmanager
def local_spark() -> Generator[SparkSession]:
    """Run a session of two tasks at once, with the settings of the run. Nobody else may stop it: a JVM has only one."""
    settings = json.loads(os.environ.get("TIDEFILL_SPARK_CONF", "{}"))
    # It has the plans of hundreds of tests, some of them of texts of 32 MB.
    session = start("local[2]", {"spark.driver.memory": "3g", **settings})
    try:
        yield session.spark
    finally:
        session.stop()


def reader_of(
    spark: SparkSession, store: VersionedStore, bound: BoundStage, broadcast_bytes: int = BROADCAST_BYTES
) -> SparkStageEngine | SparkPartEngine:
    """Return Spark's engine of a stage's history."""
    if bound.stage.partition is not None:
        return SparkPartEngine(spark, store, bound, rows_first=20, page_seconds=0.0)
    return SparkStageEngine(spark, store, bound, 32, broadcast_bytes)


class InSpark:
    """Spark as the only engine of a stage, of its history and of its changes."""

    def __init__(self, spark: SparkSession, store: VersionedStore, bound: BoundStage) -> None:
        self.reader = reader_of(spark, store, bound)
        self.follower = SparkStageChanges(spark, store, bound)

    def run(self, task: StageTask) -> list[ActorOutcome]:
        """Run one epoch. There is time to read all other inputs."""
        if not task.changed:
            return self.reader.run(task)
        outcomes = self.follower.run(task.model_copy(update={"slice_seconds": 300.0}))
        assert outcomes is not None
        return outcomes
