"""Operators in the real store hold their query over the prefixes of its inputs after every epoch (I1's general form).

Each occurrence of a table is read on its own, some rows at a time, while all tables change. Afterwards a view holds
what Postgres answers to its query (I12).
"""

from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from random import Random
from typing import Any, Final

import psycopg
import pytest

from service.protocol.relation import Relation
from tests.support import queries_forms, queries_nexmark, queries_tpch
from tests.support.arranged_chains import Arranged
from tests.support.sampling import SHARE, sampled
from tests.support.stage_chains import Chains, shuffled
from tests.support.state_store import Store, prepared_store
from workers.backfill.stages import Reached
from workers.state_store import stage_blocks, stage_delta, stage_sql
from workers.state_store.stage_delta import NEW, Delta, states_of

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(400)]

EPOCHS_MAX: Final = 60
PAGE_OF: Final = stage_delta._page  # pyright: ignore[reportPrivateUsage]
STATES_OF: Final = stage_delta.states_of
SOURCE: Final = stage_delta.Delta.source
NOTHING: Final[tuple[Counter[object], Counter[object]]] = (Counter(), Counter())
FORMS: Final = tuple(text for text, _ in queries_forms.FORMS)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        yield prepared


async def followed(store: Store, suite: Any, queries: Collection[str], seed: int) -> list[str]:
    """Build all queries together while their tables change; return where one of them is wrong.

    A query that has no answer any more, such as one with a scalar subquery of two rows, is followed no longer.
    """
    random = Random(seed)
    chains = Chains(store, suite.TABLES, getattr(suite, "VIEWS", {}))
    await chains.create()
    await store.run("select setseed(0.3)")
    await chains.change(*suite.ROWS.strip().removesuffix(";").split(";\n"))
    views = [Arranged.of(chains, await chains.planned(query), random) for query in queries]
    wrong: list[str] = []
    with psycopg.connect(store.url, autocommit=True) as oracle:
        for _ in range(EPOCHS_MAX):
            for _ in range(random.randrange(3)):
                names = random.choices(list(chains.tables), k=random.randrange(1, 3))
                await chains.change(*(shuffled(chains.tables[name], random) for name in names))
            for view in list(views):
                try:
                    view.run()
                    differing = await view.differs(oracle)
                    if differing is None and view.finished and await chains.differs(view.chain) != NOTHING:
                        differing = f"{view.chain.query}: the stages have another meaning"
                except (psycopg.errors.CardinalityViolation, psycopg.errors.DivisionByZero):
                    views.remove(view)
                    continue
                if differing is not None or view.finished:
                    wrong += [] if differing is None else [f"{differing}, in epoch {chains.epoch}"]
                    views.remove(view)
    assert not views, "the history does not end"
    return wrong


@pytest.mark.parametrize("place", sampled(range(SHARE)))
async def test_i1_i12_queries_of_every_form_follow_their_prefixes(store: Store, place: int) -> None:
    assert await followed(store, queries_forms, FORMS[place::SHARE], 0) == []


@pytest.mark.soak
async def test_i1_i12_queries_of_every_form_follow_their_prefixes_together(store: Store) -> None:
    assert await followed(store, queries_forms, FORMS, 1) == []


@pytest.mark.soak
@pytest.mark.parametrize("suite", [queries_tpch, queries_nexmark], ids=["tpch", "nexmark"])
async def test_i1_i12_the_queries_of_a_benchmark_follow_their_prefixes(store: Store, suite: Any) -> None:
    assert await followed(store, suite, suite.QUERIES.values(), 3) == []


def as_whole(_relation: Relation, _reached: Reached) -> str:
    """An input is seen whole, whatever was read of it."""
    return "true"


def without_page(delta: Delta, alias: str) -> str:
    """The rows of a page are not new."""
    return f"{PAGE_OF(delta, alias)} limit 0"


def unrestricted(delta: Delta) -> Mapping[str, str]:
    """Earlier inputs are not restricted to what was the same: two pages make a row twice."""
    return states_of(delta, NEW)


def at_the_end(delta: Delta, _side: str) -> Mapping[str, str]:
    """Rows that go are evaluated over the prefixes after the epoch."""
    return STATES_OF(delta, NEW)


def of_the_relation(delta: Delta, alias: str, side: str) -> str:
    """Both occurrences of a relation have the changes of the first one."""
    return SOURCE(delta, next(one for one, of in delta.bound.of.items() if of == delta.bound.of[alias]), side)


JOIN: Final = "select a.id, b.id as bid, c.v from a, b, c where a.x = c.k1 and c.k2 = b.z and a.y = b.z"
SELF: Final = "select l.id, r.id as rid from a l join a r on l.x = r.y and l.id < r.id"
PLANTED: Final = {
    "seen whole": (stage_delta, "within", as_whole, JOIN),
    "no page": (stage_delta, "_page", without_page, JOIN),
    "same": (stage_blocks, "unchanged", unrestricted, JOIN),
    "state before": (
        stage_blocks,
        "states_of",
        at_the_end,
        "select a.x, count(*) as n from a join b on b.aid = a.id group by a.x",
    ),
    "occurrence": (stage_delta.Delta, "source", of_the_relation, SELF),
    "nothing yet": (stage_sql, "every", stage_sql.net, "select min(y) as least from a where x = 77"),
}


@pytest.mark.parametrize("rule", sampled(PLANTED))
async def test_a_broken_rule_is_found(store: Store, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    owner, name, planted, query = PLANTED[rule]
    monkeypatch.setattr(owner, name, planted)
    assert await followed(store, queries_forms, [query], 1) != []
