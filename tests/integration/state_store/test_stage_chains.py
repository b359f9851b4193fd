"""Queries of users as chains of stages in the real store: TPC-H's 22, Nexmark's, and one of every form (I1, I12).

Each view is created when the rows are there, and follows random changes of all tables.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from random import Random

import pytest

from tests.support import queries_forms, queries_nexmark, queries_tpch
from tests.support.stage_chains import Chains, shuffled, tables_of
from tests.support.state_store import Store, prepared_store

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

EPOCHS = 8
SUITES = {"tpch": queries_tpch, "nexmark": queries_nexmark}


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        yield prepared


async def filled(store: Store, tables: Mapping[str, str], rows: str) -> Chains:
    """Create the tables, with their rows."""
    chains = Chains(store, tables_of(tables))
    await chains.create()
    await store.run("select setseed(0.3)")
    await chains.change(*rows.strip().removesuffix(";").split(";\n"))
    return chains


async def followed(chains: Chains, queries: Mapping[str, str], random: Random) -> list[str]:
    """Follow all queries together; return where one of them is wrong."""
    views = {name: await chains.add(query) for name, query in queries.items()}
    wrong = [name for name, view in views.items() if await chains.differs(view) != (Counter(), Counter())]
    for _ in range(EPOCHS):
        for _ in range(random.randrange(1, 3)):
            names = random.choices(list(chains.tables), k=random.randrange(1, 4))
            await chains.change(*(shuffled(chains.tables[name], random) for name in names))
        for name, view in views.items():
            chains.follow(view)
            if await chains.differs(view) != (Counter(), Counter()):
                wrong.append(f"{name} in epoch {chains.epoch}")
    return wrong


@pytest.mark.parametrize("suite", SUITES)
async def test_i1_i12_the_queries_of_a_benchmark_are_followed(store: Store, suite: str) -> None:
    texts = SUITES[suite]
    chains = await filled(store, texts.TABLES, texts.ROWS)
    assert await followed(chains, texts.QUERIES, Random(1)) == []


async def test_i1_i12_queries_of_every_form_are_followed(store: Store) -> None:
    chains = await filled(store, queries_forms.TABLES, queries_forms.ROWS)
    assert await followed(chains, {text: text for text, _ in queries_forms.FORMS}, Random(2)) == []
