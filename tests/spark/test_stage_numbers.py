# ruff: noqa: E501, ISC004 - rows and queries are longer than a line
"""Postgres's exact numbers in Spark's history of a stage: long ones, products, texts, and those too long (I12)."""

from collections.abc import AsyncGenerator
from typing import Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, state_table
from service.protocol.stage_spark import spark_reason
from tests.support.sampling import SHARE, sampled
from tests.support.spark import InSpark
from tests.support.stage_chains import Chain, Chains
from tests.support.stage_world import Made
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

TABLES: Final = {
    "x": "create table x (id bigint primary key, g integer, a numeric(38, 0), b numeric(38, 28), c numeric(38, 6),"
    " d numeric(29, 1), e numeric(28, 28), p numeric(15, 2), q numeric(15, 4), t text)",
}
NINES: Final = "9" * 38
ROWS: Final = (
    f"1, {NINES}, {NINES[:10]}.{NINES[10:]}, {NINES[:32]}.{NINES[32:]}, {NINES[:28]}.9, 0.{NINES[:28]}, 99999999.99, 1, 'a'",
    f"1, {NINES}, {NINES[:10]}.{NINES[10:]}, {NINES[:32]}.{NINES[32:]}, {NINES[:28]}.9, 0.{NINES[:28]}, 0.01, 0.0001, 'b'",
    f"1, -1, -0.{'0' * 27}1, -0.000001, -0.1, -0.{'0' * 27}1, -99999999.99, -1, null",
    f"2, -{NINES}, -{NINES[:10]}.{NINES[10:]}, -{NINES[:32]}.{NINES[32:]}, -{NINES[:28]}.9, 0, -0.01, 12.5, 'a'",
    f"2, 1{'0' * 37}, 1, 1{'0' * 22}, 1{'0' * 27}, -0.{NINES[:28]}, 3.10, 0.5, 'b'",
    f"2, {NINES[:28]}, 0.{'0' * 27}1, {NINES[:22]}.999999, 1, 0, 2.50, 2.5, 'c'",
    f"2, -1{'0' * 28}, -0.1, -1{'0' * 21}.5, -1, 0, 0, 0, 'c'",
    "3, null, null, null, null, null, null, null, null",
    f"null, {'1234567890' * 3}12345678, 1234567890.{'1234567890' * 2}12345678, {'12345678' * 4}.123456, 0.1, 0.5, 7, 7, ''",
)
SUMS: Final = (
    "select g, sum(a) as a, sum(b) as b, sum(c) as c, sum(d) as d, sum(e) as e, sum(p) as p, count(*) as n from x group by g",
    "select sum(a) as a, sum(c) as c, avg(b) as b, avg(d) as d, count(a) as n from x",
    "select sum(a) as a, sum(c) as c, count(*) as n from x where id < 0",
    "select g, avg(a) as a, avg(c) as c, variance(p) as v, stddev_pop(q) as s from x group by g",
    "select g, sum(a) filter (where t = 'a') as a, sum(-c) as c, sum(d + d) as d, sum(c * 1) as m from x group by g",
    "select distinct a, c from x",
    "select g, sum(p * (1 - q) * (1 + q)) as p, sum(p * p * p) as cube, sum(e * 3) as e from x group by g",
    "select g, sum(case when t = 'a' then p * q else 0 end) as s, sum(coalesce(p, 0)) as z,"
    " avg(case t when 'a' then p when 'b' then q end) as m, sum(case when t = 'a' then p end) as one,"
    " sum(case when t = 'info' then p * q when t = 'b' then null else 0.5 end) as half from x group by g",
    "select t, sum(case when g = 1 then coalesce(p, 0) * (1 - coalesce(q, 0)) else -q * 1.000 end) as s from x group by t",
)
COMPARED: Final = (
    "select x.id, s.s from x join (select g, sum(p) as s from x group by g) s on x.g = s.g where x.p < 0.5 * s.s",
    "select a.g, b.g as h from (select g, sum(p) as s from x group by g) a"
    " join (select g, sum(p * 1.000) as s from x group by g) b on a.s = b.s where a.s <> b.s + 1",
    "select g, sum(p) as s from x where q < (select 0.2 * avg(q + 100) from x y where y.g = x.g) group by g",
    "select id, p from x where p > (select avg(p) from x)",
    "select id, e from x where e < (select avg(e) from x) or q between (select avg(q) from x where g = 1) and 2.5",
    "select x.id from x join (select g, sum(c) as s, sum(a) as a from x where id < 3 group by g) s on x.c < s.s and s.g = x.g",
    "select x.id, s.s from x cross join (select sum(q) as s, count(g) as m from x where id > 2) s where x.q < s.s",
    "select g from (select g, sum(p) as s from x group by g) s where s > 3 or s = 0.0 or s is null",
    "select x.id from x where not exists (select 1 from (select sum(q) as s from x) s where s.s < x.q)",
    f"select id from x where abs(c) = {NINES[:32]}.{NINES[32:]} or -a in ({NINES}, -{NINES}) or abs(-a) = -(-{'1234567890' * 3}12345678)",
    "select x.id, s.s from x left join (select sum(q) as s from x) s on s.s > x.q",
)


@pytest.fixture
async def chains(database_url: str) -> AsyncGenerator[Chains]:
    async with prepared_store(database_url) as store:
        made = Chains(store, TABLES)
        await made.create()
        rows = ", ".join(f"({number}, {values})" for number, values in enumerate(ROWS * 2))
        await made.change(f"insert into x values {rows}")
        yield made


@pytest.fixture
def in_spark(spark: SparkSession) -> Made:
    return lambda store, bound: InSpark(spark, store, bound)


async def held(chains: Chains, chain: Chain) -> list[tuple[object, ...]]:
    """Return the rows of a view with every digit."""
    columns = ", ".join(quoted(column.name) for column in chain.view.visible)
    return await chains.store.rows(
        f"select row({columns})::text, _vnode from {state_table(chain.view.id)} where _to = {ALIVE} order by 1, 2"
    )


@pytest.mark.parametrize("query", sampled([*SUMS, *COMPARED], 2 * SHARE))
async def test_i12_spark_has_postgres_s_digits(chains: Chains, in_spark: Made, query: str) -> None:
    by_store, by_spark = await chains.add(query), await chains.add(query, in_spark)
    assert [spark_reason(link.bound.stage) for link in by_spark.links] == [None] * len(by_spark.links)
    rows = await held(chains, by_spark)
    assert rows
    assert rows == await held(chains, by_store)
    assert await chains.differs(by_spark) == ({}, {})
    # What Spark has summed is subtracted again, to the last digit.
    await chains.change("delete from x where id % 2 = 0", "update x set a = -a, c = -c, p = 1 where g = 2")
    for chain in (by_store, by_spark):
        chains.follow(chain)
        assert await chains.differs(chain) == ({}, {})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select g, sum(a * 10) as s from x group by g", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("select g, sum(c * p) as s from x group by g", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("select sum(a + a) as s from x", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("select g from (select g, sum(c) as s from x group by g) s where s + 1 > 3", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("select g from (select g, sum(e) as s from x group by g) s where s * 2 > 3", "only the state store computes"),
    ],
)
async def test_i12_a_number_that_spark_cannot_hold_is_an_error(
    chains: Chains, in_spark: Made, query: str, said: str
) -> None:
    with pytest.raises((PySparkException, Py4JJavaError), match=said):
        await chains.add(query, in_spark)
    assert await chains.differs(await chains.add(query)) == ({}, {})
