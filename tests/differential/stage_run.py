"""Live through a world of random queries: each as a chain of stages, beside the plain tables that hold the same rows.

All queries of a world follow the same changes. Some wait an epoch or two, so that their windows are longer. If Spark
computes as well, the relations of both chains hold the same rows at any time.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import isclose
from random import Random
from typing import Final

import psycopg

from service.domain.errors import Invalid
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, state_table
from service.protocol.stage_spark import spark_reason
from tests.differential.stage_queries import Queries
from tests.differential.stage_values import VIEWS, Statements, Weather, tables
from tests.support.postgres import embedded_postgres, fresh_database
from tests.support.spark import InSpark, local_spark
from tests.support.stage_chains import Chain, Chains, Link
from tests.support.stage_world import Made
from tests.support.state_store import prepared_store

Row = tuple[str | None, ...]
PAGES = (2, 5, 20, 1000, 1000, 100_000)
CASES = 50
"""Queries of one world."""
ROUNDS = 6
VNODES = (1, 2, 16, 16, 256)
SPARK_VNODES = (1, 2, 8)
"""So many are read whole by one job."""
DOCUMENTED = "date/time field value out of range"
"""Spark computed a date before year 1. `docs/sql.md` says that this is an error."""
SECONDS = 10
"""A view that takes longer in an epoch is left: it joins everything with everything."""
_PRECISE: Final = {"double precision": 1e-9, "real": 1e-5}


class Outcome(StrEnum):
    """The result of a case."""

    PLANNED = "planned"
    REFUSED = "refused"
    SKIPPED = "Postgres refuses, or it is slow"
    FAILED = "failed"


@dataclass
class Case:
    """A query of a world, and what became of it."""

    seed: int
    number: int
    query: str
    spare: str = ""
    """Stands for a query without rows, which would prove little."""
    outcome: Outcome = Outcome.PLANNED
    said: str = ""
    chain: Chain | None = None
    spark: Chain | None = None
    """Spark's, in a world with Spark."""
    rows: int = 0
    changed: int = 0
    """How often its rows were others than before."""
    last: Counter[Row] | None = None

    @property
    def random(self) -> Random:
        """A source of its own: what is random in a case does not depend on the other cases."""
        return Random(f"{self.seed} {self.number}")

    def __str__(self) -> str:
        return f"seed {self.seed}, case {self.number}: {self.said}\n  {self.query}"


@dataclass
class Totals:
    """All cases of some worlds."""

    cases: list[Case] = field(default_factory=list[Case])

    def of(self, outcome: Outcome) -> list[Case]:
        """Return the cases of an outcome."""
        return [one for one in self.cases if one.outcome is outcome]

    def lines(self) -> list[str]:
        """Return a table of how many cases had which outcome, and why."""
        told = [f"{outcome}: {len(self.of(outcome))}" for outcome in Outcome]
        for outcome in (Outcome.REFUSED, Outcome.SKIPPED):
            said = Counter(one.said for one in self.of(outcome))
            told += [f"  {outcome}, {number} times: {text}" for text, number in said.most_common()]
        planned = self.of(Outcome.PLANNED)
        return [*told, f"with rows: {self.full} of {len(planned)}, with changes: {self.changed}"]

    @property
    def full(self) -> int:
        """How many planned views had rows."""
        return sum(one.rows > 0 for one in self.of(Outcome.PLANNED))

    @property
    def changed(self) -> int:
        """How many planned views changed."""
        return sum(one.changed > 0 for one in self.of(Outcome.PLANNED))


def drawn(seed: int, cases: int, *, narrow: bool = False) -> list[Case]:
    """Return the cases of a world. With `narrow`, more of them are such that Spark can compute them."""
    made = [Case(seed, number, "") for number in range(cases)]
    for one in made:
        one.query = Queries(one.random, narrow=narrow).drawn()
        one.spare = Queries(Random(f"{seed} {one.number} spare"), narrow=narrow).drawn()
    return made


async def live(
    server: str,
    cases: Sequence[Case],
    *,
    only: Collection[int] | None = None,
    rounds: int = ROUNDS,
    spark: Made | None = None,
) -> None:
    """Live through a world, with all of its cases or with those of these numbers.

    With Spark's engine, whatever Spark cannot compute is refused.
    """
    seed = cases[0].seed
    statements = Statements(Random(f"{seed} statements"), Weather.of(seed))
    with fresh_database(server) as url:
        async with prepared_store(url) as store:
            chains = Chains(
                store,
                tables(Random(f"{seed} tables"), VNODES if spark is None else SPARK_VNODES),
                {name: query for name, (query, _) in VIEWS.items()},
                seconds=SECONDS,
            )
            await chains.create()
            await chains.change(*statements.filled())
            for one in cases:
                await _begun(chains, one, spark, skipped=only is not None and one.number not in only)
            schedule = Random(f"{seed} schedule")
            for number in range(rounds):
                for _ in range(schedule.choice((1, 1, 2))):
                    await chains.change(*statements.some())
                for one in cases:
                    last = number == rounds - 1
                    if one.chain is not None and (last or Random(f"{seed} {one.number} {number}").random() < 0.8):
                        await _followed(chains, one, f"round {number}")


async def _begun(chains: Chains, case: Case, spark: Made | None, *, skipped: bool) -> None:
    """Create a view. The tables change meanwhile, as often and in the same way if the case is skipped."""
    statements = Statements(case.random, Weather.of(case.seed))
    changes = [statements.some() for _ in range(case.random.choice((0, 0, 0, 1, 2)))]

    async def between() -> None:
        if changes:
            await chains.change(*changes.pop())

    if not skipped:
        await _added(chains, case, between)
    while changes:
        await between()
    if case.chain is not None and spark is not None:
        await _added_to_spark(chains, case, spark)
    if case.chain is not None:
        await _followed(chains, case, "after history")


async def _added(chains: Chains, case: Case, between: Callable[[], Awaitable[None]]) -> None:
    random = case.random
    try:
        await choose(chains, case)
    except psycopg.Error as error:
        case.outcome, case.said = Outcome.SKIPPED, str(error).partition("\n")[0]
        return
    try:
        case.chain = await chains.add(case.query, page_rows=lambda: random.choice(PAGES), between=between)
    except Invalid as error:
        case.outcome, case.said = Outcome.REFUSED, str(error)
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        _failed(case, error, "history")


async def _added_to_spark(chains: Chains, case: Case, spark: Made) -> None:
    assert case.chain is not None
    why = next((why for link in case.chain.links if (why := spark_reason(link.bound.stage)) is not None), None)
    if why is not None:
        case.outcome, case.said, case.chain = Outcome.REFUSED, why, None
        return
    try:
        case.spark = await chains.add(case.query, spark, page_rows=lambda: PAGES[-1])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        _failed(case, error, "history by Spark")


async def choose(chains: Chains, case: Case) -> None:
    """Take the spare query of a case if its own has no rows. Raises psycopg.Error if one of them has no answer."""
    if case.spare and not await chains.rows(case.query):
        case.query, case.spare = case.spare, case.query
    await chains.described(case.query)


async def _followed(chains: Chains, case: Case, when: str) -> None:
    assert case.chain is not None
    try:
        wanted = await chains.rows(case.query)
    except psycopg.Error as error:
        # The rows of this epoch have no answer.
        case.outcome, case.said, case.chain = Outcome.SKIPPED, str(error).partition("\n")[0], None
        return
    try:
        for chain in filter(None, (case.chain, case.spark)):
            chains.follow(chain)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        _failed(case, error, when)
        return
    await _compared(chains, case, wanted, when)


async def _compared(chains: Chains, case: Case, wanted: Sequence[Row], when: str) -> None:
    chain = case.chain
    assert chain is not None
    held = await chains.held(chain)
    kinds = [str(column.type) for column in chain.view.visible]
    case.changed += case.last is not None and case.last != Counter(wanted)
    case.rows, case.last = max(case.rows, len(wanted)), Counter(wanted)
    missing, extra = differing(held, wanted, kinds)
    if missing or extra:
        _failed(case, f"missing {missing[:5]}, too many {extra[:5]}", when)
        return
    twice = await chains.twice(chain)
    if twice:
        _failed(case, f"relations {twice} hold a key twice", when)
        return
    if case.spark is not None:
        for mine, theirs in zip(chain.links, case.spark.links, strict=True):
            if case.chain is not None:
                await _compared_with_spark(chains, case, mine, theirs, when)


async def _compared_with_spark(chains: Chains, case: Case, mine: Link, theirs: Link, when: str) -> None:
    """Compare what a stage holds, hidden columns and vnodes included."""
    stage, target = mine.bound.stage, mine.bound.target
    sums = set(() if stage.aggregate is None else stage.aggregate.measures)
    # A sum over no value is 0 in one engine and 0.00 in the other; the result over it is NULL.
    columns = ", ".join(
        f"trim_scale({quoted(one.name)})" if one.name in sums and one.type.unbounded else quoted(one.name)
        for one in target.columns
    )
    by_store, by_spark = [
        await chains.rows(f"select {columns}, _vnode from {state_table(one.bound.target.id)} where _to = {ALIVE}")
        for one in (mine, theirs)
    ]
    missing, extra = differing(by_spark, by_store, [*(str(column.type) for column in target.columns), "smallint"])
    if missing or extra:
        _failed(case, f"{target.name}: Spark misses {missing[:5]}, has {extra[:5]} too many", when)


def _failed(case: Case, why: str | Exception, when: str) -> None:
    # Neither a product of many rows nor an error that is told is a finding.
    by_spark = not isinstance(why, psycopg.Error)
    skipped = isinstance(why, psycopg.errors.QueryCanceled) or (by_spark and DOCUMENTED in str(why))
    said = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    case.outcome = Outcome.SKIPPED if skipped else Outcome.FAILED
    case.said, case.chain = said if skipped else f"{when}: {said}", None


def differing(held: Sequence[Row], wanted: Sequence[Row], kinds: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """Return the rows that are missing and those that are too many. Floats may differ in their last digits."""
    have, want = Counter(held), Counter(wanted)
    missing, extra = list((want - have).elements()), list((have - want).elements())
    if len(missing) != len(extra):
        return missing, extra
    for one in list(missing):
        for other in extra:
            if all(_alike(mine, theirs, kind) for mine, theirs, kind in zip(one, other, kinds, strict=True)):
                missing.remove(one)
                extra.remove(other)
                break
    return missing, extra


def _alike(one: str | None, other: str | None, kind: str) -> bool:
    if one == other:
        return True
    if one is None or other is None:
        return False
    if kind in _PRECISE:
        return isclose(float(one), float(other), rel_tol=_PRECISE[kind], abs_tol=_PRECISE[kind])
    return False


def main(seed: int, only: Collection[int], *, by_spark: bool) -> int:
    """Live through a world again; return the number of failures."""
    cases = drawn(seed, CASES, narrow=by_spark)
    with embedded_postgres() as server, local_spark() if by_spark else nullcontext() as spark:
        made = None if spark is None else partial(InSpark, spark)
        asyncio.run(live(server, cases, only=only or None, spark=made))
    for one in cases:
        if one.number in only or one.outcome is Outcome.FAILED:
            sys.stdout.write(f"{one.outcome}: {one}\n")
    return sum(one.outcome is Outcome.FAILED for one in cases)


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:] if one.isdigit()]
    sys.exit(min(1, main(given[0], given[1:], by_spark="spark" in sys.argv)))
