"""The history of a stage in Spark, then its changes in the store: the target holds what its query answers (I1).

Small pages make many epochs. The other inputs are sent to all tasks, or exchanged between them.
"""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from service.protocol.stage_spark import spark_reason
from service.sql.queries.spark import with_spark
from tests.support.stage_cases import CASES, TABLES, Case
from tests.support.stage_world import Made, run, stage_store
from tests.support.state_store import Store
from workers.engines.stage_spark import SparkStageEngine

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(120)]

RELATIONS = {table.id: table for table in TABLES.values()}
PLANNED = [
    replace(case, stage=with_spark(case.stage, RELATIONS, case.target))
    for case in CASES
    if case.stage.partition is None
]
SENT, EXCHANGED = 64 << 20, 0


def made(spark: SparkSession, broadcast_bytes: int) -> Made:
    return lambda store, bound: SparkStageEngine(spark, store, bound, 32, broadcast_bytes)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with stage_store(database_url) as prepared:
        yield prepared


@pytest.mark.parametrize("broadcast_bytes", [SENT, EXCHANGED], ids=["sent", "exchanged"])
@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case.name)
async def test_i1_a_history_in_spark_is_what_the_query_answers(
    store: Store, spark: SparkSession, case: Case, broadcast_bytes: int
) -> None:
    assert spark_reason(case.stage) is None
    for seed in range(2):
        assert await run(store, case, seed, made(spark, broadcast_bytes)) is None
