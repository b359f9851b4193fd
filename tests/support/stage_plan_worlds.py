# ruff: noqa: E501 - a query stands as it is written
"""Tables of tens of thousands of rows for the queries of `queries_forms` and Nexmark, in which a row joins a few others,
and the queries of which a small change reads a table as a whole.
"""

from typing import Final

ROWS: Final = 12_000
VALUES: Final = ROWS // 4
"""Different values of a column by which rows join or are grouped."""

FORMS: Final = f"""
insert into a select g, nullif(floor(random() * {VALUES})::int, 0), floor(random() * {VALUES})::int,
    case when random() < 0.001 then null else 't' || floor(random() * {VALUES})::int end,
    case when random() < 0.001 then null else (random() * 1000000)::numeric(10,2) end,
    case when random() < 0.001 then 'NaN' else (floor(random() * 100000) / 4)::float8 end,
    date '1950-01-01' + floor(random() * 8 * {VALUES})::int, random() < 0.5 from generate_series(1, {ROWS}) g;
insert into b select g, nullif(floor(random() * {ROWS})::int, 0), nullif(floor(random() * {VALUES})::int, 0),
    't' || floor(random() * {VALUES})::int from generate_series(1, {ROWS}) g;
insert into c select i, (i + j * 701) % {VALUES}, 't' || floor(random() * {VALUES})::int
    from generate_series(1, {VALUES}) i, generate_series(1, 4) j;
insert into e (_row_id, x, y) select g, nullif(floor(random() * {VALUES})::int, 0), floor(random() * {VALUES})::int
    from generate_series(1, {ROWS}) g
"""
NEXMARK: Final = f"""
insert into shift select n * 2 from generate_series(0, 4) n;
insert into side_input select n, 'v' || n from generate_series(0, {ROWS}) n;
insert into person select n, 'n' || n, 'e', 'c', 'city', (array['or', 'id', 'ca', 'ny'])[1 + n % 4],
    timestamp '2024-01-01' + n * interval '3 seconds', null from generate_series(1, {ROWS}) n;
insert into auction select n, 'item', 'd', 5, 10, timestamp '2024-01-01' + n * interval '2 seconds',
    timestamp '2024-01-01' + (n + 30) * interval '2 seconds', 1 + floor(random() * {ROWS})::int, 10 + n % 3, 'x'
    from generate_series(1, {ROWS}) n;
insert into bid select n, 1 + floor(random() * {VALUES})::int, 1 + floor(random() * {VALUES})::int,
    10 + floor(random() * 60000)::int * 40, 'ch' || n % {VALUES}, 'https://a/b/c/d' || n,
    timestamp '2024-01-01' + random() * {VALUES} * interval '10 second', 'accbc' from generate_series(1, {ROWS}) n
"""
"""Statements that fill the tables. `setseed` before makes them repeatable."""

_SCALAR: Final = "all rows are compared with a value that changes: every change of it can change every row"
_EXPRESSION: Final = "rows are looked up by an expression of them, which no index has"
_NO_EQUALITY: Final = "no equality joins the inputs, so every pair of rows is compared"
_PADDED: Final = "a condition may hold for a row that an outer join pads, so every row is compared"
_RANKED: Final = "a row that comes or goes moves the rank of all rows behind it"
_LARGE: Final = "a part has half of all rows"

WHOLE: Final = {
    "select id, exists (select 1 from b where z > 100) as e from a": _SCALAR,
    "select c.v, a.id from c join a on a.id = c.k1 + c.k2": _EXPRESSION,
    "with q as (select x, sum(y) as s from a group by x) select l.x, r.s from q l join q r on l.s = r.s + 2": _EXPRESSION,
    "nexmark q13": _EXPRESSION,
    "select b.id, a.t, c.v from b left join a on a.id = b.aid left join c on c.k1 = coalesce(a.x, b.z)": _PADDED,
    "select z.id, q.n from b z left join (select a.id, c.k1, c.k2, a.n from a left join c on c.k1 = a.x or c.k2 = 2) q"
    " on q.id = z.aid and q.k1 = z.z and q.k2 = z.z": _NO_EQUALITY,
    "select distinct x, rank() over (order by y) as r from a order by 1, 2 desc offset 4": _RANKED,
    "select x % 2 as p, min(n), sum(distinct y) from a where t is not null group by x % 2 having max(y) > 1": _LARGE,
}
"""The queries, each with the reason. A stage whose only part is its whole input is none of them: `Stage.is_whole`."""

PAIRS: Final = {
    "select a.id, b.id as b from a join b on a.id = b.aid or a.y = b.z": _NO_EQUALITY,
    "select a.id, b.z from a left join b on true where b.z is not distinct from a.x": _NO_EQUALITY,
    "select b.id, a.t, c.v from b left join a on a.id = b.aid left join c on not (c.k1 is not distinct from a.x)": _PADDED,
    "select b.id, a.t from b left join a on a.id = b.aid where not exists (select from c where c.k1 is not distinct from a.x)": _PADDED,
    "select id from a where not (x = any (select y from e where y > 2)) and x is not null": _NO_EQUALITY,
}
"""Queries that are too slow for such tables, for the same reason."""

PREFIXED: Final = (
    "select a.id, b.id as bid, c.v from a, b, c where a.x = c.k1 and c.k2 = b.z and a.y = b.z",
    "select l.id, r.id as rid from a l join a r on l.x = r.y and l.id < r.id",
    "select b.id, a.t, c.v from b left join a on a.id = b.aid left join c on c.k1 = a.x and c.k2 = a.y",
    "select a.id, r.id as rid from a full join b r on a.id = r.aid",
    "select x, count(*), sum(y), avg(y), sum(n) as sn, avg(n) as an, count(t) as ct from a group by x",
    "select y, max(x), count(distinct t), array_agg(id order by id desc) from a group by y",
    "select id from a where not exists (select 1 from b where b.aid = a.id and b.z > a.y)",
    "select id, (select max(z) from b where b.aid = a.id) as m from a",
    "select id, row_number() over (partition by y order by id desc) as rn from a",
    "with u as (select id, x from a union all select id, z from b) select u.id, e.y from u join e on e.x = u.x",
)
"""Queries that follow their tables while these are still being read."""
