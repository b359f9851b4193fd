"""A group shows a key as one of its rows has it, also after the row that brought it has gone (I12).

Keys may be equal and look different: -0 and 0, and 2.5 and 2.500.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.support.stage_chains import Chain, Chains
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

TABLES: Final = {
    name: f"create table {name} (id bigint, a double precision, r real, s numeric(6,1), l numeric(6,3),"
    " primary key (id))"
    for name in ("x", "y")
}
NOTHING: Final[tuple[Counter[object], Counter[object]]] = (Counter(), Counter())
ONE: Final = "(1, '-0', '-0', 2.5, 2.5)"
OTHER: Final = "(2, 0, 0, 2.5, 2.5)"
FLOATS: Final = (
    "select a, count(*) as n, sum(id) as s from x group by a",
    "select r + 0 as r, a, max(id) as m from x group by 1, a",
    "select distinct a, r from x",
    "select a from x union select a from y",
    "select a from x intersect select r from x",
    "select a from x except select a from y",
    "select a from x except all select a from y where id > 5",
    "select a, r, count(*) as n from x group by grouping sets ((a), (r), ())",
    "select a, rank() over (partition by a order by id) as n from x",
    "select distinct on (a) a, id from x order by a, id",
    "select q.a, q.n from (select a, count(*) as n from x group by a) q where q.a = 0",
    "select 1 / (a + 1) as v, atan2(a, -1) as angle, count(*) as n from x group by a",
)
_SCALES: Final = "(select id, s as v from x where id < 2 union all select id, l from x where id > 1)"
NUMERICS: Final = (
    f"select v, count(*) as n, sum(id) as s from {_SCALES} q group by v",
    f"select distinct v from {_SCALES} q",
    f"select v, v::text as t, scale(v) as s, min(id) as m from {_SCALES} q group by v",
    f"select v, v::text as t, scale(v) as s, count(*) as c from {_SCALES} q group by v",
    "select s as v from x where id < 2 union select l from x where id > 1",
    f"select v from {_SCALES} q except select s from y",
    "select case when id < 2 then s else l end as v, count(*) as n from x group by 1",
    "select v, count(*) n from (select id, sum(case when id < 2 then s else l end) v from x group by 1) q group by v",
)


@pytest.fixture
async def chains(database_url: str) -> AsyncGenerator[Chains]:
    async with prepared_store(database_url) as store:
        made = Chains(store, TABLES)
        await made.create()
        yield made


@dataclass
class Followed:
    """A query that is followed, and the first values of its rows while one row was there, or both."""

    query: str
    chain: Chain
    alone: list[list[tuple[str | None, ...]]] = field(default_factory=list[list[tuple[str | None, ...]]])
    both: set[str | None] = field(default_factory=set[str | None])

    @property
    def sound(self) -> bool:
        """Whether the two rows look different, and a group of both looks as one of them."""
        shown = {row[0] for rows in self.alone for row in rows}
        return len({str(rows) for rows in self.alone}) > 1 and self.both <= shown


@pytest.mark.parametrize("order", [(ONE, OTHER), (OTHER, ONE)], ids=["this", "that"])
async def test_f4_a_group_looks_as_a_row_that_it_has(chains: Chains, order: tuple[str, str]) -> None:
    """Two rows come and go, so that each is the only one at times."""
    first, second = order
    gone = [f"delete from x where id = {row[1]}" for row in order]
    await chains.change(f"insert into x values {first}", "insert into y values (9, 3, 3, 7.5, 7.5)")
    followed = [Followed(query, await chains.add(query)) for query in (*FLOATS, *NUMERICS)]
    wrong = [one.query for one in followed if await chains.differs(one.chain) != NOTHING]
    for change, both in (
        (f"insert into x values {second}", True),
        (gone[0], False),
        (f"insert into x values {first}", True),
        (gone[1], False),
        (f"{gone[0]}; insert into x values {second}", False),
    ):
        await chains.change(*change.split("; "))
        for one in followed:
            chains.follow(one.chain)
            held = await chains.held(one.chain)
            if both:
                one.both |= {row[0] for row in held}
            else:
                one.alone.append(held)
                wrong += [f"{change}: {one.query}"] if await chains.differs(one.chain) != NOTHING else []
    assert wrong == []
    assert [one.query for one in followed if not one.sound] == []


async def test_f4_history_shows_what_one_of_its_rows_has(chains: Chains) -> None:
    await chains.change(f"insert into x values {ONE}, {OTHER}")
    chain = await chains.add(FLOATS[0], page_rows=lambda: 1)
    await chains.change("delete from x where id = 1")
    assert await chains.differs(chain, followed=True) == NOTHING
    assert await chains.held(chain) == [("0", "1", "2")]


async def test_f4_a_group_of_the_other_side_keeps_its_value(chains: Chains) -> None:
    """None of its rows are shown, so they give it no look."""
    await chains.change("insert into y values (1, '-0', 0, 2.5, 2.5)")
    query = "select s as v from x union all select s from x where id = 7"
    chain = await chains.add(f"({query}) except (select s as v from y union all select l from y)")
    await chains.change("insert into x values (1, 0, 0, 2.5, 2.5), (2, 0, 0, 3, 3.125)")
    assert await chains.differs(chain, followed=True) == NOTHING
    await chains.change("delete from y where true")
    assert await chains.differs(chain, followed=True) == NOTHING
    assert len(await chains.held(chain)) == 2
