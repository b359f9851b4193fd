"""Worlds of random queries as chains of stages, seed after seed, until `SOAK_CASES` were lived: 3,000 by default."""

import asyncio
import os
import sys
from itertools import count

import pytest

from tests.differential.stage_run import CASES, Outcome, Totals, drawn, live
from tests.support.soaking import first_seed

pytestmark = [pytest.mark.soak, pytest.mark.postgres]


def test_so_many_views_hold_what_their_queries_answer(postgres_url: str) -> None:
    total = Totals()
    for seed in count(first_seed()):
        cases = drawn(seed, CASES)
        asyncio.run(live(postgres_url, cases))
        total.cases += cases
        failed = [one for one in cases if one.outcome is Outcome.FAILED]
        assert not failed, "\n".join(map(str, failed))
        if len(total.cases) >= int(os.environ.get("SOAK_CASES", "3000")):
            break
    sys.stdout.write("\n".join(total.lines()) + "\n")
