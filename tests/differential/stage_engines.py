"""Have both engines read the history of random queries: the relations of both chains hold the same rows.

Of a world's queries, those count of which Spark computes every stage. `stage_run` compares the store's chains with
their queries.
"""

from collections.abc import Collection, Sequence
from random import Random

import psycopg

from service.domain.errors import Invalid
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.stage_spark import spark_reason
from tests.differential.stage_run import Case, Outcome, Row, choose, differing
from tests.differential.stage_values import VIEWS, Statements, Weather, tables
from tests.support.postgres import fresh_database
from tests.support.stage_chains import Chain, Chains
from tests.support.stage_world import Made
from tests.support.state_store import prepared_store

ROUNDS = 2
VNODES = (1, 2, 8)
"""So many are read whole by one job."""
DOCUMENTED = "date/time field value out of range"
"""Spark computed a date before year 1. `docs/sql.md` says that this is an error."""


async def read_by_both(server: str, cases: Sequence[Case], made: Made) -> list[Case]:
    """Live through a world, and return the cases that Spark computed. `made` makes Spark's engine."""
    seed = cases[0].seed
    statements = Statements(Random(f"{seed} statements"), Weather.of(seed))
    pairs: list[tuple[Case, Chain, Chain]] = []
    with fresh_database(server) as url:
        async with prepared_store(url) as store:
            texts = tables(Random(f"{seed} tables"), VNODES)
            chains = Chains(store, texts, {name: text for name, (text, _) in VIEWS.items()})
            await chains.create()
            await chains.change(*statements.filled(), *statements.some())
            for one in cases:
                pairs += [(one, *both) for both in await _read(chains, one, made)]
            for _ in range(ROUNDS):
                await chains.change(*statements.some(), *statements.some())
                for one, by_store, by_spark in pairs:
                    if one.outcome is Outcome.PLANNED:
                        await _followed(chains, one, by_store, by_spark)
    return [one for one, _, _ in pairs]


async def _read(chains: Chains, case: Case, made: Made) -> list[tuple[Chain, Chain]]:
    try:
        await choose(chains, case)
        by_store = await chains.add(case.query)
    except (psycopg.Error, Invalid):
        return []
    if any(spark_reason(link.bound.stage) is not None for link in by_store.links):
        return []
    try:
        by_spark = await chains.add(case.query, made, page_rows=lambda: 100_000)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        if DOCUMENTED in str(error):
            return []
        _failed(case, f"history: {type(error).__name__}: {error}")
        return [(by_store, by_store)]
    await _compared(chains, case, by_store, by_spark, "after history")
    return [(by_store, by_spark)]


async def _followed(chains: Chains, case: Case, by_store: Chain, by_spark: Chain) -> None:
    try:
        await chains.rows(case.query)
    except psycopg.Error:
        # The rows of this epoch have no answer, and those of later ones would follow from it.
        case.outcome = Outcome.SKIPPED
        return
    for chain in (by_store, by_spark):
        chains.follow(chain)
    await _compared(chains, case, by_store, by_spark, "later")


async def _compared(chains: Chains, case: Case, by_store: Chain, by_spark: Chain, when: str) -> None:
    for one, other in zip(by_store.links, by_spark.links, strict=True):
        mine, theirs = one.bound.target, other.bound.target
        kinds = [*(str(column.type) for column in mine.columns), "smallint"]
        measures = () if one.bound.stage.aggregate is None else one.bound.stage.aggregate.measures
        missing, extra = differing(await _held(chains, theirs, measures), await _held(chains, mine, measures), kinds)
        if missing or extra:
            _failed(case, f"{when}, {mine.name}: Spark misses {missing[:5]}, has {extra[:5]} too many")
            return
    case.rows = max(case.rows, len(await chains.held(by_spark)))


async def _held(chains: Chains, relation: Relation, measures: Collection[str]) -> list[Row]:
    """Return the live rows of a relation, hidden columns and vnodes included.

    A sum over no value is 0 in one engine and 0.00 in the other; the result over it is NULL.
    """
    columns = ", ".join(
        f"trim_scale({quoted(one.name)})" if one.name in measures and one.type.unbounded else quoted(one.name)
        for one in relation.columns
    )
    return await chains.rows(f"select {columns}, _vnode from {state_table(relation.id)} where _to = {ALIVE}")


def _failed(case: Case, said: str) -> None:
    case.outcome, case.said = Outcome.FAILED, said
