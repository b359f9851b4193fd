"""A project of Spark Declarative Pipelines on a real service: built, run again, changed, cut off."""

import json
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner, Result

from service.cli.app import app
from tests.support.mirrored_lake import in_lake
from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

SPEC: Final = """name: shop
storage: file://{lake}
catalog: spark_catalog
database: shop
configuration:
  tidefill.commit_interval: 200 ms
libraries:
  - glob:
      include: transformations/**
"""
FILES: Final = {
    "views.sql": "CREATE TEMPORARY VIEW dear AS SELECT id, city, amount FROM shop.orders WHERE amount >= 10;",
    "totals/by_city.sql": """
        -- Partitioned, as Spark would partition it.
        CREATE OR REFRESH MATERIALIZED VIEW by_city PARTITIONED BY (city) COMMENT 'totals' AS
        SELECT city, count(*) AS orders, CAST(sum(amount) AS DECIMAL(20, 2)) AS total FROM dear GROUP BY city;
    """,
    "totals/large.py": """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, functions as F

@dp.materialized_view(comment="the largest")
def large() -> DataFrame:
    rich = spark.table("shop.by_city").where(F.col("total") > 1000)
    known = spark.read.table("orders").groupBy("city").agg(F.max("id").alias("last"))
    return rich.join(known, "city").select("city", "total", F.year(F.lit("2026-01-01").cast("date")).alias("year"))
    """,
    "events.sql": """
        CREATE STREAMING TABLE events;
        CREATE FLOW of_orders AS INSERT INTO events BY NAME SELECT id, city FROM STREAM(orders) WHERE id % 2 = 0;
    """,
}


class Project:
    """A project in a folder, and the commands that run it."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.lake, self.spec = service, folder / "lake", folder / "spark-pipeline.yml"
        self.transformations = folder / "transformations"
        self.spec.write_text(SPEC.format(lake=self.lake))
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.transformations / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def call(self, *arguments: str) -> Result:
        environment = {"TIDEFILL_URL": self.service.url, "TIDEFILL_API_TOKEN": self.service.token or ""}
        return CliRunner().invoke(app, ["pipeline", *arguments], env=environment)

    def plan(self, *options: str) -> dict[str, str]:
        """Return the action of each dataset, with the folder of a new Delta table."""
        found = json.loads(self.call("plan", str(self.spec), "--json", *options).stdout)
        return {one["name"]: " ".join([one["action"], Path(one["location"] or "").name]).strip() for one in found}

    def run(self, *options: str) -> Result:
        ended = self.call("run", str(self.spec), *options)
        assert ended.exit_code == 0, ended.output
        return ended

    def has(self, table: str, columns: list[str], query: str) -> None:
        """Wait until a Delta table has what a query gives."""
        expected = sorted((tuple(row) for row in self.service.sql(query)), key=repr)
        until(lambda: in_lake(self.lake / table, columns) == expected, what=lambda: (table, expected))


def test_a_project_is_built_run_again_changed_and_continued(service: Service, tmp_path: Path) -> None:
    service.run("CREATE TABLE orders (id bigint PRIMARY KEY, city text, amount numeric(10, 2))")
    service.run("INSERT INTO orders SELECT g, 'city ' || g % 3, g FROM generate_series(1, 100) g")
    project = Project(service, tmp_path)
    new = {"dear": "create", "events": "create events", "by_city": "create by_city", "large": "create large"}
    assert project.plan() == new
    project.run()
    totals = "SELECT city, count(*), sum(amount)::numeric(20, 2) FROM orders WHERE amount >= {} GROUP BY city"
    project.has("by_city", ["city", "orders", "total"], totals.format(10))
    project.has("events", ["id", "city"], "SELECT id, city FROM orders WHERE id % 2 = 0")
    assert service.sql("SELECT DISTINCT year FROM large") == [[2026]]

    assert set(project.plan("--replace").values()) == {"unchanged"}
    assert "4 unchanged" in project.run().stdout
    service.run("INSERT INTO orders SELECT g, 'city 1', g FROM generate_series(101, 120) g")
    project.has("by_city", ["city", "orders", "total"], totals.format(10))
    project.has("events", ["id", "city"], "SELECT id, city FROM orders WHERE id % 2 = 0")

    project.write("views.sql", FILES["views.sql"].replace("10", "50"))
    assert project.call("run", str(project.spec)).exit_code == 1
    replaced = {"dear": "replace", "events": "unchanged", "by_city": "replace by_city__2", "large": "replace large__2"}
    assert project.plan("--replace") == replaced
    # The run is cut off when everything is dropped and one of the views is begun.
    project.run("--replace", "--no-wait")
    begun = {"dear": "unchanged", "events": "unchanged", "by_city": "unchanged", "large": "create large__2"}
    assert project.plan() == begun
    # It is changed again while that one is created.
    project.write("views.sql", FILES["views.sql"].replace("10", "40"))
    project.run("--replace")
    project.has("by_city__3", ["city", "orders", "total"], totals.format(40))
    large = f"SELECT city, sum FROM ({totals.format(40)}) AS t(city, n, sum) WHERE sum > 1000"
    project.has("large__2", ["city", "total"], large)
    assert set(project.plan().values()) == {"unchanged"}
    assert service.verified("by_city")["equal"]
