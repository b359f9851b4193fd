import pytest

from service.domain.errors import Invalid, MetaError, NotFound
from service.protocol.columns import Column, ColumnType
from service.protocol.relation import Relation, RelationKind
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.views.bind import BoundView, bind_view, view_relation


def table(text: str) -> Relation:
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return table_relation(statement)


RELATIONS = {
    "t": table(
        'create table t (id bigint, k text, a int, b text not null, n numeric(12,2), d double precision, "Q q" text,'
        " ts timestamp, ok boolean, u uuid, j jsonb, tm time, iv interval, arr int[], primary key (k desc, id))"
    ),
    "plain": table("create table plain (a int)"),
}
RELATIONS["sums"] = RELATIONS["plain"].model_copy(
    update={
        "name": "sums",
        "columns": (Column(name="total", type=ColumnType.parse("numeric")), *RELATIONS["plain"].columns),
    }
)
HEAD = "create materialized view m as "


def bound(query: str) -> BoundView:
    statement = parse(HEAD + query)
    assert isinstance(statement, CreateMaterializedView)
    return bind_view(statement, RELATIONS)


def spark(query: str) -> str:
    return bound(f"select {query} as x, id, k from t").scans[0].query.projection[0]


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
        ("b ilike 'a_'", "(`b` ilike 'a_')"),
        ("j -> 'a b' ->> 0", "`_tidefill_computed_0`"),
        ("arr[a]", "(case when `arr` is null then null when `a` > 0 then get(`arr`, greatest(`a`, 1) - 1) end)"),
        ("upper(j -> 'o' ->> 'k')", "(upper(`_tidefill_computed_0`))"),
        ("2 = any(arr)", "(case when cardinality(`arr`) = 0 then false else array_contains(`arr`, 2) end)"),
        ("coalesce(a, 1.5)", "coalesce(cast(`a` as decimal(10,0)), 1.5BD)"),
        ("a /* x */ + -- y\n 2", "(`a` + 2)"),
    ],
)
def test_an_expression_becomes_spark_sql(expression: str, text: str) -> None:
    assert spark(expression) == text


def test_a_key_that_the_query_drops_is_kept_hidden_in_its_order() -> None:
    view = bound("select b as label, id from t where ok")
    assert view.scans[0].query.projection == ("`b`", "`id`", "`k`")
    assert view.scans[0].query.predicate == "`ok`"
    assert (view.names, view.hidden) == (("label", "id", "_key_k"), 1)
    assert [(part.name, part.descending) for part in view.key] == [("_key_k", True), ("id", False)]


def test_a_numeric_without_a_precision_is_passed_on() -> None:
    for query in ("total", "(total) as t", "*", "total, total is null as missing"):
        view = bound(f"select {query} from sums where total is not null")
        assert view.scans[0].query.projection[0] == "`total`"
        assert (
            str(
                view_relation(view, [[Column(name=n, type=ColumnType.parse("text")) for n in view.names]], "m")
                .columns[0]
                .type
            )
            == "numeric"
        )
    union = bound("select total from sums union all select total from sums")
    assert len(union.scans) == 2


@pytest.mark.parametrize(
    "query",
    ["total + 1", "abs(total)", "total::text", "total = 1", "coalesce(total, 0)", "case when a > 1 then total end"],
)
def test_spark_computes_nothing_with_a_numeric_without_a_precision(query: str) -> None:
    with pytest.raises(Invalid, match="can only be passed on in a view over one relation"):
        bound(f"select {query} as x from sums")
    union = bound("select total from sums union all select 1::bigint from plain")
    numbers = [Column(name=name, type=ColumnType.parse("bigint")) for name in union.names]
    with pytest.raises(Invalid, match="UNION types numeric and bigint cannot be matched"):
        view_relation(union, [numbers, numbers], "m")


def test_a_computed_key_column_is_no_key() -> None:
    view = bound("select id + 0 as id, k as renamed from t")
    assert view.names == ("id", "renamed", "_key_id")
    assert [part.name for part in view.key] == ["renamed", "_key_id"]


def test_star_gives_the_visible_columns_and_the_row_id_stays_hidden() -> None:
    for query in ("select * from plain", "select p.* from plain p", "select plain.* from public.plain"):
        view = bound(query)
        assert (view.names, view.hidden) == (("a", "_key__row_id"), 1)


def test_a_view_over_a_view_does_not_pile_up_prefixes() -> None:
    first = bound("select a from plain")
    columns = tuple(Column(name=name, type=ColumnType.parse("bigint")) for name in first.names)
    relation = view_relation(first, [columns], "v")
    statement = parse("create materialized view w as select a + 1 as b from v")
    assert isinstance(statement, CreateMaterializedView)
    assert bind_view(statement, {"v": relation}).names == ("b", "_key__row_id")


def test_long_key_names_get_a_short_hidden_name() -> None:
    relation = table(f"create table long (a int, {'k' * 62} int primary key)")
    statement = parse("create materialized view w as select a from long")
    assert isinstance(statement, CreateMaterializedView)
    assert bind_view(statement, {"long": relation}).names == ("a", "_key_0")


def test_columns_keep_their_postgres_types_and_expressions_take_sparks() -> None:
    view = bound("select u, coalesce(u, u) as v, j, a + 1 as w, b, id as id2 from t")
    typed = [
        Column(name=name, type=ColumnType.parse(kind))
        for name, kind in zip(view.names, ("text", "text", "text", "bigint", "text", "bigint", "text"), strict=True)
    ]
    relation = view_relation(view, [typed], "m")
    assert [f"{c.name} {c.type}" for c in relation.columns] == [
        *("u uuid", "v uuid", "j jsonb", "w bigint", "b text", "id2 bigint", "_key_k text"),
    ]
    assert [c.nullable for c in relation.columns] == [True, True, True, True, False, False, False]
    assert [c.hidden for c in relation.columns] == [False] * 6 + [True]
    assert relation.kind is RelationKind.MATERIALIZED_VIEW


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("a + 1, upper(b), a::bigint, 5::int2", ["column1", "upper", "a", "int2"]),
        ("case when ok then 1 end, coalesce(a, 1), extract(year from ts)", ["case", "coalesce", "extract"]),
        ("case when ok then 1 else a end, arr[1], true", ["a", "arr", "bool"]),
        ('"Q q", a as "A"', ["Q q", "A"]),
    ],
)
def test_names_of_outputs(query: str, names: list[str]) -> None:
    view = bound(f"select {query} from t")
    assert list(view.names[: len(names)]) == names


REFUSED: list[tuple[str, str, str]] = [
    # (query with a mark before the place, type, message)
    ("select ^nope from t", "NotFound", 'column "nope" does not exist'),
    ("select ^_vnode from t", "NotFound", 'column "_vnode" does not exist'),
    ("select ^_row_id from plain", "NotFound", 'column "_row_id" does not exist'),
    ("select ^x.a from t", "NotFound", 'missing FROM-clause entry for table "x"'),
    ("select ^t.a from t as x", "NotFound", 'missing FROM-clause entry for table "t"'),
    ("select a from ^nope", "NotFound", 'relation "nope" does not exist'),
    ("select a from ^rw_catalog.rw_tables", "NotFound", 'relation "rw_catalog.rw_tables" does not exist'),
    ("select a, ^a from t", "Invalid", 'column "a" specified more than once'),
    ("select a as ^_to from t", "Invalid", 'column name "_to" is reserved'),
    ("select a as ^xmin from t", "Invalid", 'column name "xmin" is reserved: every Postgres table has a system column'),
    ("select a as ^_key_a from t", "Invalid", 'column name "_key_a" is reserved'),
    ("select a from t where ^a", "Invalid", "argument of WHERE must be type boolean, not type integer"),
    ("select ^b + 1 as x from t", "Invalid", "operator does not exist: text + integer"),
    ("select ^u = 1 as x from t", "Invalid", "operator does not exist: uuid = integer"),
    ("select a = ^'x' as x from t", "Invalid", 'invalid input syntax for type integer: "x"'),
    (
        "select ^j = j as x from t",
        "Invalid",
        "operator =: values of type jsonb cannot be compared in a view",
    ),
    ("select ^upper(a, b) from t", "Invalid", "function upper(integer, text) does not exist"),
    ("select ^now() from t", "Invalid", "function now is not supported in a view"),
    ("select ^current_timestamp from t", "Invalid", "function current_timestamp is not supported in a view"),
    ("select ^current_user from t", "Invalid", "function current_user is not supported in a view"),
    ("select ^random() from t", "Invalid", "function random is not supported in a view"),
    ("select ^gen_random_uuid() from t", "Invalid", "function gen_random_uuid is not supported in a view"),
    ("select ^uuid() from t", "Invalid", "function uuid is not supported in a view"),
    ("select ^reflect('java.lang.System', 'getenv') from t", "Invalid", "function reflect is not supported in a view"),
    ("select ^java_method('a', 'b') from t", "Invalid", "function java_method is not supported in a view"),
    ("select ^try_reflect('a', 'b') from t", "Invalid", "function try_reflect is not supported in a view"),
    ("select ^input_file_name() from t", "Invalid", "function input_file_name is not supported in a view"),
    ('select ^"reflect"(b) from t', "Invalid", "function reflect is not supported in a view"),
    ('select ^"UPPER"(b) from t', "Invalid", "function UPPER is not supported in a view"),
    ("select ^pg_catalog.upper(b) from t", "Invalid", "a qualified function is not supported in a view"),
    ("select ^sum(a) from t", "Invalid", "aggregate function sum is not supported in a view"),
    ("select ^count(*) from t", "Invalid", "aggregate function count is not supported in a view"),
    ("select ^row_number() over () from t", "Invalid", "a window function is not supported in a view"),
    ("select ^generate_series(1, 2) from t", "Invalid", "function generate_series is not supported in a view"),
    ("select (select ^1) from t", "Invalid", "a subquery is not supported in a view"),
    ("select exists(select ^1) from t", "Invalid", "a subquery (EXISTS) is not supported in a view"),
    ("select ^a in (select 1) as x from t", "Invalid", "IN .. query is not supported in a view"),
    ("select ^'${env:HOME}' as x from t", "Invalid", '"${" is not allowed in a view'),
    ("select a as x from t where b = ^'a${x}'", "Invalid", '"${" is not allowed in a view'),
    ("select ^b ~ 'x' as x from t", "Invalid", "a regular expression is not supported in a view"),
    ("select ^b similar to 'x' as x from t", "Invalid", "SIMILAR TO is not supported in a view"),
    ("select ^d::text from t", "Invalid", "Spark writes floats differently"),
    ("select ^b::uuid from t", "Invalid", "Spark keeps it as text and could not check it"),
    ("select ^n / 2 from t", "Invalid", "numeric / numeric is not supported in a view: Postgres chooses its digits"),
    ("select substring(k, ^'1') from t", "Invalid", "is a regular expression in Postgres"),
    ("select substring(k, ^'1', '2') from t", "Invalid", "is a regular expression in Postgres"),
    (
        "select coalesce(^n, 1e-30) from t",
        "Invalid",
        "10 digits before the point and 30 behind it are more than the 38",
    ),
    ("select ^n * 1e-37 from t", "Invalid", "a product of 39 digits behind the point is not supported"),
    ("select ^a::numeric from t", "Invalid", "needs a precision"),
    (
        "select interval ^'1 day' as x from t",
        "Invalid",
        "an interval is supported in a view as",
    ),
    ("select coalesce(interval ^'1 day', iv) as x from t", "Invalid", "an interval is supported"),
    ("select a from t join ^plain on true", "Invalid", "a join is not supported in a view"),
    ("select a from t, ^plain", "Invalid", "a join is not supported in a view"),
    ("select a from t group by ^a", "Invalid", "GROUP BY is not supported in a view"),
    ("select a from t order by ^a", "Invalid", "ORDER BY is not supported in a view"),
    ("select a from t limit ^1", "Invalid", "LIMIT is not supported in a view"),
    ("select distinct ^a from t", "Invalid", "DISTINCT is not supported in a view"),
    ("with ^x as (select 1) select a from t", "Invalid", "WITH is not supported in a view"),
    ("select ^a from t union select a from t", "Invalid", "UNION without ALL is not supported in a view"),
    ("select ^a from t union all select a from t union select a from t", "Invalid", "UNION without ALL is not"),
    ("select ^a from t except select a from t", "Invalid", "EXCEPT is not supported in a view"),
    ("select a from t union all (select ^a from t intersect select a from t)", "Invalid", "INTERSECT is not supported"),
    (
        "select a from t union all select ^a, b from t",
        "Invalid",
        "each UNION query must have the same number of",
    ),
    ("select a from t union all select ^nope from t", "NotFound", 'column "nope" does not exist'),
    ("select a from t union all select a from ^nope", "NotFound", 'relation "nope" does not exist'),
    ("select a from t union all select a from t order by ^a", "Invalid", "ORDER BY is not supported in a view"),
    ("(select a from t) union all (select a from t limit ^1)", "Invalid", "LIMIT is not supported in a view"),
    ("select a from (select ^1) x", "Invalid", "a subquery in FROM is not supported in a view"),
    (
        "select a from ^generate_series(1, 2) x",
        "Invalid",
        "a function or a list of values in FROM is not supported here",
    ),
    ("select a from ^t tablesample system (1)", "Invalid", "TABLESAMPLE is not supported in a view"),
    (
        "^select 1",
        "Invalid",
        "FROM is missing: rows of constants beside a relation are a materialized view of their own",
    ),
    ("select a, ^from t", "Invalid", 'syntax error at or near "from"'),
    ("select a b ^c from t", "Invalid", 'syntax error at or near "c"'),
    ("select (a ^from t", "Invalid", 'syntax error at or near "from"'),
    ("select a from^", "Invalid", "syntax error at end of input"),
    ("select a ^== 1 as x from t", "Invalid", 'syntax error at or near "="'),
    ("select ^1_000 from t", "Invalid", 'number "1_000" is not supported: use decimal digits'),
    ("select ^0x10 from t", "Invalid", 'number "0x10" is not supported: use decimal digits'),
    ("select ^1abc from t", "Invalid", 'trailing junk after numeric literal at or near "1abc"'),
    ("select upper(b => ^'x') from t", "Invalid", "KWARG is not supported in a view"),
    ("select $^1 from t", "Invalid", "a parameter is not supported in a view"),
]


@pytest.mark.parametrize(("query", "kind", "message"), REFUSED, ids=[query for query, _, _ in REFUSED])
def test_what_a_view_may_not_say_is_refused_at_its_place(query: str, kind: str, message: str) -> None:
    place = len(HEAD) + query.index("^") + 1
    with pytest.raises(MetaError) as error:
        bound(query.replace("^", "", 1))
    assert isinstance(error.value, Invalid | NotFound)
    assert (type(error.value).__name__, error.value.position) == (kind, place), str(error.value)
    assert message in str(error.value)


def test_n4a_an_expression_that_grows_with_each_level_is_refused_early() -> None:
    def nested(levels: int) -> str:
        return "replace(" * levels + "b" + ", 'x', 'y')" * levels

    bound(f"select {nested(5)} as x, id from t")
    with pytest.raises(Invalid, match="more than 2 MiB of SQL is not supported in a view"):
        bound(f"select {nested(40)} as x, id from t")


def test_n4a_a_pattern_has_at_most_so_many_wildcards() -> None:
    assert "rlike" in spark(f"b like '{'%_' * 500}'")
    with pytest.raises(Invalid, match="a LIKE pattern of more than 1000 wildcards and escapes is not supported"):
        spark(f"b like '{'%_' * 500}%'")
