"""Spark can compute all stages of TPC-H, and those of nearly all queries of Nexmark."""

from collections.abc import Collection, Mapping

import pytest

from service.protocol.stage_spark import spark_reason
from tests.support import queries_nexmark, queries_tpch
from tests.support.stage_chains import Chains
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

APART = "a join without an equality"
TPCH: Mapping[str, Collection[str]] = {}
NEXMARK = {"q5": (APART,), "q17": ("function to_char is not supported", "only the state store computes avg")}
"""Why the state store computes a stage of a query. Spark computes all stages of the others."""


@pytest.mark.parametrize(
    ("tables", "queries", "refused"),
    [
        (queries_tpch.TABLES, queries_tpch.QUERIES, TPCH),
        (queries_nexmark.TABLES, queries_nexmark.QUERIES, NEXMARK),
    ],
    ids=["tpch", "nexmark"],
)
async def test_spark_computes_the_stages_of_the_queries(
    database_url: str, tables: Mapping[str, str], queries: Mapping[str, str], refused: Mapping[str, Collection[str]]
) -> None:
    async with prepared_store(database_url) as store:
        chains = Chains(store, tables)
        await chains.create()
        for name, query in queries.items():
            stages = [link.bound.stage for link in (await chains.planned(query)).links]
            reasons = [reason for one in stages if (reason := spark_reason(one)) is not None]
            told = {said for reason in reasons for said in (APART, *refused.get(name, ())) if said in reason}
            assert told == set(refused.get(name, ())), (name, reasons)
            assert all(any(said in reason for said in told) for reason in reasons), (name, reasons)
