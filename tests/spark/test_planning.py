"""Spark plans what it is given in little time, because nothing ends it while it plans (I13)."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def planned(spark: SparkSession, query: str) -> str:
    frame: Any = spark.sql(query)
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_i13_conditions_over_many_columns_under_other_names(spark: SparkSession) -> None:
    """What follows from a condition was searched for under all names: 22 columns took minutes, and each doubled it."""
    columns = [f"c{number}" for number in range(40)]
    inner = ", ".join(f"id + {number} as {name}" for number, name in enumerate(columns))
    outer = ", ".join(f"a.{name} as x{name}" for name in columns)
    total = " + ".join(f"a.{name}" for name in columns)
    a, b = f"(select id, {inner} from range(10)) a", "range(10) b"
    assert "Join" in planned(spark, f"select a.id, {outer} from {a} join {b} on a.id = b.id where {total} > 0")


def test_i13_what_is_the_same_in_all_rows_is_not_carried_into_calls(spark: SparkSession) -> None:
    """A call of a column that has one value would be computed while Spark plans."""
    grouped = "select 'a' as k, count(*) as n from range(10) group by 1"
    assert "translate" in planned(spark, f"select translate(k, 'a', 'b') as x, n from ({grouped}) order by n")
