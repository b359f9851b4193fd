# ruff: noqa: E501, ISC004 - a query stands as it is written
"""Queries of every form that the planner knows, over four small tables, each with the key that the view should have."""

from typing import Final

TABLES: Final = {
    "a": """create table a (id bigint primary key, x integer, y integer not null, t text, n numeric(10,2),
        f double precision, d date, ok boolean)""",
    "b": "create table b (id bigint primary key, aid bigint, z integer, t text not null)",
    "c": "create table c (k1 integer, k2 integer, v text, primary key (k1, k2))",
    "e": "create table e (_row_id bigint primary key, x integer, y integer not null)",
}
"""The CREATE TABLE of each table, by its name. `e` has a hidden key."""

VIEWS: Final = {
    "va": "select x, count(*) as n from a group by x",
    "vj": "select a.id, b.z from a join b on b.aid = a.id",
    "vv": "select va.x, va.n, e.y from va join e on e.x = va.x",
}
"""Logical views over them."""

ROWS: Final = """
insert into a select g, nullif(floor(random() * 5)::int, 0), floor(random() * 4)::int,
    case when random() < 0.2 then null else chr(97 + floor(random() * 4)::int) end,
    case when random() < 0.1 then null else (random() * 100)::numeric(10,2) end,
    case when random() < 0.1 then 'NaN' when random() < 0.1 then null else (floor(random() * 100) / 4)::float8 end,
    date '2024-01-01' + floor(random() * 9)::int, nullif(floor(random() * 3), 0) = 1 from generate_series(1, 30) g;
insert into b select g, nullif(floor(random() * 35)::int, 0), nullif(floor(random() * 5)::int, 0),
    chr(97 + floor(random() * 4)::int) from generate_series(1, 30) g;
insert into c select i, j, chr(97 + floor(random() * 4)::int) from generate_series(1, 5) i, generate_series(1, 4) j
    where random() < 0.8;
insert into e (_row_id, x, y) select g, nullif(floor(random() * 5)::int, 0), floor(random() * 4)::int from generate_series(1, 15) g;
"""
"""Statements that fill the tables in a Postgres. `setseed` before makes them repeatable."""

FORMS: Final = (
    # Inner joins and their keys.
    ("select a.id, a.t, b.z from a join b on b.aid = a.id where a.x > 1", "_key_id"),
    ("select b.id, a.t from a join b on b.aid = a.id", "id"),
    ("select a.id, b.id as bid, c.v from a, b, c where a.x = c.k1 and c.k2 = b.z and a.y = b.z", "id, bid"),
    ("select a.id, c.v from a cross join c where c.k1 = 1 and c.k2 = a.x", "id"),
    ("select a.id, c.k2 from a join c on c.k1 = a.x", "id, k2"),
    ("select c.v, a.id from c join a on a.id = c.k1 + c.k2", "_key_k1, _key_k2"),
    ("select l.id, r.id as rid from a l join a r on l.x = r.y and l.id < r.id", "id, rid"),
    ("select id, a.x, z from b join a using (id)", "id"),
    ("select x, id, y from a natural join e", "id, _key_row_id"),
    ("select id, e.y from a join e on (a.x, a.y) = (e.x, e.y)", "id, _key_row_id"),
    ("select a.id from a join (b join c on c.k1 = b.z and c.k2 = 1) on b.aid = a.id", "_key_id"),
    ("select a.id, b.id as b from a join b on a.id = b.aid or a.y = b.z", "id, b"),
    # Integers of different types.
    ("select a.id, b.id as bid from a join b on a.x = b.aid and a.y::smallint = b.z", "id, bid"),
    ("select a.id, c.k2, a.x + a.id as s, a.id % 3000000000 as m from a join c on c.k1 = a.id and c.k2 = a.x::smallint", "id"),
    ("select x, count(*) from (select x from a union all select aid from b) q group by x", "x"),
    ("select id from a where x in (select aid from b) and y in (1, 3000000000, id)", "id"),
    # Outer joins.
    ("select b.id, a.t from b left join a on a.id = b.aid", "id"),
    ("select b.id, a.t from b left join a on a.id = b.aid where a.x = 2", "id"),
    ("select b.id, a.t from b left join a on a.id = b.aid where a.x is null", "id"),
    ("select b.id, a.t from b left join a on a.id = b.aid where coalesce(a.x, 1) = 1", "id"),
    ("select b.id, a.id as aid from a right join b on a.id = b.aid and a.x > 1", "id"),
    ("select b.id, e.y from b left join e on e.x = b.z", "id, _key_row_id"),
    ("select b.id, a.t, c.v from b left join a on a.id = b.aid left join c on c.k1 = a.x and c.k2 = a.y", "id"),
    # The last condition holds for rows that the first outer join pads.
    ("select b.id, a.t, c.v from b left join a on a.id = b.aid left join c on not (c.k1 is not distinct from a.x)",
     "id, _key_k1, _key_k2"),
    ("select b.id, a.t from b left join a on a.id = b.aid where not exists (select from c where c.k1 is not distinct from a.x)",
     "id"),
    ("select b.id, a.t, c.v from b left join a on a.id = b.aid left join c on c.k1 = coalesce(a.x, b.z)",
     "id, _key_k2"),
    ("select b.id, s.one from b left join (select id, 1 as one from a where y > 1) s on s.id = b.aid", "id"),
    ("select a.id from a join ((select id as i from b) s join c on c.k1 = s.i) on a.x = c.k2", None),
    ("select a.id, c.v from ((a join e on e.x = a.x) left join c on c.k1 = e.y)", None),
    ("select b.id, s.v from b left join (a left join c on c.k1 = a.x and c.k2 = a.y) s(i, x) "
     "on s.i = b.aid", None),
    ("select b.id, a.id as aid, c.v from b left join (a left join c on c.k1 = a.x and c.k2 = a.y) on a.id = b.aid", "id"),
    ("select b.id, q.m from b left join (select x, count(*) as m from a group by x) q on q.x = b.z", "id"),
    ("select b.id, q.p from b left join (select a.id, coalesce(c.v, '-') as p from a left join c on c.k1 = a.x and "
     "c.k2 = a.y) q on q.id = b.aid", "id"),
    ("select a.id, r.id as rid from a full join b r on a.id = r.aid", None),
    ("select id, a.t, b.t as bt from a full join b using (id)", None),
    ("select id, l.w, r.w as rw from (select id, y + 1 as w from a where y > 1) l full join "
     "(select id, 7 as w from b where z > 2) r using (id)", None),
    ("select count(*), count(a.id) as a, count(b.id) as b from a full join b on a.id = b.aid and b.z > 2", "_key_one"),
    ("select b.id from b left join a on a.id = b.aid and b.z > 3 where not (a.y > 1)", "id"),
    ("select a.id, b.z from a left join b on true where b.z is not distinct from a.x", "id, _key_id"),
    # Postgres folds what it knows to be NULL, and then says another type.
    ("select b.id, coalesce(a.n * a.n, 1.5::numeric(10,2)) as v from b join a on a.id = b.aid", "id"),
    ("select y, coalesce(max(n) * sum(n), 1.5::numeric(10,2)) as v from a group by y", "y"),
    # Lookups by a whole key that is longer than the driver's.
    ("select z.id, q.n from b z left join (select a.id, c.k1, c.k2, a.n from a left join c on c.k1 = a.x or c.k2 = 2) q "
     "on q.id = z.aid and q.k1 = z.z and q.k2 = z.z", "id"),
    ("select b.id, q.x, q.m from (select a.id, a.x, s.m from a left join (select max(z) as m from b) s on true) q "
     "right join b on q.id = b.aid", "id"),
    # Views, common table expressions, derived tables.
    ("select a.id, va.n from a join va on va.x = a.x", "id"),
    ("select * from vj", None),
    ("select x, sum(n * y) from vv group by x", "x"),
    ("with q as (select x, sum(y) as s from a group by x) select l.x, r.s from q l join q r on l.s = r.s + 2", None),
    ("with q(u, w) as (select id, x from a where x > 1), r as (select u from q where w < 4) select * from r", "u"),
    ("select q.u from (select id as u, t from (select * from a where y = 1) p where x > 0) q where t = 'a'", "u"),
    # Aggregates as sums.
    ("select x, count(*), sum(y), avg(y), sum(n) as sn, avg(n) as an, count(t) as ct from a group by x", "x"),
    ("select x, y + 1 as yy, count(*) + sum(n) as q from a group by x, y + 1 having count(*) > 1", "x, yy"),
    ("select count(*), sum(f), avg(f), bool_and(ok), bool_or(x > 3), every(y > 0) from a", "_key_one"),
    ("select count(*), sum(x), avg(n) from a where x > 100", "_key_one"),
    ("select sum(y) + 1 as s from a where false", "_key_one"),
    ("select x, sum(f), avg(f), round(stddev(f)::numeric, 9) as s, sum(f::real) as r, avg(f::real) as ar from a group by x", "x"),
    ("select stddev(n), var_pop(y), variance(x), stddev_pop(n) as sp, stddev_samp(x) as sx, var_samp(n) as vn from a", None),
    ("select y, stddev(n), var_pop(x), stddev_pop(y + 0.5) as p from a group by y", "y"),
    ("select e.x, count(*) filter (where y > 1) from e group by 1 having sum(y) > 2", "x"),
    ("select sum(y) filter (where x > 1), avg(n) filter (where ok), count(distinct x) filter (where ok) from a", None),
    ("select a.id, a.t, a.y + 1 as y1, count(b.id) from a left join b on b.aid = a.id group by a.id", "id, t, _key_k2"),
    ("select t as x, count(*) from a group by t", "x"),
    ("select y as x, count(*) from a group by x, y", "_key_k0, x"),
    ("select count(*) from a group by ()", None),
    ("select d, extract(day from d) as day, sum(n * 2 - y) from a group by d having sum(n) > (select avg(n) from a)", "d"),
    ("select x, y, count(*), grouping(x) from a group by rollup(x, y)", "_key_branch, x, y"),
    ("select x, y, count(*), grouping(x, y) as g from a group by grouping sets ((x, y), (y), ())", None),
    ("select q.x, y, count(*) from (select * from a) q group by 1, rollup (x, q.y)", None),
    ("select x, y, sum(n) from a group by cube (x, y) having count(*) > 1", None),
    ("select distinct x, y from a", "x, y"),
    ("select distinct count(*) from a group by x", "count"),
    ("select count(*) from (select distinct x, t from a) q", "_key_one"),
    # Aggregates of whole groups.
    ("select max(x), min(t), string_agg(t, ',' order by t) from a", "_key_one"),
    ("select y, string_agg(distinct t, ',' order by t) as t, max(x) from a group by y", "y"),
    ("select y, max(x), count(distinct t), array_agg(id order by id desc) from a group by y", "y"),
    ("select y, string_agg(b.t, '' order by b.id), max(n) from a join b on b.aid = a.id group by y", "y"),
    ("select x % 2 as p, min(n), sum(distinct y) from a where t is not null group by x % 2 having max(y) > 1", "p"),
    ("select y, percentile_cont(0.5) within group (order by n), mode() within group (order by t) from a group by y", "y"),
    ("select max(m) from (select x, count(*) as m from a group by x) q", "_key_one"),
    ("select max(n) - min(n) as spread, sum(y) from a where y = 99", "_key_one"),
    # Subqueries.
    ("select id from a where exists (select 1 from b where b.aid = a.id)", "id"),
    ("select id from a where not exists (select 1 from b where b.aid = a.id and b.z > a.y)", "id"),
    ("select id from a where x in (select z from b)", "id"),
    ("select id from a where (x, t) in (select z, t from b where aid > 3)", "id"),
    ("select id from a where (x, t) = any (select z, t from b where aid > 3)", "id"),
    ("select id from a where row(x, t) in (select z, t from b where aid > 3)", "id"),
    ("select id from a where (y, id) <> all (select y, y from e)", "id"),
    ("select id from a where not (y, id) <> all (select y, y from e)", "id"),
    ("select id from a where y not in (select y from e)", "id"),
    ("select id from a where x not in (select z from b where z is not null) and x is not null", "id"),
    ("select id from a where id not in (select aid from b where aid is not null)", "id"),
    ("select id from a where y > all (select z from b where z < 2)", "id"),
    ("select id from a where x = any (select z from b where t = 'a')", "id"),
    ("select id from a where not (x = any (select y from e where y > 2)) and x is not null", "id"),
    ("select id from a where exists (select 1 from b join c on c.k1 = b.z where b.aid = a.id and c.k2 > a.y)", "id"),
    ("select id from a where exists (select 1 from b left join c on c.k1 = b.z where b.aid = a.id)", "id"),
    ("select id from a where exists (select 1 from b left join c on c.k1 = b.z and c.k2 = 1 where b.aid = a.id and "
     "c.v is null)", "id"),
    ("select id from a where x in (select z from b group by z having count(*) > 2)", "id"),
    ("select id from a where y = 1 or exists (select 1 from b where b.aid = a.id)", "id"),
    ("select id from a where y = 1 or x in (select z from b where z > 2)", "id"),
    ("select id, exists (select 1 from b where b.aid = a.id and z > 1) as e from a", "id"),
    ("select id, exists (select 1 from b where z > 100) as e from a", "id"),
    ("select id, (select max(z) from b where b.aid = a.id) as m from a", "id"),
    ("select id, (select count(*) from b where b.aid = a.id) as n from a", "id"),
    ("select id, (select count(*) + coalesce(sum(z), 7) from b where b.aid = a.id and b.t = a.t) as n from a", "id"),
    ("select id from a where n > (select avg(n) from a)", "id"),
    ("select id from a where n > (select avg(n) from a a2 where a2.x = a.x)", "id"),
    ("select id, (select v from c where k1 = a.x and k2 = a.y) as v from a", "id"),
    ("select id, (select t from b where id = 3) as v from a", "id"),
    ("select id, (select t from b order by id limit 1) as v from a", "id"),
    ("select id, (select t from b where id > 900) as v from a", "id"),
    ("select id, (select id from b where id = 7 and t > '') + 1 as v from a", "id"),
    ("select id, (select z from b where b.aid = a.id order by z, id limit 1) as z from a", "id"),
    ("select id, (select b.id from b where b.z = a.x and b.t = a.t and aid > 2 limit 1) > 0 as z from a", "id"),
    ("select id from a where exists (select 1 from b where b.aid = a.id order by z limit 1)", "id"),
    ("select b.id from b left join a on a.id = b.aid where exists (select 1 from e where e.x = a.x)", "id"),
    ("select b.id, a.n from b left join a on a.id = b.aid where not exists (select 1 from e where e.x = a.x)", "id"),
    ("select id, t = E'a\\'b' as q, $$c$$ as r from a where x = (select max(y) from e)", "id"),
    ("select y, count(*) || E'\\'' as q from a group by y having count(*) > 2", "y"),
    ("select x, (select count(*) from b where b.z = a.x) as n from a group by x", "x"),
    ("select x, sum((select count(*) from b where b.aid = a.id)) as n from a group by x", "x"),
    ("select id from a where exists (select 1 from b where b.aid = a.id and exists (select 1 from c where c.k1 = b.z))",
     "id"),
    # Windows, DISTINCT ON, LIMIT.
    ("select id, row_number() over (partition by y order by id desc) as rn from a", "id"),
    ("select id, rank() over (order by y), dense_rank() over (partition by x order by y) as dr from a", "id"),
    ("select id, lag(y, 0) over w, lead(y, -1, 7) over w as l from a window w as (partition by x order by id)", "id"),
    ("select id, sum(y) over w, lag(y) over w as l from a window w as (partition by x order by id)", "id"),
    ("select id, sum(y) over (partition by x, y) as p, max(n) over (partition by x) as m from a", "id"),
    ("select id, first_value(t) over (partition by y order by id), last_value(t) over (partition by y order by id "
     "rows between unbounded preceding and unbounded following) as l from a", "id"),
    ("select * from (select id, y, row_number() over (partition by y order by n, id) as rn from a) q where rn <= 2", "id"),
    ("select x, count(*), rank() over (order by count(*) desc) from a group by x", "x"),
    ("select x, sum(sum(y)) over () as total from a group by x", "x"),
    ("select b.id, row_number() over (partition by a.y order by b.id) from b join a on a.id = b.aid", "id"),
    ("select id, count(*) filter (where ok) over (partition by date_trunc('month', d)) from a", "id"),
    ("select distinct on (y) y, id, n from a order by y, n desc, id", "id"),
    ("select distinct on (y + 1) id, t from a where x > 1 order by y + 1, id", "id"),
    ("select id, n from a order by n desc, id limit 5", "id"),
    ("select id from a order by id offset 3 fetch first 4 rows only", "id"),
    ("select id from a order by y fetch first 2 rows with ties", "id"),
    ("select x, count(*) from a group by x order by count(*) desc, x limit 2", "x"),
    ("select distinct y from a order by y desc limit 2", "y"),
    ("select distinct x, rank() over (order by y) as r from a order by 1, 2 desc offset 4", None),
    ("select distinct x, max(n) as m, dense_rank() over (order by count(*)) as r from a group by x order by m, r, x limit 3",
     None),
    # A sum has the digits of the values that it still has.
    ("select y, sum(coalesce(n, x)) as s, avg(case when ok then n * 1.50 else y end) as v from a group by y", "y"),
    ("select y, round(avg((f / 10)::real)::numeric, 12) as v from a group by y", "y"),
    ("select y, x, round(variance(f)::numeric, 6) as v, round((stddev(f) filter (where ok))::numeric, 6) as d from a group by y, x", None),
    ("select id from (select id, y from a order by id limit 10) q where y > 1", "id"),
    ("select q.id, b.z from (select id from a order by id limit 9) q join b on b.aid = q.id", None),
    # Set operations.
    ("select x from a union all select z from b", None),
    ("select x from a union select z from b", "x"),
    ("select t from a union all select t from b union all select v from c", None),
    ("select x, 'a' as s from a union all select z, t from b union all select y, null from e", None),
    ("select x from a except select z from b", "x"),
    ("select x from a intersect select z from b", "x"),
    ("select x from a except all select z from b", "x, _key_copy"),
    ("select x from a intersect all select z from b", "x, _key_copy"),
    ("select x, count(*) from (select x from a union all select z from b where z > 1) q group by x", "x"),
    ("select * from (select id, x from a union all select id, z from b) q where x > 2", None),
    ("(select id from a order by id limit 3) union all (select id from b order by id desc limit 2)", None),
    ("select x from a union select z from b order by 1 limit 2", "x"),
    ("select id from a where x in (select z from b union select y from e)", "id"),
    ("with u as (select id, x from a union all select id, z from b) select u.id, e.y from u join e on e.x = u.x", None),
)  # fmt: skip
"""Each query and the columns of its key, or None where several keys would be as good."""
