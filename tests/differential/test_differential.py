"""An expression of a view gives what it gives in a `SELECT` in Postgres, by either engine (I12)."""

import logging
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from tests.differential.examine import KNOWN, examine, shown, totals
from tests.differential.worlds import draw

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

SEEDS = (range(21, 22), pytest.param(range(22, 24), marks=pytest.mark.soak))
"""100 cases in `make test`, and 200 more in `make soak`."""
CASES = 100


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_views_hold_what_their_texts_answer(postgres_url: str, spark: SparkSession, seeds: Sequence[int]) -> None:
    logging.getLogger("SQLQueryContextLogger").disabled = True
    told: list[str] = []
    found = []
    for seed in seeds:
        world = draw(seed, KNOWN, cases=CASES)
        one = examine(world, postgres_url, spark)
        found.append(one)
        told += [shown(difference, world) for difference in one.differences]
    total = totals(found)
    mix = "\n".join(total.lines())
    assert not told, "\n".join(told)
    assert total.cases >= CASES * len(seeds) - 3, mix
    # A generator whose texts are refused, or whose rows are left out, proves nothing.
    assert total.refused.total() < total.cases / 10, mix
    assert total.by_spark > total.cases / 2, mix
    assert total.by_store > 0, mix
    assert total.failing > 0, mix
