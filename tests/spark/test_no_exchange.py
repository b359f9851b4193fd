"""NoShuffle in its literal sense: Spark moves no row of a scan from one actor's task to another's."""

import pytest
from pyspark.sql import SparkSession

from service.protocol.ids import DATABASE_GRAPH, Generation
from service.protocol.plan import Pushdown, Stateless
from tests.support.key_shapes import SHAPES
from tests.support.real_arrangement import target_of
from workers.backfill.positions import ONE_VNODE
from workers.engines.port import ScanTask
from workers.engines.spark import frame
from workers.queries.stateless import plan
from workers.state_store.postgres import PostgresStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ACTORS = 3
UPSTREAM = SHAPES[3].relation
TARGET = target_of(UPSTREAM)
KEYS = ("k0", "k1")


@pytest.mark.parametrize(
    "query",
    [
        Stateless(projection=("id", "v * 10", *KEYS), predicate="v % 3 <> 0"),
        Stateless(projection=("id", "v", *KEYS), pushdown=Pushdown(columns=("id", "v", *KEYS))),
    ],
    ids=["through Spark", "copied in the store"],
)
def test_the_physical_plan_of_an_epoch_has_no_exchange(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], query: Stateless
) -> None:
    store = PostgresStore("postgresql://nowhere", DATABASE_GRAPH, Generation(1))
    scan = ScanTask(store, UPSTREAM, TARGET, ACTORS, query.pushdown, ONE_VNODE)
    job = frame(spark, scan, plan(query, UPSTREAM, TARGET))
    job.explain()
    physical = capsys.readouterr().out
    assert physical.count("MapInArrow") == 2, "a reader and a writer"
    assert "Exchange" not in physical
    assert job.rdd.getNumPartitions() == ACTORS
