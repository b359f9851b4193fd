"""A view over one relation: what Spark is given of its expressions, its key, and what is refused at its place."""

import pytest

from service.domain.errors import Invalid, MetaError, NotFound
from service.protocol.columns import Column, ColumnType
from service.protocol.relation import Relation
from service.sql.queries.drafts import Draft
from service.sql.queries.plan import plan_query
from tests.support.expressions import HEAD, bound, query_of, table

T = table(
    'create table t (id bigint, k text, a int, b text not null, n numeric(12,2), d double precision, "Q q" text,'
    " ts timestamp, ok boolean, u uuid, j jsonb, tm time, iv interval, arr int[], primary key (k desc, id))"
)
PLAIN = table("create table plain (a int)")
RELATIONS = {"t": T, "plain": PLAIN}


def spark(expression: str) -> str:
    return bound(query_of(f"select {expression} as x from t"), T).texts[0]


def planned(query: str, names: str, *others: Relation) -> Draft:
    relations = {**RELATIONS, **{one.name: one for one in others}}
    (draft,) = plan_query(query_of(query), relations, {}, names.split())
    return draft


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("A", "`a`"),
        ('"Q q"', "`Q q`"),
        ("t.a", "`a`"),
        ("public.t.a", "`a`"),
        ("a + 1", "(`a` + 1)"),
        ("a / 2", "cast((`a` div 2) as int)"),
        ("id / a", "cast((`id` div cast(`a` as bigint)) as bigint)"),
        ("d::int", "(cast(rint(`d`) as int))"),
        ("n::bigint", "(cast(round(`n`, 0) as bigint))"),
        ("b || 'it''s \\ x'", "concat(`b`, 'it\\'s \\\\ x')"),
        ("a is distinct from 1", "(not (`a` <=> 1))"),
        ("not ok and a = 1 or ok", "(((not `ok`) and (`a` = 1)) or `ok`)"),
        ("u = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "(`u` = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')"),
        ("ts > '2024-01-01'", "(`ts` > TIMESTAMP_NTZ'2024-01-01 00:00:00')"),
        ("ts + interval '1 month -2 days'", "((`ts` + INTERVAL '1' MONTH) - INTERVAL '2' DAY)"),
        ("ts - interval '00:00:01.5'", "(`ts` - INTERVAL '1.500000' SECOND)"),
        ("b like 'a!%%' escape '!'", "(`b` like 'a\\\\%%')"),
        ("b like '%a_b'", "(`b` like '%a_b')"),
        ("b not like '%a%'", "(not (`b` like '%a%'))"),
        ("arr[a]", "(case when `arr` is null then null when `a` > 0 then get(`arr`, greatest(`a`, 1) - 1) end)"),
        ("2 = any(arr)", "(case when cardinality(`arr`) = 0 then false else array_contains(`arr`, 2) end)"),
        ("coalesce(a, 1.5)", "coalesce(cast(`a` as decimal(10,0)), 1.5BD)"),
        ("a /* x */ + -- y\n 2", "(`a` + 2)"),
    ],
)
def test_an_expression_becomes_spark_sql(expression: str, text: str) -> None:
    assert spark(expression) == text


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("d::text", "Spark writes floats differently"),
        ("b::uuid", "Spark keeps it as text and could not check it"),
        ("n / 2", "numeric / numeric is not supported in a view: Postgres chooses its digits"),
        ("n * 1e-37", "a product of 39 digits behind the point is not supported"),
        ("coalesce(n, 1e-30)", "10 digits before the point and 30 behind it are more than the 38"),
        ("substring(k, '1')", "is a regular expression in Postgres"),
        ("substring(k, '1', '2')", "is a regular expression in Postgres"),
        ("b ~ 'x'", "a regular expression is not supported"),
        ("b similar to 'x'", "SIMILAR TO is not supported"),
        ("b ilike 'a_'", "only the state store ignores case"),
        ("j = j", "values of type jsonb cannot be compared"),
        ("j -> 'a b' ->> 0", "Spark reads JSON numbers as floats"),
        ("upper(j -> 'o' ->> 'k')", "Spark reads JSON numbers as floats"),
        ("upper(b => 'x')", "KWARG is not supported"),
        ("interval '1 day'", "an interval is supported"),
        ("coalesce(interval '1 day', iv)", "an interval is supported"),
        ("'${env:HOME}'", '"${" is not allowed'),
        ("b = 'a${x}'", '"${" is not allowed'),
        ("cbrt(n)", "cbrt: Spark's last digit differs from Postgres's"),
        ("exp(d)", "exp: Spark's last digit differs"),
        ("ln(d)", "ln: Spark's last digit differs"),
        ("log(d)", "log: Spark's last digit differs"),
        ("log10(d)", "log10: Spark's last digit differs"),
        ("power(d, 2)", "power: Spark's last digit differs"),
        ("pow(d, d)", "pow: Spark's last digit differs"),
        ("d ^ 2 > 1", "power: Spark's last digit differs"),
        ("2 ^ 3", "power: Spark's last digit differs"),
        ("repeat('x', 33000000)", "long calls of constants"),
        ("repeat(coalesce('x', b), 33000000)", "long calls of constants"),
        ("upper(translate(translate(translate('a', 'a', 'b'), 'b', 'c'), 'c', 'd') || b)", "long calls of constants"),
        ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' like '%a%a%b' and b = 'x'", "long calls of constants"),
    ],
)
def test_an_expression_that_only_the_store_computes_is_planned_and_has_the_reason(expression: str, reason: str) -> None:
    query = query_of(f"select {expression} as x from t")
    assert plan_query(query, RELATIONS, {}, ["x"])
    with pytest.raises(Invalid) as refused:
        bound(query, T)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "expression",
    [
        "upper('a') || lower(concat('B', b))",
        "translate(b, 'a', 'c')",
        "replace(repeat(coalesce(b, 'x'), 2000), 'a', 'c')",
        "b like '%a'",
        "date '2020-01-01' + interval '1 day' > date_trunc('day', timestamp '2020-01-01')",
        "round(1.5) + abs(-2)",
    ],
)
def test_spark_computes_calls_of_columns_and_short_ones_of_constants(expression: str) -> None:
    assert bound(query_of(f"select {expression} as x from t"), T)


def test_a_key_that_the_query_drops_is_kept_hidden_in_its_order() -> None:
    draft = planned("select b as label, id from t where ok", "label id")
    assert bound(query_of("select b as label, id from t where ok"), T).conditions == ("`ok`",)
    assert (draft.columns, draft.visible) == (("label", "id", "_key_k"), 2)
    assert [(part.name, part.descending) for part in draft.key] == [("_key_k", True), ("id", False)]
    assert draft.distribution == (), "a row has the vnode of its upstream's row"
    assert draft.not_null == {"label", "id", "_key_k"}


def test_a_computed_key_column_is_no_key() -> None:
    draft = planned("select id + 0 as id, k as renamed from t", "id renamed")
    assert draft.columns == ("id", "renamed", "_key_id")
    assert [part.name for part in draft.key] == ["renamed", "_key_id"]


def test_star_gives_the_visible_columns_and_the_row_id_stays_hidden() -> None:
    for query in ("select * from plain", "select p.* from plain p", "select plain.* from public.plain"):
        draft = planned(query, "a")
        assert (draft.columns, draft.visible) == (("a", "_key_row_id"), 1)


def test_a_view_over_a_view_does_not_pile_up_prefixes() -> None:
    first = planned("select a from plain", "a")
    kind = ColumnType.parse("bigint")
    columns = tuple(Column(name=name, type=kind, hidden=name != "a") for name in first.columns)
    relation = PLAIN.model_copy(update={"name": "v", "columns": columns, "key": first.key})
    assert planned("select a + 1 as b from v", "b", relation).columns == ("b", "_key_row_id")


def test_long_key_names_get_a_short_hidden_name() -> None:
    relation = table(f"create table long (a int, {'k' * 62} int primary key)")
    assert planned("select a from long", "a", relation).columns == ("a", "_key_0")


REFUSED: list[tuple[str, str, str]] = [
    # (query with a mark before the place, type, message). Postgres has accepted it, but for names that do not exist.
    ("select ^nope from t", "NotFound", 'column "nope" does not exist'),
    ("select ^_vnode from t", "NotFound", 'column "_vnode" does not exist'),
    ("select ^_row_id from plain", "NotFound", 'column "_row_id" does not exist'),
    ("select ^x.a from t", "NotFound", 'column "a" does not exist'),
    ("select a from ^nope", "NotFound", 'relation "nope" does not exist'),
    ("select a from ^rw_catalog.rw_tables", "NotFound", 'relation "rw_catalog.rw_tables" does not exist'),
    ("select ^now() from t", "Invalid", "now depends on the time of the statement"),
    ("select ^current_timestamp from t", "Invalid", "current_timestamp depends on the time of the statement"),
    ("select ^current_user from t", "Invalid", "current_user depends on the session"),
    ("select ^random() from t", "Invalid", "function random gives another value at each call"),
    ("select ^gen_random_uuid() from t", "Invalid", "function gen_random_uuid gives another value at each call"),
    ("select ^uuid() from t", "Invalid", "function uuid is not supported in a view"),
    ("select ^reflect('java.lang.System', 'getenv') from t", "Invalid", "function reflect is not supported in a view"),
    ("select ^java_method('a', 'b') from t", "Invalid", "function java_method is not supported in a view"),
    ("select ^try_reflect('a', 'b') from t", "Invalid", "function try_reflect is not supported in a view"),
    ("select ^input_file_name() from t", "Invalid", "function input_file_name is not supported in a view"),
    ('select ^"reflect"(b) from t', "Invalid", "function reflect is not supported in a view"),
    ('select ^"UPPER"(b) from t', "Invalid", "function UPPER is not supported in a view"),
    ("select ^pg_catalog.upper(b) from t", "Invalid", "functions are named without a schema"),
    ("select ^generate_series(1, 2) from t", "Invalid", "returns several rows, which is not supported in a view"),
    ("select ltrim(b, ^b) from t", "Invalid", "ltrim looks for a literal of at most 1000 characters in a view"),
    ("select trim(both ^b from b) from t", "Invalid", "trim looks for a literal of at most 1000 characters"),
    (f"select rtrim(b, ^'{'x' * 1001}') from t", "Invalid", "rtrim looks for a literal of at most 1000 characters"),
    (
        "select translate(b, ^b || 'x', 'y') from t",
        "Invalid",
        "translate looks for a literal of at most 1000 characters",
    ),
    ("select strpos(b, ^b) from t", "Invalid", "strpos looks for a literal of at most 1000 characters"),
    ("select position(^b in b) from t", "Invalid", "position looks for a literal of at most 1000 characters"),
    ("select replace(b, ^b, 'x') from t", "Invalid", "replace looks for a literal of at most 1000 characters"),
    ("select (select ^1) from t", "Invalid", "FROM is missing"),
    ("select a from t union all select ^nope from t", "NotFound", 'column "nope" does not exist'),
    ("select a from t union all select a from ^nope", "NotFound", 'relation "nope" does not exist'),
    ("select a from (select ^1) x", "Invalid", "FROM is missing: rows of constants beside a relation"),
    ("select a from ^generate_series(1, 2) x", "Invalid", "a function or a list of values in FROM is not supported"),
    ("select a from ^t tablesample system (1)", "Invalid", "TABLESAMPLE is not supported in a view"),
    ("select a, ^from t", "Invalid", 'syntax error at or near "from"'),
    ("select a b ^c from t", "Invalid", 'syntax error at or near "c"'),
    ("select (a ^from t", "Invalid", 'syntax error at or near "from"'),
    ("select a from^", "Invalid", "syntax error at end of input"),
    ("select a ^== 1 as x from t", "Invalid", 'syntax error at or near "="'),
    ("select ^1_000 from t", "Invalid", 'number "1_000" is not supported: use decimal digits'),
    ("select ^0x10 from t", "Invalid", 'number "0x10" is not supported: use decimal digits'),
    ("select ^1abc from t", "Invalid", 'trailing junk after numeric literal at or near "1abc"'),
    ("select $^1 from t", "Invalid", "a parameter is not supported"),
    ("select a, ^a from t", "Invalid", 'column "a" specified more than once'),
]


@pytest.mark.parametrize(("query", "kind", "message"), REFUSED, ids=[query for query, _, _ in REFUSED])
def test_what_a_view_may_not_say_is_refused_at_its_place(query: str, kind: str, message: str) -> None:
    with pytest.raises(MetaError) as error:
        planned(query.replace("^", "", 1), "a a" if query == "select a, ^a from t" else "a")
    assert isinstance(error.value, Invalid | NotFound)
    place = len(HEAD) + query.index("^") + 1
    assert (type(error.value).__name__, error.value.position) == (kind, place), str(error.value)
    assert message in str(error.value)


def test_n4a_an_expression_that_grows_with_each_level_is_refused_early() -> None:
    def nested(levels: int) -> str:
        return "replace(" * levels + "b" + ", 'x', 'y')" * levels

    assert "replace" in spark(nested(5))
    with pytest.raises(Invalid, match="more than 2 MiB of SQL is not supported in a view"):
        spark(nested(40))


def test_n4a_a_pattern_has_at_most_so_many_wildcards() -> None:
    assert "rlike" in spark(f"b like '{'%_' * 500}'")
    with pytest.raises(Invalid, match="a LIKE pattern of more than 1000 wildcards and escapes is not supported"):
        spark(f"b like '{'%_' * 500}%'")
