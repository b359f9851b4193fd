"""NoShuffle in its literal sense: Spark moves no row of a scan from one actor's task to another's."""

import pytest
from pyspark.sql import SparkSession

from service.protocol.ids import DATABASE_GRAPH, Generation
from tests.support.key_shapes import SHAPES
from tests.support.projections import bound_projection
from tests.support.real_arrangement import target_of
from workers.backfill.positions import ONE_VNODE
from workers.engines.port import ScanTask
from workers.engines.spark import frame
from workers.spark.frames import Reports
from workers.state_store.postgres import PostgresStore

pytestmark = pytest.mark.spark

ACTORS = 3
UPSTREAM = SHAPES[3].relation
TARGET = target_of(UPSTREAM)
KEYS = ("{k0}", "{k1}")


def test_the_physical_plan_of_an_epoch_has_no_exchange(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    store = PostgresStore("postgresql://nowhere", DATABASE_GRAPH, Generation(1))
    bound = bound_projection(UPSTREAM, TARGET, ("{id}", "{v} * 10", *KEYS), "{v} % 3 <> 0")
    job = frame(spark, ScanTask(store, bound, UPSTREAM, ONE_VNODE), ACTORS, Reports(spark))
    job.explain()
    physical = capsys.readouterr().out
    assert physical.count("MapInArrow") == 2, "a reader and a writer"
    assert "Exchange" not in physical
    assert job.rdd.getNumPartitions() == ACTORS
