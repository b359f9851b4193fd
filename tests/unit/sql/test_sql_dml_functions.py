"""A statement that changes rows calls listed functions only, without a schema, and casts to listed types (S1)."""

from collections.abc import Mapping

import pytest

from service.domain.errors import Invalid, NotFound
from service.protocol.relation import Relation
from service.sql.dml.bind import bind_delete, bind_insert, bind_update
from service.sql.expressions.allowed import TYPES
from service.sql.expressions.functions import CALLABLE, Kind, names
from service.sql.parse import parse
from service.sql.statements.dml import Delete, Insert, Update
from service.sql.statements.tables import CreateTable, table_relation
from tests.support.functions_page import PAGE, page

CREATED = parse("create table t (id bigint primary key, s text, n numeric(10, 2), j jsonb, at timestamptz)")
assert isinstance(CREATED, CreateTable)
RELATIONS: Mapping[str, Relation] = {"t": table_relation(CREATED)}
PLACES = (
    "update t set s = ({})::text",
    "update t set s = (select ({})::text)",
    "update t set s = (select max(x.s) from t x where ({}) is null)",
    "delete from t where ({}) is null",
    "delete from t where exists (select 1 from t x order by ({}))",
    "insert into t (id, s) values (1, ({})::text)",
    "insert into t (id, s) values (1, (with w as (select ({}) as a) select a::text from w))",
    "insert into t (id, s) values (1, (select max(x.s) from t x join t y on ({}) is null))",
    "insert into t (id, s) values (1, case when true then ({})::text end)",
)
REFUSED = (
    "state.hold_generation(1, 999999)",
    '"state"."hold_generation"(1, 2)',
    "state.refuse('a', 'b')",
    "pg_catalog.abs(1)",
    "public.mine(1)",
    "pg_last_committed_xact()",
    "PG_Sleep(1)",
    '"pg_sleep"(1)',
    '"ABS"(1)',
    "set_config('a', 'b', false)",
    "current_setting('a')",
    "nextval('state.row_ids')",
    "currval('x')",
    "lo_create(1)",
    "dblink('a', 'b')",
    "pg_read_file('x')",
    "pg_advisory_lock(1)",
    "pg_notify('a', 'b')",
    "txid_current()",
    "query_to_xml('select 1', true, true, '')",
    "pg_typeof(1)",
    "version()",
    "regclass('pg_class')",
    "to_regclass('pg_class')",
    "setseed(0.5)",
    "'pg_class'::regclass",
    "cast('1' as regproc)",
    "regrole 'x'",
    "1::oid",
    "'a'::pg_catalog.regclass",
    "'0/0'::pg_lsn",
    "'a'::cstring",
    "'x'::public.mine",
    "array['a']::regclass[]",
    "1 operator(pg_catalog.+) 1",
    "current_user",
    "session_user",
    "(select count(*) from pg_ls_dir('.'))",
    "(select count(*) from state.hold_generation(1, 2))",
    "(select count(*) from rows from (pg_ls_dir('.')))",
    "(select count(*) from lateral pg_ls_dir('.') d)",
    "(select count(*) from pg_catalog.pg_class)",
    "(select count(*) from pg_class)",
    "(select count(*) from state.t_1)",
    "(select count(*) from tidefill.statement)",
    "(select ctid::text)",
    "(select t.xmin::text)",
)
TAKEN = (
    "now()",
    "random()",
    "gen_random_uuid()",
    "current_timestamp(3)",
    "date_trunc('day', now() at time zone 'UTC')",
    "extract(epoch from now())",
    "md5(repeat('x', 3)) || lower('A')",
    "coalesce(null, greatest(1, 2))",
    "jsonb_build_object('a', 1) -> 'a'",
    "'{\"a\": 1}'::jsonb #>> array['a']",
    "(select count(distinct g) filter (where g > 1) from generate_series(1, 3) g)",
    "(select string_agg(x.s, ',' order by x.id) from t x)",
    "(select percentile_cont(0.5) within group (order by x.id) from t x)",
    "(select row_number() over (order by x.id) from t x limit 1)",
    "(select u from unnest(array[1, 2]) with ordinality v(u, i) limit 1)",
    "1 = any(array[1]) and 1 <> all(array[2])",
    "'a' ~ 'b' or 'a' similar to 'b' or 'a' ^@ 'b'",
    "'1 day'::interval + interval '2' day",
    "array(select x.id from t x)",
    "trim(both 'x' from 'xax') collate \"C\"",
    "substring('abc' from 1 for 2)",
    "2 ^ 3 + 5 % 3",
    "'10.0.0.1'::inet",
    "1::numeric(10, 2)::double precision::int[]",
)


def bind(text: str) -> None:
    match parse(text):
        case Insert() as statement:
            bind_insert(statement, RELATIONS)
        case Update() as statement:
            bind_update(statement, RELATIONS)
        case Delete() as statement:
            bind_delete(statement, RELATIONS)
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("expression", REFUSED)
def test_s1_only_listed_functions_and_types_are_taken(expression: str) -> None:
    for place in PLACES:
        with pytest.raises((Invalid, NotFound)):
            bind(place.format(expression))


@pytest.mark.parametrize("expression", TAKEN)
def test_what_computes_a_value_is_taken(expression: str) -> None:
    for place in PLACES:
        bind(place.format(expression))


def test_s1_the_refusal_names_the_function_and_where_the_list_is() -> None:
    with pytest.raises(Invalid) as refused:
        bind("update t set s = state.hold_generation(1, 2)::text")
    assert "function state.hold_generation is not allowed here" in refused.value.message
    assert "docs/sql.md" in refused.value.message
    assert refused.value.position == len("update t set s = state.") + 1


def test_the_documented_lists_are_those_of_the_table() -> None:
    assert PAGE.read_text() == page(PAGE.read_text()), "run python -m tests.support.functions_page"
    assert all(f"`{name}`" in PAGE.read_text() for name in TYPES | CALLABLE - names(Kind.SYNTAX))
