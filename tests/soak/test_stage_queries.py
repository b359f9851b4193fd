"""Worlds of random queries as chains of stages, seed after seed, until `SOAK_CASES` were lived: 20,000 by default.

A hundredth of them is Spark's too, which needs a second for what the store does in twenty milliseconds.
"""

import asyncio
import os
import sys
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from tests.differential.stage_run import CASES, Outcome, Totals, drawn, live
from tests.support.soaking import first_seed
from tests.support.spark import InSpark
from tests.support.stage_world import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.postgres]

LIVED: Final = int(os.environ.get("SOAK_CASES", "20000"))
BY_SPARK: Final = LIVED // 100
FAILURES_MAX: Final = 20
"""No more seeds are lived after so many failures."""


def test_so_many_views_hold_what_their_queries_answer(postgres_url: str) -> None:
    _soak(postgres_url, LIVED)


@pytest.mark.spark
def test_so_many_views_of_spark_hold_what_their_queries_answer(postgres_url: str, spark: "SparkSession") -> None:
    _soak(postgres_url, BY_SPARK, partial(InSpark, spark))


def _soak(url: str, cases: int, spark: Made | None = None) -> None:
    """Live through worlds until there were so many cases. Seeds and failures are told as they come."""
    total = Totals()
    for seed in count(first_seed()):
        done = drawn(seed, CASES, narrow=spark is not None)
        asyncio.run(live(url, done, spark=spark))
        total.cases += done
        sys.stdout.write(f"seed {seed}: {len(total.cases)} cases\n")
        sys.stdout.writelines(f"{one}\n" for one in done if one.outcome is Outcome.FAILED)
        sys.stdout.flush()
        if len(total.cases) >= cases or len(total.of(Outcome.FAILED)) >= FAILURES_MAX:
            break
    sys.stdout.write("\n".join(total.lines()) + "\n")
    assert not total.of(Outcome.FAILED), "\n".join(map(str, total.of(Outcome.FAILED)))
