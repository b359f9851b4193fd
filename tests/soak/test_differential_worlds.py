"""Worlds of `tests/differential`, seed after seed, until `SOAK_CASES` cases are compared: 20,000 by default."""

import logging
import os
import sys
from itertools import count

import pytest
from pyspark.sql import SparkSession

from tests.differential.examine import KNOWN, Findings, examine, shown
from tests.differential.worlds import draw
from tests.support.soaking import first_seed

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.postgres]


def test_so_many_views_hold_what_their_texts_answer(postgres_url: str, spark: SparkSession) -> None:
    # What must fail does so without a word.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    spark.sparkContext.setLogLevel("OFF")
    total = Findings()
    for seed in count(first_seed()):
        world = draw(seed, KNOWN, cases=200)
        found = examine(world, postgres_url, spark)
        total.add(found)
        assert not found.differences, "\n".join(shown(difference, world) for difference in found.differences)
        if total.cases >= int(os.environ.get("SOAK_CASES", "20000")):
            break
    sys.stdout.write("\n".join(total.lines()) + "\n")
