"""Let tasks end when their job is cancelled, in the middle of a join or of a batch (I13).

Spark looks whether a task is killed when the task reads a batch. A row of a join may meet millions of others, and
theirs millions more: such a task runs for hours after its job was cancelled, and keeps its slot. So each row of a join
or a projection looks whether its thread was interrupted, which costs a nanosecond. It is a call in the code that Spark
generates: a function that this code cannot call would make Spark keep all rows that one row has met.
"""

from functools import lru_cache
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name
from pyspark.sql.classic.column import Column as ClassicColumn


def killable(rows: DataFrame) -> DataFrame:
    """Return the same rows, whose task fails at the next of them after it was interrupted."""
    return rows.where(_wanted(rows.sparkSession.sparkContext))


@lru_cache(maxsize=1)
def _wanted(context: SparkContext) -> Column:
    """Return a condition that is true, or fails. It is made once, by a dozen calls of the JVM: each join has it."""
    ended = F.when(_interrupted(context), F.raise_error(F.lit("the task was cancelled")).cast("boolean"))
    return ended.otherwise(F.lit(True))


def _interrupted(context: SparkContext) -> Column:
    """Return a call of `Thread.interrupted`. No function of Spark's SQL calls Java in generated code."""
    jvm: Any = context._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    none, sql = jvm.PythonUtils.toSeq([]), jvm.org.apache.spark.sql
    arguments = (sql.types.DataTypes.BooleanType, "interrupted", none, none, True, False, False)
    thread = jvm.java.lang.Class.forName("java.lang.Thread")
    call = sql.catalyst.expressions.objects.StaticInvoke(thread, *arguments, jvm.scala.Option.empty())
    return ClassicColumn(sql.classic.ExpressionUtils.column(call))
