"""One Spark session for all tests of a run, with the settings of a worker."""

from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from workers.spark.session import start


@contextmanager
def local_spark() -> Generator[SparkSession]:
    """Run a session of two tasks at once. Nobody else may stop it: a JVM has only one."""
    session = start("local[2]", {})
    try:
        yield session.spark
    finally:
        session.stop()
