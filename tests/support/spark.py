"""One Spark session for all tests of a run, with the settings of a worker."""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from workers.spark.session import start


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
