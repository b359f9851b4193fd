"""Changes of a stage followed in Spark: the target holds what its query answers after every epoch (I1).

The other inputs are sent to all tasks, or the changed rows are.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from service.protocol.stage_spark import spark_reason
from tests.spark.test_stages import EXCHANGED, PLANNED, SENT
from tests.support.sampling import sampled
from tests.support.stage_cases import Case
from tests.support.stage_world import Made, run, stage_store
from tests.support.state_store import Store
from workers.engines.port import ActorOutcome
from workers.engines.stage_changes import SparkStageChanges
from workers.engines.stages import StageTask

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(240)]


@dataclass
class Patient(SparkStageChanges):
    """Has time to read all inputs in the first epoch. Otherwise the store follows the first few."""

    def run(self, task: StageTask) -> list[ActorOutcome] | None:
        return super().run(task.model_copy(update={"slice_seconds": 60.0}))


def follows(spark: SparkSession, broadcast_bytes: int) -> Made:
    made = Patient if broadcast_bytes else SparkStageChanges
    return lambda store, bound: made(spark, store, bound, broadcast_bytes)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with stage_store(database_url) as prepared:
        yield prepared


@pytest.mark.parametrize("broadcast_bytes", [SENT, EXCHANGED], ids=["sent", "exchanged"])
@pytest.mark.parametrize("case", sampled(PLANNED), ids=lambda case: case.name)
async def test_i1_changes_in_spark_give_what_the_query_answers(
    store: Store, spark: SparkSession, case: Case, broadcast_bytes: int
) -> None:
    assert spark_reason(case.stage) is None
    assert await run(store, case, 1 if broadcast_bytes else 2, follows=follows(spark, broadcast_bytes)) is None
