"""The random schedule of `tests/spark/test_arrangement_on_real_stores.py`, seed after seed (I1, I3)."""

from itertools import cycle

import pytest
from pyspark.sql import SparkSession

from service.protocol.plan import ScanType
from tests.support.postgres import fresh_database
from tests.support.real_arrangement import random_schedule
from tests.support.soaking import seeds
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.postgres]


async def test_every_schedule_keeps_the_view_its_query(postgres_url: str, spark: SparkSession) -> None:
    for seed, scan_type in zip(seeds(), cycle(ScanType), strict=False):
        with fresh_database(postgres_url) as url:
            async with prepared_store(url) as store:
                await random_schedule(store, spark, seed, scan_type)
