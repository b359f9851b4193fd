# ruff: noqa: ISC004 - rows and queries are longer than a line
"""Both engines of a history give the same rows, digit by digit, and Spark verifies them from the tables alone (I12)."""

from collections.abc import AsyncGenerator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from service.protocol.ids import DATABASE_GRAPH, Epoch, RequestId
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, state_table
from service.protocol.request import Verified, Verify, VerifyStage
from service.protocol.stage_spark import spark_reason, verify_reason
from tests.support.sampling import LATER, chosen
from tests.support.spark import InSpark
from tests.support.stage_chains import GENERATION, Chain, Chains
from tests.support.stage_world import Made
from tests.support.state_store import prepared_store
from workers.rpc.verify import verify
from workers.state_store.postgres import PostgresStore

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

NASTY: Final = {
    "id": "bigint",
    "t": "text",
    "n": "numeric(12,2)",
    "m": "numeric(20,6)",
    "f": "double precision",
    "d": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "u": "uuid",
    "raw": "bytea",
    "ok": "boolean",
    "a": "text[]",
    "tm": "time",
}
_COLUMNS: Final = ", ".join(f"{name} {kind}" for name, kind in NASTY.items())
TABLES: Final = {name: f"create table {name} ({_COLUMNS}, primary key (id))" for name in ("l", "r")}
VALUES: Final = (
    "null, null, null, null, null, null, null, null, null, null, null, null",
    "'', 0, -0.000001, 'NaN', '0001-01-01', '0001-01-01 00:00', '0001-01-01 00:00+00',"
    " '00000000-0000-0000-0000-000000000000', '\\x', true, '{}', '00:00'",
    "'žluťoučký 🐎', 1.50, 1.500000, '-0', '9999-12-31', '9999-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999+00',"
    " 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\\x00ff', false, '{a,NULL,\"b c\"}', '23:59:59.5'",
    "' pad ', -9999999999.99, 12345678901234.123456, '0', '1970-01-01', '1970-01-01 00:00', '2024-03-31 02:30+02',"
    " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x61', true, '{\"\"}', '12:00'",
    "'NaN', 0.01, 0.010000, 'Infinity', '2024-02-29', '2024-02-29 12:00', '2024-02-29 12:00+00',"
    " '12345678-1234-1234-1234-123456789abc', '\\x5c', null, '{x}', '10:20:30.000001'",
    "'a\\b''c\"%_', 9999999999.99, 1.5, '1e-300', '1582-10-15', '1582-10-04 00:00', '1900-01-01 00:00+00',"
    " '12345678-1234-1234-1234-123456789abd', '\\xffff', false, '{NULL}', '00:00:00.1'",
)
QUERIES: Final = (
    "select l.*, r.id as other, r.t as rt, r.f as rf, r.n as rn from l left join r on l.t = r.t",
    "select l.id, r.id as other, l.n, r.m, r.ts, r.tz from l join r on l.n = r.m",
    "select l.id, r.id as other, r.f from l join r on l.f = r.f",
    "select l.id, r.id as other, r.d from l join r on l.d = r.d and l.u = r.u where l.tm <> r.tm or l.raw = r.raw",
    "select id, t, f from l where exists (select 1 from r where r.ok = l.ok and r.n > l.n) "
    "and not exists (select 1 from r where r.raw = l.raw and r.id > l.id)",
    "select l.id, case when r.t is null then 'none' else upper(r.t) || l.id::text end as x, l.n * 3 as y"
    " from l left join r on r.id = l.id + 1 and r.ok",
    "select r.t, r.d, r.n, count(*) as c, sum(l.n) as s, sum(l.id) as i, bool_or(l.ok) as o, count(l.f) as f"
    " from l join r on l.ok = r.ok group by r.t, r.d, r.n",
    "select sum(n) as s, count(*) as c from l where n > 1e9",
    "select r.t, sum(l.n * r.m) as s, sum(-r.m * l.n * 0.5) as h from l join r on l.ok = r.ok group by r.t",
    "select l.id, q.s from l join (select sum(n) as s from l where id < 3) q on l.n < q.s or l.m = 0.5 * q.s + 0.25",
    "select distinct l.d, l.a is null as a, r.u from l left join r on l.u = r.u",
    "select t, sum(c) as c from (select l.t, count(*) as c from l join r on l.ok = r.ok group by l.t, r.t) q group by t"
    " having count(*) > 1",
)
PARTS: Final = (
    "select t, min(f) as lf, max(f) as hf, min(n) as ln, max(m) as hm, min(d) as ld, max(ts) as ht, min(tz) as lz,"
    " max(tm) as tm, count(distinct ok) as k, sum(id) as s, bool_and(ok) as o from l group by t",
    "select ok, string_agg(t, '|' order by t, id) as ts, array_agg(id order by d, id) as ids,"
    " string_agg(distinct t, ',') as dt, sum(distinct n) as sn, count(*) filter (where f > 0) as p from l group by ok",
    "select id, row_number() over (partition by ok order by f desc, id) as r,"
    " lag(n) over (partition by ok order by m, id) as p, sum(n) over (partition by ok order by id) as s,"
    " rank() over (partition by ok order by f) as k,"
    " cume_dist() over (partition by ok order by d) as c, first_value(t) over (partition by ok order by ts, id) as ft,"
    " max(id) over (partition by ok order by id rows between 1 preceding and 1 following) as w from l",
    "select id, ntile(3) over (order by n, id) as b, lead(d, 2, date '2000-01-01') over (order by u, id) as n,"
    " dense_rank() over (order by raw) as k, percent_rank() over (order by m) as p,"
    " last_value(id) over (order by f, id rows between unbounded preceding and unbounded following) as l from l",
    "select * from (select id, t, f, row_number() over (partition by ok order by n desc, id) as r from l) q"
    " where r <= 2",
    "select * from (select id, t, f, rank() over (partition by d order by f desc) as r from l) q where r <= 1",
    "select distinct on (ok) ok, id, f, d from l order by ok, f desc nulls last, id",
    "select id, f, t from l order by f desc nulls last, id limit 4",
    "select id, n, d from l order by n, id limit 3 offset 2",
    "select id, n from l order by n desc nulls last fetch first 2 rows with ties",
    "(select ok, d from l) except all (select ok, d from r where id % 3 = 0)",
    "(select n, t from l) intersect all (select n, t from r)",
    "select max(s) as hi, min(s) as lo from (select ok, sum(m) as s from l group by ok) q",
    "select o.t, (select max(i.f) from r i where i.ok = o.ok) as most, (select count(distinct i.d) from r i) as"
    " c from l o",
    "select k, min(x) as x, max(x) as y from (select l.ok as k, l.n * r.m as x from l join r on l.d = r.d) q"
    " group by k",
)


@pytest.fixture
async def chains(database_url: str) -> AsyncGenerator[Chains]:
    async with prepared_store(database_url) as store:
        made = Chains(store, TABLES)
        await made.create()
        for name in TABLES:
            rows = (f"({number}, {values})" for number, values in enumerate(VALUES * 2))
            await made.change(f"insert into {name} values {', '.join(rows)}")
        yield made


@pytest.fixture
def in_spark(spark: SparkSession) -> Made:
    return lambda store, bound: InSpark(spark, store, bound)


async def held(chains: Chains, chain: Chain) -> list[tuple[object, ...]]:
    columns = ", ".join(quoted(column.name) for column in chain.view.visible)
    table = state_table(chain.view.id)
    return await chains.store.rows(
        f"select row({columns})::text, _vnode from {table} where _to = {ALIVE} order by 1, 2"
    )


def verified(spark: SparkSession, chains: Chains, chain: Chain) -> Verified:
    stages = tuple(
        VerifyStage(stage=link.bound.stage, target=link.bound.target, relations=tuple(link.bound.relations.values()))
        for link in chain.links
    )
    request = Verify(
        id=RequestId(1),
        graph=DATABASE_GRAPH,
        epoch=Epoch(chain.windowed),
        relation_epoch=Epoch(chains.epoch),
        relation=chain.view,
        stages=stages,
    )
    store = PostgresStore(chains.store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    return verify(spark, store, request, parallelism=2)


IN_EVERY_RUN: Final = (QUERIES[0], QUERIES[4], PARTS[0])
"""A left join and parts with every type, and rows with and without a match. `test_stage_numbers` has sums."""


@pytest.mark.parametrize("query", chosen((*QUERIES, *PARTS), IN_EVERY_RUN))
async def test_i12_both_engines_and_the_query_agree(
    chains: Chains, spark: SparkSession, in_spark: Made, query: str
) -> None:
    by_store, by_spark = await chains.add(query), await chains.add(query, in_spark)
    assert [spark_reason(link.bound.stage) for link in by_spark.links] == [None] * len(by_spark.links)
    rows = await held(chains, by_spark)
    assert rows
    assert rows == await held(chains, by_store)
    assert await chains.differs(by_spark) == ({}, {})
    assert [verify_reason(link.bound.stage) for link in by_spark.links] == [None] * len(by_spark.links)
    await chains.change("update l set n = n + 1, t = 'žluťoučký 🐎' where id in (1, 4)", "delete from r where id = 3")
    for chain in (by_store, by_spark):
        chains.follow(chain)
        assert await chains.differs(chain) == ({}, {})
    found = verified(spark, chains, by_spark)
    assert (found.equal, found.rows) == (True, found.expected_rows), found


NEVER: Final = {
    "select l.id, r.t from l join r on l.id = r.id where l.id is distinct from l.id": [],
    "select count(*) as c from l join r on l.id = r.id where 1 = 0": [("0",)],
    "select id from l where t <> t and 1 = 0": [],
}
"""Queries whose condition Spark knows to hold for no row, and their rows."""


@pytest.mark.parametrize("query", NEVER)
async def test_i1_a_history_is_read_if_no_row_counts(
    chains: Chains, spark: SparkSession, in_spark: Made, query: str
) -> None:
    """Spark leaves out a reader whose rows nobody needs, and nobody would tell how far the history was read."""
    chain = await chains.add(query, in_spark)
    assert [spark_reason(link.bound.stage) for link in chain.links] == [None] * len(chain.links)
    await chains.change("update l set n = 1, t = 'x'")
    chains.follow(chain)
    assert await chains.held(chain) == NEVER[query]


@pytest.mark.parametrize(
    "spoil",
    [
        "delete from {} where ctid = (select min(ctid) from {})",
        pytest.param("update {} set c = c + 1", marks=LATER),
    ],
)
async def test_a_difference_is_named(chains: Chains, spark: SparkSession, spoil: str) -> None:
    chain = await chains.add("select r.t, count(*) as c from l join r on l.ok = r.ok group by r.t")
    assert verified(spark, chains, chain).equal
    await chains.store.run(f"set application_name = 'tidefill'; {spoil.replace('{}', state_table(chain.view.id))}")
    found = verified(spark, chains, chain)
    assert not found.equal
    assert any(one.missing or one.unequal for one in found.differences)
