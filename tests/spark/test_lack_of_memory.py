"""A task that lacks memory fails, and nothing else does."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from service.protocol.ids import JobId
from tests.support.state_store import relation
from workers.runners.failure import JobFailedError


def test_i13_a_value_that_takes_all_memory_costs_its_job_and_not_the_jvm(spark: SparkSession) -> None:
    """Each such value ended the worker for 20 s, and with it the epochs of all graphs."""
    parts = ", ".join(f"repeat(cast(id as string), {40_000_000 + number})" for number in range(40))
    for _ in range(2):
        with pytest.raises(Exception, match="OutOfMemoryError") as failed:
            spark.range(1).selectExpr(f"md5(concat({parts}))").collect()
        job = JobFailedError(JobId(1), failed.value, target=relation(2, "v"), upstream=relation(1, "t"))
        assert job.exhausted
        assert not job.deterministic
        assert spark.range(1000).count() == 1000
    java: Any = spark.sparkContext._jvm  # pyright: ignore[reportPrivateUsage]
    handler = java.java.lang.Thread.getDefaultUncaughtExceptionHandler()
    assert "SparkUncaughtExceptionHandler" in handler.getClass().getName(), "a broken thread of its own ends it"
    assert not handler.exitOnUncaughtException(), "any other error ends its thread alone"
