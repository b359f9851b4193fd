"""A worker plans a stage of changes anew in each epoch. The JVM forgets the plans of earlier epochs (I13)."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from tests.support.waiting import until
from workers.spark.frames import release_plans, rows_of

pytestmark = pytest.mark.spark


def test_rows_of_a_frame_come_partition_by_partition(spark: SparkSession) -> None:
    frame = spark.range(0, 100, 1, 4).repartition(3, "id")
    assert sorted(row[0] for row in rows_of(frame)) == list(range(100))


def test_i13_the_plan_of_an_epoch_is_forgotten(spark: SparkSession) -> None:
    """Spark's `toLocalIterator` would keep it, with the tables that it has sent to all tasks, until memory is full."""
    plans = [_ran(spark) for _ in range(3)]

    def forgotten() -> bool:
        release_plans()
        _java(spark).java.lang.System.gc()
        return all(one.get() is None for one in plans)

    until(forgotten, what=lambda: [one.get() for one in plans])


def test_i13_a_table_that_is_sent_to_all_tasks_takes_a_small_page(spark: SparkSession) -> None:
    """Otherwise each takes 8 to 64 MB, and a stage of eight inputs sends dozens in an epoch."""
    assert _java(spark).org.apache.spark.SparkEnv.get().memoryManager().pageSizeBytes() == 1 << 20


def _ran(spark: SparkSession) -> Any:
    """Run a frame with a join, and return a weak reference to what was sent for it."""
    sent = F.broadcast(spark.range(10).withColumnRenamed("id", "other"))
    frame = spark.range(10).join(sent, F.expr("id = other"))
    assert len(list(rows_of(frame))) == 10
    return _java(spark).java.lang.ref.WeakReference(_broadcast(frame).executeBroadcast())


def _broadcast(frame: DataFrame) -> Any:
    java: Any = frame._jdf  # pyright: ignore[reportPrivateUsage]
    plan: Any = java.queryExecution().executedPlan()
    while plan.nodeName() != "BroadcastExchange":
        plan = plan.children().apply(plan.children().size() - 1)
    return plan


def _java(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext
    return context._jvm
