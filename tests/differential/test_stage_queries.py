"""Random queries of joins, aggregates, subqueries, windows and set operations, as chains of stages (I1, I12).

A view holds what its query answers over the plain tables, after its history and after each window of changes. One world
again, or some of its cases: `python -m tests.differential.stage_run SEED [CASE ..]`.
"""

import asyncio

import pytest

from tests.differential.stage_run import CASES, Outcome, Totals, drawn, live

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]

SEEDS = range(1, 7)


def test_i1_i12_views_hold_what_their_queries_answer(postgres_url: str) -> None:
    total = Totals()
    for seed in SEEDS:
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
