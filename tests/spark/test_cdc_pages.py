"""The pages of a CDC scan on a real Spark, two actors on four splits, while the table is written."""

from random import Random

import pytest
from pyspark.sql import SparkSession

from service.protocol.mutation import Resume
from tests.support.cdc_steps import SPLIT, TEXTS
from tests.support.postgres import fresh_database
from tests.support.real_cdc import CdcWorld, External
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


async def test_actors_copy_their_splits_while_the_tables_are_written(
    database_url: str, postgres_url: str, spark: SparkSession
) -> None:
    random = Random(5)
    with fresh_database(postgres_url) as external_url:
        external = External(external_url, (SPLIT, TEXTS))
        for _ in range(400):
            external.change(random)
        async with prepared_store(database_url) as store:
            world = CdcWorld(store, external, actors=2, spark=spark)
            await world.prepare()
            await world.epoch(world.throttled(20))
            for number in range(60):
                for _ in range(4):
                    external.change(random)
                await world.epoch(world.rescaled(1 + number % 3) if number % 5 == 4 else None, kill=number == 8)
                if number == 20:
                    await world.epoch(world.throttled(None))
                if len(world.finished) == 2:
                    break
            external.rest()
            await world.epoch(Resume())
            assert len(world.finished) == 2
            assert world.waiting is None
            assert world.read > 0
            world.close()
        external.close()
