"""Spark plans what it is given in little time, because nothing ends it while it plans (I13)."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def planned(spark: SparkSession, query: str) -> str:
    frame: Any = spark.sql(query)
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_i13_conditions_over_many_columns_under_other_names(spark: SparkSession) -> None:
    """Spark searched consequences of a condition under all names: 22 columns took minutes, and each doubled it."""
    columns = [f"c{number}" for number in range(40)]
    inner = ", ".join(f"id + {number} as {name}" for number, name in enumerate(columns))
    outer = ", ".join(f"a.{name} as x{name}" for name in columns)
    total = " + ".join(f"a.{name}" for name in columns)
    a, b = f"(select id, {inner} from range(10)) a", "range(10) b"
    assert "Join" in planned(spark, f"select a.id, {outer} from {a} join {b} on a.id = b.id where {total} > 0")


@pytest.mark.parametrize(
    "query",
    [
        "select translate(case when true then 'a' else b end, 'a', 'b') as x from t",
        "select translate(b, 'a', 'b') as x from t where b = 'a'",
    ],
)
def test_i13_a_call_of_a_column_is_left_to_tasks(spark: SparkSession, query: str) -> None:
    """Ninety calls over a constant text of 33 MB kept everybody waiting while Spark planned."""
    texts = "(select cast(id as string) as b from range(10)) t"
    assert "translate(" in planned(spark, query.replace("from t", f"from {texts}"))
