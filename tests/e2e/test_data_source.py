"""`spark.read.format("tidefill")`: a Spark application of a user reads a live service."""

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.service import API_TOKEN, Service
from tests.support.waiting import Repeating

pytestmark = [pytest.mark.e2e, pytest.mark.spark]

ROWS = 5_000


def read(spark: SparkSession, service: Service, relation: str, **options: Any) -> DataFrame:
    reader = spark.read.format("tidefill").options(url=service.url, token=API_TOKEN, relation=relation)
    return reader.options(**options).load()


def test_i2_all_tasks_and_frames_read_one_epoch(service: Service, spark: SparkSession) -> None:
    """I2: while a writer changes all rows. Columns, filters and types besides."""
    service.run(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, v int, n numeric(10, 2), s text, u uuid, z timestamptz, a int[])"
    )
    uuid, instant = "00000000-0000-0000-0000-00000000000a", "2026-01-01 12:00+02"
    service.run(
        f"INSERT INTO accounts SELECT g, 0, g / 4.0, 'it''s \\ ' || g, '{uuid}', '{instant}', array[g::int, NULL]"
        f" FROM generate_series(1, {ROWS}) g"
    )
    service.run("CREATE MATERIALIZED VIEW copied AS SELECT id, v FROM accounts")
    service.run("CREATE MATERIALIZED VIEW summed AS SELECT v, count(*) AS n FROM accounts GROUP BY v")

    def write(turn: int) -> None:
        service.run(f"UPDATE accounts SET v = {turn}")

    with Repeating(write):
        for _ in range(2):
            values = read(spark, service, "accounts", numPartitions=3).groupBy("v").count().collect()
            assert [row["count"] for row in values] == [ROWS], values
    service.run("DELETE FROM accounts WHERE id > 10")
    frame = read(spark, service, "accounts", columns="n, s, u, z, a, id")
    assert frame.dtypes == [
        ("n", "decimal(10,2)"),
        ("s", "string"),
        ("u", "string"),
        ("z", "timestamp"),
        ("a", "array<int>"),
        ("id", "bigint"),
    ]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        kept = read(spark, service, "accounts", pushFilters="true").where(
            's = "it\'s \\\\ 7" and id < 8 and n >= 1.75 and v is not null'
        )
        (row,) = kept.select("id", "n", "u", "a", "z").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert (row["id"], str(row["n"]), row["u"], row["a"]) == (7, "1.75", uuid, [7, None])
    assert read(spark, service, "summed").collect()[0]["n"] == 10
    refused = {"nothing": "does not exist", "rw_jobs": "does not exist"}
    for relation, words in refused.items():
        with pytest.raises(PySparkException, match=words):
            read(spark, service, relation)
    with pytest.raises(PySparkException, match="is not published"):
        read(spark, service, "copied", epoch=str(1 << 62)).count()
    with pytest.raises(PySparkException, match="can no longer be read"):
        read(spark, service, "copied", epoch="1").count()
