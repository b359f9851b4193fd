"""N4: Spark jobs that compute changes end when others have waited for long enough (I13)."""

import pytest
from pyspark.sql import SparkSession

from workers.runners.failure import explain
from workers.spark.bounded import bounded_jobs
from workers.state_store.port import TooSlowError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

LONG = "select max(length(repeat(cast(id as string), 1000000))) from range(10000000)"


def test_n4_a_job_that_takes_too_long_is_cancelled_by_its_own_fault(spark: SparkSession) -> None:
    with pytest.raises(TooSlowError, match=r"stage_timeout_ms \(30000\)") as caught, bounded_jobs(spark, 30_000, 0.5):
        spark.sql(LONG).collect()
    assert explain(caught.value)[0], "the graph would try again for ever"
    with bounded_jobs(spark, 30_000, 60.0):
        assert spark.sql("select 1").collect()[0][0] == 1


def test_another_error_stays_what_it_is(spark: SparkSession) -> None:
    with pytest.raises(ZeroDivisionError), bounded_jobs(spark, 30_000, 60.0):
        raise ZeroDivisionError
