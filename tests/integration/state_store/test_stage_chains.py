"""Queries of users as chains of stages in the real store: TPC-H's 22, Nexmark's, and one of every form (I1, I12).

Each view is created when the rows are there, and follows random changes of all tables.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from random import Random

import psycopg
import pytest

from tests.support import queries_forms, queries_nexmark, queries_tpch
from tests.support.sampling import SHARE, sampled
from tests.support.stage_chains import Chains, filled, shuffled
from tests.support.state_store import Store, prepared_store

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

EPOCHS = 8
NOTHING: tuple[Counter[object], Counter[object]] = (Counter(), Counter())
SUITES = {"tpch": queries_tpch, "nexmark": queries_nexmark}


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        yield prepared


async def followed(chains: Chains, queries: Mapping[str, str], random: Random) -> list[str]:
    """Follow all queries together; return where one of them is wrong.

    A query that has no answer any more, such as one with a scalar subquery of two rows, is followed no longer.
    """
    views = {name: await chains.add(query) for name, query in queries.items()}
    wrong = [f"{name}: {found}" for name, view in views.items() if (found := await chains.differs(view)) != NOTHING]
    for _ in range(EPOCHS):
        for _ in range(random.randrange(1, 3)):
            names = random.choices(list(chains.tables), k=random.randrange(1, 4))
            await chains.change(*(shuffled(chains.tables[name], random) for name in names))
        for name, view in list(views.items()):
            try:
                differing = await chains.differs(view, followed=True)
            except psycopg.Error:
                del views[name]
            else:
                wrong += [f"{name} in epoch {chains.epoch}: {differing}"] if differing != NOTHING else []
    return wrong


@pytest.mark.parametrize("suite", [pytest.param("tpch", marks=pytest.mark.soak), "nexmark"])
async def test_i1_i12_the_queries_of_a_benchmark_are_followed(store: Store, suite: str) -> None:
    texts = SUITES[suite]
    chains = await filled(store, texts.TABLES, texts.ROWS)
    assert await followed(chains, texts.QUERIES, Random(1)) == []


@pytest.mark.parametrize("place", sampled(range(SHARE)))
async def test_i1_i12_queries_of_every_form_are_followed(store: Store, place: int) -> None:
    chains = await filled(store, queries_forms.TABLES, queries_forms.ROWS, queries_forms.VIEWS)
    assert await followed(chains, {text: text for text, _ in queries_forms.FORMS[place::SHARE]}, Random(2)) == []


async def test_i12_history_goes_past_years_that_python_has_not(store: Store) -> None:
    chains = await filled(store, queries_forms.TABLES, queries_forms.ROWS)
    late = (
        "select d + 3000000 as late, d::timestamp - interval '5000 years' as early, "
        "d::timestamp at time zone 'UTC' + interval '9000 years' as zoned, count(*) as c from a group by 1, 2, 3"
    )
    chain = await chains.add(f"select q.*, e.x from ({late}) q left join e on e.y = q.c", page_rows=lambda: 2)
    assert await chains.differs(chain) == NOTHING
    assert len(await chains.held(chain)) > 2
