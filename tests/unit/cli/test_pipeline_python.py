"""Definitions of a project in Python: which SQL they become, what they ask for, and what is refused with its line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from service.cli import pipeline_python
from service.cli.pipeline_python import definitions
from service.domain.errors import Invalid
from service.domain.pipelines import Dataset
from service.protocol.relation import RelationKind
from service.sql.pipelines.columns import columns_of, spark_columns

IMPORTS: Final = """from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

"""
ORDERS: Final = spark_columns([("id", "bigint"), ("city", "text"), ("amount", "numeric(10,2)"), ("at", "public.mood")])


def columns(name: str) -> Mapping[str, str]:
    if name != "orders":
        raise Invalid(f'there is no "{name}"')
    return ORDERS


def read(folder: Path, text: str) -> tuple[dict[int | None, str], dict[str, str | None]]:
    """Return the statements of a script by line, and the faults by place."""
    (folder / "it.py").write_text(IMPORTS + text)
    files, faults = definitions(folder, [Path("it.py")], columns)
    return {one.line: one.text for one in files}, {one.place: one.fault for one in faults}


def test_definitions_become_statements_and_read_each_other(tmp_path: Path) -> None:
    text = """
@dp.materialized_view(
    name="shop.by_city", partition_cols=["city"], cluster_by=["n"], comment="it's", format="delta",
    table_properties={"a": "b"}
)
def anything():
    print("said to nobody")
    return spark.table("dear").groupBy("city").agg(F.count("*").alias("n"))

@dp.temporary_view
def dear() -> DataFrame:
    return SparkSession.builder.getOrCreate().read.table("shop.orders").where("amount >= 10").select("city", "at")
"""
    statements, faults = read(tmp_path, text)
    assert faults == {}
    assert [*statements] == [6, 14]
    assert statements[6].startswith(
        "CREATE MATERIALIZED VIEW shop.by_city PARTITIONED BY (city) CLUSTER BY (n) COMMENT 'it\\'s' USING delta"
        " TBLPROPERTIES ('a' = 'b') AS WITH "
    )
    assert "FROM `dear`" in statements[6]
    assert statements[14].startswith("CREATE TEMPORARY VIEW dear AS WITH ")
    assert "FROM `shop`.`orders`" in statements[14]


def test_what_is_refused_has_its_line_and_reason(tmp_path: Path) -> None:
    text = """
@dp.materialized_view
def unknown():
    return spark.table("nothing")

@dp.materialized_view
def itself():
    return spark.table("other")

@dp.temporary_view
def other():
    return spark.table("itself")

@dp.materialized_view
def number():
    return 7

@dp.materialized_view
def broken():
    return spark.table("orders").where(1 / 0)

@dp.materialized_view
def lacking():
    return spark.table("orders").selectExpr("id")

@dp.materialized_view
def fine():
    return spark.table("orders").select("id")

@dp.materialized_view(name="fine")
def again():
    return spark.table("orders").select("city")

@dp.materialized_view(schema="id INT")
def typed():
    return spark.table("orders")
"""
    statements, faults = read(tmp_path, text)
    assert [*statements] == [30, 34], "those of one name are both told, and the plan refuses the second one"
    assert faults == {
        "it.py:8": 'there is no "nothing"',
        "it.py:12": "it reads itself, directly or through others",
        "it.py:16": "it reads itself, directly or through others",
        "it.py:18": "it returns a int, and no DataFrame",
        "it.py:24": "ZeroDivisionError: division by zero",
        "it.py:28": "UnsupportedOperationError: Tried to call a column which is unexpected",
        "it.py:38": "schema is not supported: cast and name columns in the query, and set nothing",
    }


@pytest.mark.parametrize(
    "text",
    [
        "@dp.table\ndef t():\n    return 1",
        "dp.create_streaming_table('t')",
        "@dp.append_flow(target='t')\ndef f():\n    return 1",
    ],
)
def test_streams_are_defined_in_sql(tmp_path: Path, text: str) -> None:
    statements, faults = read(tmp_path, text)
    assert statements == {}
    ((place, why),) = faults.items()
    assert place == "it.py:5"
    assert str(why).endswith("is not supported: streaming tables are defined in SQL, CREATE STREAMING TABLE")


def test_a_script_that_ends_its_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="ended their process"):
        read(tmp_path, "import os\nos._exit(3)")


def test_without_the_library_its_name_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_python, "find_spec", {}.get)
    assert definitions(tmp_path, [], columns) == ([], [])
    with pytest.raises(Invalid, match=r"it\.py: definitions in Python need sqlframe: pip install 'tidefill\[pipelines"):
        read(tmp_path, "")


def test_the_columns_of_what_is_defined_in_sql_are_those_that_its_query_names() -> None:
    assert ORDERS == {"id": "BIGINT", "city": "STRING", "amount": "DECIMAL(10, 2)", "at": "unknown"}
    view = Dataset(
        "v", RelationKind.VIEW, "a.sql:1", before='CREATE VIEW "v" AS SELECT id, count(*) AS n FROM t GROUP BY 1'
    )
    assert columns_of(view) == {"id": "unknown", "n": "unknown"}
    named = Dataset("v", RelationKind.VIEW, "a.sql:1", before='CREATE VIEW "v" (a, b) AS SELECT * FROM t')
    assert columns_of(named) == {"a": "unknown", "b": "unknown"}
    star = Dataset("v", RelationKind.VIEW, "a.sql:1", before='CREATE VIEW "v" AS SELECT * FROM t')
    with pytest.raises(Invalid, match="by a star"):
        columns_of(star)
    with pytest.raises(Invalid, match="which is refused"):
        columns_of(Dataset("v", RelationKind.VIEW, "a.sql:1", fault="why"))
