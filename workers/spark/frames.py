"""Frames that are planned once and run once per epoch: their schemas, and the task of an epoch.

Spark analyses, optimizes and compiles a frame whenever it is built, which takes a tenth of an interval and more.
Therefore a frame is built on first use and kept. The task of an epoch reaches the Spark tasks as a local property of
the job.
"""

import gc
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa
from pydantic import BaseModel
from pyspark import AccumulatorParam, TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

OUTCOME: Final = "outcome"
"""The text column in which such a job returns its outcomes."""
_PROPERTY: Final = "tidefill.task"
Task = TypeVar("Task", bound=BaseModel)


class RepeatedTaskError(Exception):
    """Spark runs a part of an epoch for a second time."""


class _Texts(AccumulatorParam[list[str]]):
    """Adds lists of texts."""

    def zero(self, value: list[str]) -> list[str]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802 - Spark's name
        return [*value1, *value2]


class Reports:
    """Texts that tasks tell the driver beside their rows. A value of it travels in their closures.

    Spark adds what a task has told when it ends. A task that runs again tells again.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._texts = spark.sparkContext.accumulator(list[str](), _Texts())

    def tell(self, text: str) -> None:
        """Add a text. Called in a task."""
        self._texts.add([text])

    def take(self) -> list[str]:
        """Return what was told since the last call. Called on the driver, after the job."""
        found = self._texts.value
        self._texts.value = []
        return found


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow batches. Timestamps without a zone stay without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def run_frame(frame: DataFrame, task: BaseModel) -> list[str]:
    """Run a frame's job and return its outcomes. Raises Spark's errors."""
    send_task(frame, task)
    return [row[0] for row in frame.collect()]


def rows_of(frame: DataFrame) -> Iterator[Row]:
    """Run a frame's jobs, and yield its rows, one partition in memory at a time. Raises Spark's errors.

    `toLocalIterator` of Spark 4.2 keeps the job of each partition for ever, with the plan and all that it has sent.
    """
    rdd = frame.rdd
    for partition in range(rdd.getNumPartitions()):
        yield from frame.sparkSession.sparkContext.runJob(rdd, list, [partition])


def send_task(frame: DataFrame, task: BaseModel) -> None:
    """Give a task to the jobs that this thread runs from now on."""
    frame.sparkSession.sparkContext.setLocalProperty(_PROPERTY, task.model_dump_json())


def release_plans() -> None:
    """Have the JVM forget the frames that nobody holds any more, and the tables that their joins sent to all tasks.

    Python's objects of the JVM are in cycles, which would stay until its collector runs by itself, hundreds of plans
    later.
    """
    gc.collect()


def bytes_of(frame: DataFrame) -> int:
    """Return how large Spark takes a frame to be. It knows the size of a persisted one that has been computed."""
    return int(str(_execution(frame).optimizedPlan().stats().sizeInBytes()))


def physical_plan(frame: DataFrame) -> str:
    """Return the text of a frame's physical plan."""
    return str(_execution(frame).executedPlan().toString())


def _execution(frame: DataFrame) -> Any:
    """Return the JVM's object, to which pyspark has no public way."""
    java: Any = frame._jdf  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return java.queryExecution()


def task_of(kind: type[Task]) -> Task:
    """Return the task of the present job. Called in a Spark task.

    Raises RepeatedTaskError in a second attempt. Spark runs the tasks of a lost executor again whatever its settings
    are, but the lost attempt may have written already. The epoch fails then, and recovery repeats it (I3).
    """
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() > 0:
        raise RepeatedTaskError("its executor was lost")
    stated = context.getLocalProperty(_PROPERTY)
    assert stated is not None, "a job without a task"
    return kind.model_validate_json(stated)


def outcome(text: str) -> pa.RecordBatch:
    """Return an actor's outcome as its Spark task yields it."""
    return pa.RecordBatch.from_arrays([pa.array([text])], names=[OUTCOME])
