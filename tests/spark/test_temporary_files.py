"""What Spark puts among temporary files lies in one folder, which goes with the session or with its worker."""

import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_sockets_artifacts_and_the_warehouse_are_in_one_folder(spark: SparkSession) -> None:
    rows = spark.range(3).mapInArrow(lambda batches: batches, "id long").collect()  # pyright: ignore[reportArgumentType]
    assert [row.id for row in rows] == [0, 1, 2]
    folder = Path(getattr(spark, "_jvm").java.lang.System.getProperty("java.io.tmpdir"))  # noqa: B009
    assert folder.parent == Path(tempfile.gettempdir())
    assert any(found.suffix == ".sock" for found in folder.iterdir())
    assert Path(spark.conf.get("spark.sql.warehouse.dir") or "").name == "warehouse"
    assert str(folder) in (spark.conf.get("spark.sql.warehouse.dir") or "")
