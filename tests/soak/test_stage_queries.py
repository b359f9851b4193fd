"""Worlds of random queries as chains of stages, seed after seed, until `SOAK_CASES` were lived: 20,000 by default.

A hundredth of them is read by both engines: Spark needs a second for what the store does in twenty milliseconds.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from tests.differential.stage_engines import read_by_both
from tests.differential.stage_run import CASES, Case, Outcome, Totals, drawn, live
from tests.support.soaking import first_seed
from tests.support.spark import InSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.soak, pytest.mark.postgres]

LIVED: Final = int(os.environ.get("SOAK_CASES", "20000"))
READ_BY_BOTH: Final = LIVED // 100
FAILURES_MAX: Final = 20
"""No more seeds are lived after so many failures."""


def test_so_many_views_hold_what_their_queries_answer(postgres_url: str) -> None:
    def lived(seed: int) -> list[Case]:
        cases = drawn(seed, CASES)
        asyncio.run(live(postgres_url, cases))
        return cases

    _soak(lived, LIVED)


@pytest.mark.spark
def test_both_engines_read_so_many_histories(postgres_url: str, spark: "SparkSession") -> None:

    def lived(seed: int) -> list[Case]:
        cases = drawn(seed, CASES, narrow=True)
        return asyncio.run(read_by_both(postgres_url, cases, partial(InSpark, spark)))

    _soak(lived, READ_BY_BOTH)


def _soak(lived: Callable[[int], list[Case]], cases: int) -> None:
    """Live through worlds until there were so many cases. Seeds and failures are told as they come."""
    total = Totals()
    for seed in count(first_seed()):
        done = lived(seed)
        total.cases += done
        sys.stdout.write(f"seed {seed}: {len(total.cases)} cases\n")
        sys.stdout.writelines(f"{one}\n" for one in done if one.outcome is Outcome.FAILED)
        sys.stdout.flush()
        if len(total.cases) >= cases or len(total.of(Outcome.FAILED)) >= FAILURES_MAX:
            break
    sys.stdout.write("\n".join(total.lines()) + "\n")
    assert not total.of(Outcome.FAILED), "\n".join(map(str, total.of(Outcome.FAILED)))
