"""No statement by which a stage follows a small change reads a table as a whole, with statistics and without any."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random

import psycopg
import pytest

from service.protocol.ids import RelationId
from service.protocol.relation import ALIVE, state_table
from service.protocol.stage import LookupIndex
from service.serving.lookups import index_name
from tests.support import queries_forms, queries_nexmark, queries_tpch, stage_plan_worlds, tpch
from tests.support.arranged_chains import Arranged
from tests.support.sampling import sampled
from tests.support.stage_chains import Chains, filled
from tests.support.stage_plans import ExplainedStore, explained, faults, few_changes
from tests.support.state_store import Store, prepared_store
from workers.backfill.stages import BoundStage

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]

PAGE_ROWS = 20_000
"""Larger pages than those of which each row is looked up: the history is not what is examined here."""
PREFIX_PAGES, PREFIX_PAGE = 4, (1_000, None)
"""The pages of each actor before the change. They end in the middle of the actor's vnodes."""
FEW = (2, 2)
"""The page of each actor beside the change."""
FORMS = [text for text, _ in queries_forms.FORMS if text not in stage_plan_worlds.PAIRS]
JOINED = "select b.id, e.y from b left join e on e.x = b.z"


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with prepared_store(database_url) as prepared:
        yield prepared


SUITES = {
    "tpch": (queries_tpch, ";\n".join(tpch.filled(0.005))),
    "nexmark": (queries_nexmark, stage_plan_worlds.NEXMARK),
}


def unaltered(sql: str) -> str:
    return sql


async def _without_statistics(store: Store) -> None:
    """Forget the statistics that the server itself has made meanwhile: on a busy machine a test takes that long."""
    await store.run(
        "select pg_clear_attribute_stats('state', relname, attname, false) from pg_class c"
        " join pg_attribute a on a.attrelid = c.oid and attnum > 0 and not attisdropped"
        " where relnamespace = 'state'::regnamespace and relkind = 'r' and relname ~ '^t_'"
    )
    await store.run(
        "select pg_clear_relation_stats('state', relname) from pg_class"
        " where relnamespace = 'state'::regnamespace and relkind = 'r' and relname ~ '^t_'"
    )


async def _alone(store: Store) -> None:
    """Have no statistics appear by themselves, and the ranges of `_from` summarised, as the workers do."""
    await store.run(
        "do $$ declare t text; begin"
        " for t in select relname from pg_class where relnamespace = 'state'::regnamespace and relkind = 'r'"
        " and relname ~ '^t_' loop execute format('alter table state.%I set (autovacuum_enabled = off)', t);"
        " perform brin_summarize_new_values(one) from to_regclass(format('state.%I', t || '_from')) one"
        " where one is not null; end loop; end $$"
    )


@dataclass
class Followed:
    """A view: its stages, the stores that explain their statements, and a call that follows what changed."""

    stages: Sequence[BoundStage]
    stores: Sequence[ExplainedStore]
    follow: Callable[[], None]


ViewOf = Callable[[Chains, str, Callable[[str], str]], Awaitable[Followed]]


async def loaded(chains: Chains, query: str, altered: Callable[[str], str]) -> Followed:
    """Return a view whose history was read before anything changed."""
    chain = await chains.add(query, page_rows=lambda: PAGE_ROWS)
    stores = explained((link.engine for link in chain.links), altered)
    return Followed([link.bound for link in chain.links], stores, partial(chains.follow, chain))


async def arranged(chains: Chains, query: str, altered: Callable[[str], str]) -> Followed:
    """Return a view of which some history was read. It reads a small page of each input beside the changes."""
    view = Arranged.of(chains, await chains.planned(query), Random(1))
    for _ in range(PREFIX_PAGES):
        view.run(PREFIX_PAGE)
    assert all(one.left(alias) and one.positions[alias] for one in view.operators for alias in one.positions)
    stores = explained((one.engine for one in view.operators), altered)
    return Followed([one.bound for one in view.operators], stores, partial(view.run, FEW))


async def _sizes(store: Store, chains: Chains, views: Mapping[str, Followed]) -> dict[str, int]:
    targets = [bound.target.id for view in views.values() for bound in view.stages]
    ids = sorted({*targets, *(table.id for table in chains.tables.values())})
    counts = " union all ".join(f"select {one}, count(*) from {state_table(one)} where _to = {ALIVE}" for one in ids)
    return {f"t_{number}": int(str(rows)) for number, rows in await store.rows(counts)}


async def found(
    chains: Chains,
    queries: Mapping[str, str],
    altered: Callable[[str], str] = unaltered,
    without: Collection[str] = (),
    view_of: ViewOf = loaded,
) -> dict[str, list[str]]:
    """Follow a small change of all tables by all views, without statistics and with them; return the faults by name.

    Statements are `altered` before they are explained, and some indexes are dropped, to see that it is found.
    """
    views: dict[str, Followed] = {}
    for name, query in queries.items():
        with suppress(psycopg.errors.CardinalityViolation):
            views[name] = await view_of(chains, query, altered)
    for index in without:
        await chains.store.run(f"drop index state.{index}")
    wrong: dict[str, list[str]] = {}
    numbers = count(1)
    for analysed in (False, True):
        await _alone(chains.store)
        await (chains.store.run("analyze") if analysed else _without_statistics(chains.store))
        sizes = await _sizes(chains.store, chains, views)
        await chains.change(*(one for table in chains.tables.values() for one in few_changes(table, numbers)))
        for name, view in views.items():
            view.follow()
            for number, (bound, explaining) in enumerate(zip(view.stages, view.stores, strict=True), 1):
                plans, explaining.plans = explaining.plans, []
                read = [] if bound.stage.is_whole else faults(plans, sizes)
                wrong.setdefault(name, []).extend(f"stage {number}: {one}" for one in read)
    return {name: of_name for name, of_name in wrong.items() if of_name}


@pytest.mark.parametrize("place", sampled(range(4), 4))
async def test_queries_of_every_form(store: Store, place: int) -> None:
    chains = await filled(store, queries_forms.TABLES, stage_plan_worlds.FORMS, queries_forms.VIEWS)
    _compare(await found(chains, {text: text for text in FORMS[place::4]}), FORMS[place::4])


async def test_queries_over_prefixes(store: Store) -> None:
    chains = await filled(store, queries_forms.TABLES, stage_plan_worlds.FORMS, queries_forms.VIEWS)
    _compare(await found(chains, {text: text for text in stage_plan_worlds.PREFIXED}, view_of=arranged), ())


@pytest.mark.soak
@pytest.mark.parametrize("suite", ["nexmark", "tpch"])
async def test_queries_of_a_benchmark(store: Store, suite: str) -> None:
    texts, rows = SUITES[suite]
    chains = await filled(store, texts.TABLES, rows)
    queries = {f"{suite} {name}": text for name, text in texts.QUERIES.items()}
    _compare(await found(chains, queries), queries)


def _compare(wrong: Mapping[str, list[str]], names: Collection[str]) -> None:
    whole = stage_plan_worlds.WHOLE
    faulty = [f"{name}: {one}" for name, of_name in wrong.items() if name not in whole for one in of_name]
    assert not faulty, "\n".join(faulty)
    assert [name for name in names if name in whole and name not in wrong] == [], "these read nothing as a whole"


def flattened(sql: str) -> str:
    """Postgres may merge lookups into joins."""
    return sql.replace(" offset 0", "")


@pytest.mark.parametrize(
    ("altered", "without", "view_of"),
    [
        (flattened, (), loaded),
        (unaltered, (index_name(LookupIndex(RelationId(4), ("x",))),), loaded),
        (unaltered, ("t_2_from",), loaded),
        (flattened, (), arranged),
    ],
    ids=[
        "lookups become joins",
        "a lookup index is missing",
        "the index on what began is missing",
        "a prefix is weighed against an index",
    ],
)
async def test_a_statement_that_reads_a_table_is_found(
    store: Store, altered: Callable[[str], str], without: Collection[str], view_of: ViewOf
) -> None:
    chains = await filled(store, queries_forms.TABLES, stage_plan_worlds.FORMS)
    assert await found(chains, {JOINED: JOINED}, altered, without, view_of) != {}
