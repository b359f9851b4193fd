"""The queries of TPC-H and Nexmark whose stages Spark can compute, all of them or some, and why not the others."""

from collections.abc import Collection, Mapping

import pytest

from service.protocol.stage_spark import spark_reason
from tests.support import queries_nexmark, queries_tpch
from tests.support.stage_chains import Chains
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

PARTS = "parts are recomputed"
APART = "a join without an equality"
TPCH = dict.fromkeys(("q2", "q3", "q10", "q15", "q16", "q18", "q21"), (PARTS,))
NEXMARK = {
    **dict.fromkeys(("q4", "q7", "q9", "q18", "q19"), (PARTS,)),
    "q5": (PARTS, APART),
    "q17": (PARTS, "function to_char is not supported"),
}
"""Why the state store computes a stage of a query. Spark computes all stages of the others."""


@pytest.mark.parametrize(
    ("tables", "queries", "refused"),
    [
        (queries_tpch.TABLES, queries_tpch.QUERIES, TPCH),
        (queries_nexmark.TABLES, queries_nexmark.QUERIES, NEXMARK),
    ],
    ids=["tpch", "nexmark"],
)
async def test_spark_computes_the_stages_of_most_queries(
    database_url: str, tables: Mapping[str, str], queries: Mapping[str, str], refused: Mapping[str, Collection[str]]
) -> None:
    async with prepared_store(database_url) as store:
        chains = Chains(store, tables)
        await chains.create()
        for name, query in queries.items():
            stages = [link.bound.stage for link in (await chains.planned(query)).links]
            reasons = [reason for one in stages if (reason := spark_reason(one)) is not None]
            told = {said for reason in reasons for said in (PARTS, APART, *refused.get(name, ())) if said in reason}
            assert told == set(refused.get(name, ())), (name, reasons)
            assert all(any(said in reason for said in told) for reason in reasons), (name, reasons)
