"""A DataFrame of a project's Python means in tidefill what it means in Spark. Both run over the same rows."""

from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from service.cli.pipeline_python import definitions
from service.domain.errors import Invalid
from service.sql.pipelines.columns import spark_columns
from service.sql.pipelines.files import Defines, read
from service.sql.pipelines.meaning import meaning_of
from tests.spark.test_expression_parity import TABLE, load, run
from tests.spark.test_pipelines_meaning import alike, filled, in_order, rows_of
from tests.support.expressions import table
from tests.support.sampling import sampled

__all__ = ["filled"]
pytestmark = [pytest.mark.spark, pytest.mark.postgres]

# DataFrames, as a project writes them.
FRAMES: Final = r"""
t.select("id", (F.col("s") + 1).alias("a"), F.lit("x").alias("b"), F.lit(None).alias("c"))
t.select(t.id, t["x"], (F.col("n") * 2 > 3).alias("more")).toDF("id", "x", "m")
t.withColumn("y", F.trim("x")).drop("d", "ts", "tz").withColumnRenamed("s", "small").select("id", "y", "small")
t.where((F.col("i") > 0) & ~F.col("ok") | F.col("x").isNull()).select("id")
t.filter("i > 0 AND ok").select("id", "i")
t.filter(F.col("x").like("A%") | F.col("id").between(1, 3) | F.col("i").isin(4, 7)).select("id")
t.select("id", F.when(F.col("i") > 0, "p").when(F.col("ok"), "q").otherwise("r").alias("w"), F.coalesce("x", "y").alias("z"))
t.select("id", F.col("n").cast("decimal(20,1)").alias("n"), F.col("dt").cast("timestamp_ntz").alias("at"))
t.select("id", F.year("dt").alias("y"), F.date_trunc("month", "ts").alias("m"), F.length("x").alias("l"), F.concat("x", F.lit("-"), "y").alias("c"))
t.groupBy("ok").agg(F.count("*").alias("n"), F.count("x").alias("m"), F.countDistinct("y").alias("k"), F.sum("i").alias("s"))
t.groupBy("ok").count()
t.groupBy((F.col("i") > 0).alias("p")).agg(F.min("x").alias("a"), F.max("n").alias("b")).where("b > 0")
t.groupBy("ok").agg(F.avg(F.col("s").cast("double")).alias("a"), F.max("i").alias("m")).where(F.col("m") > 0).select("a")
t.agg(F.count("*").alias("n"), F.sum("n").cast("decimal(30,6)").alias("s"))
t.select("ok").distinct()
t.select("ok").union(t.select((F.col("i") > 0).alias("p")))
t.select("x", "y").unionByName(t.select("y", "x"))
t.select("x").intersect(t.where("ok").select("x"))
t.select("x").exceptAll(t.where("ok").select("x"))
t.alias("a").join(t.alias("b"), F.col("a.s") == F.col("b.s")).select(F.col("a.id").alias("l"), F.col("b.id").alias("r"))
t.join(t.select(F.col("id").alias("k"), F.col("x").alias("z")), F.col("id") == F.col("k") + 1, "left").select("id", "z")
t.select("id", "x").join(t.where("id > 2").select("id", "y"), "id", "full")
t.select("id", "x").join(t.where("id > 2").select("id", "y"), ["id"], "right")
t.join(t.select((F.col("id") + 1).alias("k")), F.col("id") == F.col("k"), "left_semi").select("id")
t.join(t.select((F.col("id") + 1).alias("k")), F.col("id") == F.col("k"), "left_anti").select("id")
t.select("id").crossJoin(t.where("id = 1").select("s"))
t.orderBy(F.desc("x"), "id").limit(3).select("id", "x")
t.orderBy("x", "id").limit(3).select("id", "x")
t.withColumn("r", F.row_number().over(Window.partitionBy("ok").orderBy(F.desc("n"), "id"))).where("r = 1").select("id", "ok")
t.select("id", F.sum("s").over(Window.partitionBy("ok")).alias("w"), F.lag("i").over(Window.orderBy("id")).alias("g"))
spark.sql("SELECT ok, count(*) AS n FROM t GROUP BY ok")
"""  # noqa: E501 - one DataFrame in each line

PROJECT: Final = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F, Window

def define(at, made):
    @dp.materialized_view(name=f"v{{at}}")
    def view():
        return made()

t = spark.table("t")
{}
"""


@pytest.mark.parametrize("half", sampled([0, 1], 2))
def test_a_dataframe_means_the_same_in_both_engines(
    database_url: str, filled: SparkSession, tmp_path: Path, half: int
) -> None:
    frames = FRAMES.strip().splitlines()[half::2]
    made = "\n".join(f"define({at}, lambda: {text})" for at, text in enumerate(frames))
    (tmp_path / "views.py").write_text(PROJECT.format(made))
    columns = spark_columns((one.name, str(one.type)) for one in table(TABLE).columns)
    files, faults = definitions(tmp_path, [Path("views.py")], lambda _: columns)
    assert not faults, "\n".join(f"{one.place}: {one.fault}" for one in faults)
    differing: list[str] = []
    with psycopg.connect(database_url) as connection:
        load(connection)
        for text, file in zip(frames, files, strict=True):
            (defined,) = read(file.text, frozenset()).definitions
            assert defined.defines is Defines.MATERIALIZED_VIEW
            assert defined.query is not None
            names: dict[str, Any] = {"spark": filled, "t": filled.table("t"), "F": F, "Window": Window}
            wanted = rows_of(eval(text, names))
            try:
                meaning = meaning_of(defined.query, frozenset())
            except Invalid as error:
                differing.append(f"{text}: {file.text}: {error.message}")
                continue
            found = run(connection, meaning.sql)
            if not alike(in_order(found), in_order(wanted)):
                differing.append(f"{text}: {file.text}: Postgres {found!r}, Spark {wanted!r}")
    assert not differing, "\n".join(differing)
