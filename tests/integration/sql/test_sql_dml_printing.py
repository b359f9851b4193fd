"""What is printed for the worker means in Postgres what the user wrote."""

import psycopg
import pytest

from service.protocol.relation import Relation
from service.sql.dml.bind import BoundInsert, bind_insert, bind_update
from service.sql.parse import parse
from service.sql.statements.dml import Insert, Update
from service.sql.statements.tables import CreateTable, table_relation

pytestmark = pytest.mark.postgres

TABLE = """create table t (id bigint primary key, a int, b text, n numeric(12,2), d double precision, ts timestamp,
    j jsonb, arr int[], ok boolean, raw bytea, u uuid, tz timestamptz, iv interval)"""
ROW = """insert into t values (1, 5, 'it''s \\ x', '2.50', 1.5e3, '2024-01-31 10:00',
    '{"a.b": {"c": "d\\\\e"}, "k": [1, 2]}', '{1,2,NULL}', 'yes', '\\x00ff',
    'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '2024-01-01 00:00+02', '1 day 02:30')"""

EXPRESSIONS = r"""
a + 1 * 2 - 3 | (a + 1) * 2 | a / 2 | -a % 3 | 2 ^ 3 ^ 2 | -2 ^ 2 | a # 3 | a & 4 | a << 2 | ~ a | a::text || 'x' || b
'a' || b || E'\n\t\'\\' | $$do'l\n$$ | $x$ $$ $x$ | '\' | b like 'it''s \\%' | b like '%!%' escape '!' | b ilike 'IT%' | b !~ 'z' | b ~* 'IT'
b similar to 'it%' | b not like 'q' | not b = 'x' | a = 5 is true | a is distinct from null | a between 1 and 2 + 3 | a not between symmetric 9 and 7
a in (1, 5) and not ok or a is null | a not in (1, 2) | case a when 5 then 'five' else 'other' end | case when ok then 1 end | coalesce(null, a, 1)
j -> 'a.b' ->> 'c' | j -> 'k' -> 1 | j #>> '{k,0}' | j -> 'k' ->> -1 | j ? 'k' | j @> '{"k": [1]}' | jsonb_array_length(j -> 'k') | j - 'k' | j || '{"z": 1}'
arr[1] | arr[1:2] | arr[a - 3] | array_length(arr, 1) | 2 = any(arr) | array[a, 2] | arr || 7 | '{3,4}'::int[] | array(select 1 union select 2 order by 1) | cardinality(arr)
extract(epoch from ts) | extract(dow from ts) | date_trunc('month', ts) | date_part('year', ts) | ts + interval '1 day 02:30:00' | ts + interval '1' day | iv * 2
ts at time zone 'Europe/Prague' | to_char(ts, 'YYYY-MM-DD"T"HH24') | age(ts, '2020-01-01') | date '2024-02-28' + 1 | timestamp '2024-01-01 00:00:00' | make_interval(days => 3) | jsonb_array_length(coalesce(j -> 'k', j))
substring(b from 2 for 3) | substring(b, 2) | substring(b from '.$') | trim(both 'ix' from b) | trim(b) | position('s' in b) | overlay(b placing 'Q' from 1 for 2) | upper(left(b, 2))
length(b) | char_length(b) | md5(b) | round(n, 1) | floor(d) | trunc(n) | greatest(a, 1) | nullif(a, 5) | lpad(b, 20, '*') | split_part(b, ' ', 1) | regexp_replace(b, '(.)t', '\1T', 'g')
encode(raw, 'hex') | raw || '\x01'::bytea | x'1f'::int | B'101'::text | 1.50 | 1e3 | .5 | 9223372036854775807 | n::numeric(4,1) | a::double precision | a::smallint | a::varchar(1)
cast(a as real) | b::varchar | u::text | true | null | row(1, 2) = (1, 2) | (a, 1) < (6, 0) | a <> 4 | a != 4 | exists(select 1 from t x where x.a = 5) | (select max(id) from t)
(with w as (select 7 as q) select q from w) | (select count(*) filter (where v.a > 1) from t v group by v.ok having count(*) > 0 order by 1 limit 1) | b collate "C" < 'j' | num_nulls(a, null)
a in (select a from t) | a > all (select 1) | (select string_agg(g::text, ',' order by g desc) from generate_series(1, 3) g) | (select x.y from (values (1), (2)) as x(y) order by y desc limit 1)
(select sum(s) over (order by s rows between 1 preceding and current row) from unnest(arr) with ordinality as z(s, o) limit 1) | (select count(distinct v.a) from t v cross join lateral (select v.id) q)
"""  # noqa: E501 - one expression after the other


def _relation() -> Relation:
    statement = parse(TABLE)
    assert isinstance(statement, CreateTable)
    return table_relation(statement)


def test_an_expression_survives_its_printing(database_url: str) -> None:
    relations = {"t": _relation()}
    texts = [part.strip() for part in EXPRESSIONS.replace("\n", " | ").split(" | ") if part.strip()]
    differing: list[str] = []
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute(TABLE)
        connection.execute(ROW.encode())
        connection.execute("create schema live")
        connection.execute("create view live.t as select * from t")
        for text in texts:
            statement = parse(f"update t set b = ({text})::text")
            assert isinstance(statement, Update)
            [(_, printed)] = bind_update(statement, relations).assignments
            expected = connection.execute(f"select ({text})::text from t".encode()).fetchone()
            found = connection.execute(f"select {printed} from t".encode()).fetchone()
            if expected != found:
                differing.append(f"{text}: {expected} became {found} ({printed})")
    assert not differing, "\n".join(differing)


def test_printed_values_are_the_values_given(database_url: str) -> None:
    statement = parse(ROW)
    assert isinstance(statement, Insert)
    bound = bind_insert(statement, {"t": _relation()})
    assert isinstance(bound, BoundInsert)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute(ROW.encode())
        names = ", ".join(bound.columns)
        connection.execute(f"update t set id = 2; insert into t ({names}) {bound.source}".encode())
        rows = connection.execute("select (t.*)::text from t order by id").fetchall()
    assert rows[0][0].replace("(1,", "(2,", 1) == rows[1][0]
