"""N4: Spark jobs that compute changes end when others have waited for long enough (I13)."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.support.waiting import until
from workers.engines.spark import project
from workers.queries.projection import ProjectionPlan
from workers.runners.failure import explain
from workers.spark import bounded
from workers.spark.bounded import bounded_jobs
from workers.spark.killable import killable
from workers.state_store.port import PlanTooLongError, TooSlowError

pytestmark = pytest.mark.spark

LONG = "select max(length(repeat(cast(id as string), 100000))) from range(100000000)"


def test_n4_a_job_that_takes_too_long_is_cancelled_by_its_own_fault(spark: SparkSession) -> None:
    with pytest.raises(TooSlowError, match=r"stage_timeout_ms \(30000\)") as caught, bounded_jobs(spark, 30_000, 0.5):
        spark.sql(LONG).collect()
    assert explain(caught.value)[0], "the graph would try again for ever"
    with bounded_jobs(spark, 30_000, 60.0):
        assert spark.sql("select 1").collect()[0][0] == 1


def test_i13_a_job_that_nobody_waits_for_any_more_is_cancelled(spark: SparkSession) -> None:
    looks = iter([True])
    within = bounded_jobs(spark, 600_000, 600.0, lambda: next(looks, False))
    with pytest.raises(TooSlowError), within:
        spark.sql(LONG).collect()
    assert next(looks, None) is None


def test_i13_a_join_that_is_cancelled_leaves_its_slot(spark: SparkSession) -> None:
    """Spark looks whether a task is killed when it reads a row, and each of these meets 44 million others."""
    read = spark.range(0, 20_000, 1, 1).mapInArrow(lambda batches: batches, "id long")
    one, *others = (read.selectExpr(f"id % 3 as {name}") for name in "abc")
    met = killable(one)
    for name, other in zip("bc", others, strict=True):
        met = killable(met.join(F.broadcast(killable(other)), F.expr(f"a = {name}")))
    with pytest.raises(TooSlowError), bounded_jobs(spark, 3_000, 3.0):
        met.groupBy("a").count().collect()
    _no_task_runs(spark)


def _no_task_runs(spark: SparkSession) -> None:
    # Spark's own counts of tasks are told late.
    java: Any = spark.sparkContext._jsc  # pyright: ignore[reportPrivateUsage]
    slots = java.sc().taskScheduler()
    until(lambda: slots.runningTasksByExecutors().values().mkString() == "0", what="no task runs any more", seconds=30)


def test_i13_a_projection_that_is_cancelled_leaves_its_slot(spark: SparkSession) -> None:
    """All its rows are one batch, and each takes a second."""
    read = spark.range(0, 1_000, 1, 1).mapInArrow(lambda batches: batches, "id long").coalesce(1)
    long = " || ".join(f"md5(repeat(cast(id as string), {20_000_000 + number}))" for number in range(10))
    plan = ProjectionPlan(("id",), "true", ("id", f"{long} as m"), "id", ("m",))
    with pytest.raises(TooSlowError), bounded_jobs(spark, 3_000, 3.0):
        project(read, plan).selectExpr("max(m)").collect()
    _no_task_runs(spark)


def _endless(spark: SparkSession) -> DataFrame:
    """Return rows whose plan takes minutes: Spark computes constants in the driver, while it optimizes."""
    long = "repeat('b', 16000000)"
    for _ in range(150):
        long = f"translate({long}, 'abcdefgh', 'bcdefgha')"
    return spark.sql(f"select length({long}) as n")


@pytest.mark.parametrize("wanted", [True, False])
def test_i13_a_plan_that_is_made_for_too_long_is_stopped(spark: SparkSession, *, wanted: bool) -> None:
    """No job runs meanwhile that could be cancelled. The thread goes on with the next plan."""
    seconds = 3.0 if wanted else None
    with pytest.raises(TooSlowError), bounded_jobs(spark, 3_000, seconds, lambda: wanted):
        _endless(spark).collect()
    assert spark.sql("select 1 as one").collect()[0].one == 1


def test_i13_no_plan_is_made_for_ever(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "PLANNING_SECONDS", 6)
    with pytest.raises(PlanTooLongError, match="Spark planned it for more than 6 s"), bounded_jobs(spark, 3_000, None):
        _endless(spark).collect()
    with bounded_jobs(spark, 3_000, None):
        spark.sql("select max(length(repeat(cast(id as string), 100000))) from range(3000)").collect()


def test_another_error_stays_what_it_is(spark: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), bounded_jobs(spark, 30_000, 60.0):
        raise ZeroDivisionError
