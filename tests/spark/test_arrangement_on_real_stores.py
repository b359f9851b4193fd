"""The random schedule of `tests/property/test_arrangement.py` on a real Spark and a real Postgres (I1, I3, I11).

Random DML, pauses, limits, rescales and kills; keys that are composite, descending and nullable. After every committed
epoch the tables are compared with the plain data; a failure says its seed.
"""

import pytest
from pyspark.sql import SparkSession

from service.protocol.plan import ScanType
from tests.support.real_arrangement import random_schedule
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.mark.parametrize("seed", [2, 9])
async def test_the_view_is_its_query_over_the_prefix_at_every_epoch(
    database_url: str, spark: SparkSession, seed: int
) -> None:
    async with prepared_store(database_url) as store:
        world = await random_schedule(store, spark, seed, ScanType.ARRANGEMENT_BACKFILL)
    assert world.read > 0, f"seed {seed} reads no history"
    assert world.rescaled > 0, f"seed {seed} changes no actors"


@pytest.mark.parametrize("seed", [3])
async def test_so_it_is_with_one_position_for_each_actor(database_url: str, spark: SparkSession, seed: int) -> None:
    """NoShuffle, whose actors never change."""
    async with prepared_store(database_url) as store:
        world = await random_schedule(store, spark, seed, ScanType.BACKFILL)
    assert world.read > 0, f"seed {seed} reads no history"
    assert world.rescaled == 0
