"""Random queries of joins, aggregates, subqueries, windows and set operations, as chains of stages (I1, I12).

A view holds what its query answers over the plain tables, after its history and after each window of changes. One world
again, or some of its cases: `python -m tests.differential.stage_run [spark] SEED [CASE ..]`.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.differential.stage_run import CASES, Outcome, Totals, drawn, live
from tests.support.sampling import LATER
from tests.support.spark import InSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.postgres

SEEDS = (range(1, 2), pytest.param(range(2, 7), marks=pytest.mark.soak))
"""50 cases in `make test`, and 250 more in `make soak`."""
BY_SPARK = (pytest.param(4, 11, 3, marks=LATER), pytest.param(1, CASES, 8, marks=LATER))
"""Seeds of worlds, how many queries each has, and how many of them Spark computes and have rows and changes, at least.
"""


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_i1_i12_views_hold_what_their_queries_answer(postgres_url: str, seeds: Sequence[int]) -> None:
    total = Totals()
    for seed in seeds:
        cases = drawn(seed, CASES)
        asyncio.run(live(postgres_url, cases))
        total.cases += cases
    table = "\n".join(total.lines())
    failed = total.of(Outcome.FAILED)
    assert not failed, "\n".join(map(str, failed))
    planned = total.of(Outcome.PLANNED)
    # Queries that are refused, or have no rows, prove nothing.
    assert len(planned) > 0.85 * len(total.cases), table
    assert total.full > len(planned) * 0.5, table
    assert total.changed > len(planned) * 0.5, table


@pytest.mark.spark
@pytest.mark.parametrize(("seed", "cases", "least"), BY_SPARK)
def test_i1_i12_views_of_spark_hold_what_their_queries_answer(
    postgres_url: str, spark: "SparkSession", seed: int, cases: int, least: int
) -> None:
    world = Totals(drawn(seed, cases, narrow=True))
    asyncio.run(live(postgres_url, world.cases, rounds=2, spark=partial(InSpark, spark)))
    failed = world.of(Outcome.FAILED)
    assert not failed, "\n".join(map(str, failed))
    shown = sum(one.rows > 0 and one.changed > 0 for one in world.of(Outcome.PLANNED))
    assert shown >= least, "\n".join(world.lines())
