import pytest

from service.domain.errors import Invalid, MetaError, NotFound
from service.protocol.relation import Relation, RelationKind
from service.sql.dml.bind import BoundDelete, BoundInsert, BoundUpdate, bind_delete, bind_insert, bind_update
from service.sql.parse import parse
from service.sql.statements.dml import Delete, Insert, Update
from service.sql.statements.tables import CreateTable, table_relation


def table(text: str) -> Relation:
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return table_relation(statement)


T = table('create table t (id bigint primary key, a int, b text not null, n numeric(12,2), "Q" text)')
U = table("create table u (x int, y text)")
RELATIONS = {"t": T, "u": U, "m": U.model_copy(update={"name": "m", "kind": RelationKind.MATERIALIZED_VIEW})}


def bind(text: str) -> BoundInsert | BoundUpdate | BoundDelete:
    match parse(text):
        case Insert() as statement:
            return bind_insert(statement, RELATIONS)
        case Update() as statement:
            return bind_update(statement, RELATIONS)
        case Delete() as statement:
            return bind_delete(statement, RELATIONS)
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize(
    ("text", "columns", "source"),
    [
        (
            "insert into t values (1, 2, 'x')",
            ("id", "a", "b"),
            "VALUES (CAST((1) AS bigint), CAST((2) AS integer), CAST(('x') AS text))",
        ),
        (
            "INSERT INTO public.T (b, ID) VALUES ('it''s \\ x', -1), ('y', 2)",
            ("b", "id"),
            "VALUES (CAST(('it''s \\ x') AS text), CAST((-1) AS bigint)), (CAST(('y') AS text), CAST((2) AS bigint))",
        ),
        ("insert into u values (default)", ("x",), "VALUES (CAST(NULL AS integer))"),
        ("insert into u (y) values (null), (default)", ("y",), "VALUES (CAST(NULL AS text)), (CAST(NULL AS text))"),
        (
            "insert into u(x) values (length('a') + abs(-1))",
            ("x",),
            "VALUES (CAST(CASE WHEN TRUE THEN (length('a') + abs(-1)) END AS integer))",
        ),
        ('insert into t(id, b, "Q") values (1, upper($$x$$), now())', ("id", "b", "Q"), None),
        ("insert into u(x) values ((select max(id) from t where t.a = 1))", ("x",), None),
    ],
)
def test_values_are_printed_with_their_types(text: str, columns: tuple[str, ...], source: str | None) -> None:
    found = bind(text)
    assert isinstance(found, BoundInsert)
    assert found.columns == columns
    assert found.query is None
    if source is not None:
        assert found.source == source


def test_a_subquery_in_values_reads_the_live_view() -> None:
    found = bind("insert into u(x) values ((select max(id) from t where t.a = 1))")
    assert isinstance(found, BoundInsert)
    assert found.source == 'VALUES (CAST(((SELECT max(id) FROM live."t" AS "t" WHERE t.a = 1)) AS integer))'


@pytest.mark.parametrize(
    ("text", "columns", "query"),
    [
        ("insert into u select g, 'x' from generate_series(1, 4000000) g", ("x", "y"), None),
        ("insert into u select g from generate_series(1, 2) g", ("x",), None),
        ("insert into u (y, x) (select b, id from t)", ("y", "x"), "(select b, id from t)"),
        ("insert into u select * from m", ("x", "y"), None),
        ("insert into u with c as (select 1 as z) select z from c", ("x",), None),
        ("insert into u values (2), (1) order by 1 limit 1", ("x", "y"), None),
        ("insert into u table m", ("x", "y"), "table m"),
        ("insert into u select xmlparse(document 'x') from t", ("x", "y"), None),
    ],
)
def test_a_query_is_handed_on_as_it_is(text: str, columns: tuple[str, ...], query: str | None) -> None:
    found = bind(text)
    assert isinstance(found, BoundInsert)
    assert found.source is None
    assert found.query is not None
    assert found.query.sql == (query or text.removeprefix("insert into u ").removeprefix("(y, x) "))
    assert found.columns == columns


@pytest.mark.parametrize(
    ("text", "assignments", "predicate"),
    [
        (
            "update t set a = a + 1 where id = 3",
            [("a", "CAST((a + 1) AS integer)")],
            "(id = 3)",
        ),
        (
            "update public.t as x set (a, \"Q\") = (x.a * 2, default), n = '1.5'",
            [("a", "CAST((a * 2) AS integer)"), ("Q", "CAST(NULL AS text)"), ("n", "CAST(('1.5') AS numeric(12,2))")],
            None,
        ),
        (
            "update t set b = (select max(y) from u where u.x = t.a), id = id + 1 where exists (select from u)",
            [
                ("b", 'CAST(((SELECT max(y) FROM live."u" AS "u" WHERE u.x = "t".a)) AS text)'),
                ("id", "CAST((id + 1) AS bigint)"),
            ],
            '(EXISTS(SELECT FROM live."u" AS "u"))',
        ),
        (
            "update t set a = 1 where id in (select id from t)",
            [("a", "CAST((1) AS integer)")],
            '(id IN (SELECT id FROM live."t" AS "t"))',
        ),
        (
            "update t as x set a = 1 where a = (select max(w.a) from public.t w where w.id = x.id and x.b = 'k')",
            [("a", "CAST((1) AS integer)")],
            '(a = (SELECT max(w.a) FROM live."t" AS w WHERE w.id = "t".id AND "t".b = \'k\'))',
        ),
        (
            "update t set a = 1 where b in (with u as (select 'q' as y) select y from u)",
            [("a", "CAST((1) AS integer)")],
            "(b IN (WITH u AS (SELECT 'q' AS y) SELECT y FROM u))",
        ),
        ("update t set n = n where b < to_char(current_date, 'YYYY')", [("n", "CAST((n) AS numeric(12,2))")], None),
    ],
)
def test_an_update(text: str, assignments: list[tuple[str, str]], predicate: str | None) -> None:
    found = bind(text)
    assert isinstance(found, BoundUpdate)
    assert list(found.assignments) == assignments
    if predicate is not None:
        assert found.predicate == predicate


def test_a_delete() -> None:
    found = bind("delete from t as y where y.id = 3 or b like 'a%' -- all of them")
    assert isinstance(found, BoundDelete)
    assert found.predicate == "(id = 3 OR b LIKE 'a%')"
    everything = bind("delete from t")
    assert isinstance(everything, BoundDelete)
    assert everything.predicate is None


REFUSED: list[tuple[str, type[MetaError], str]] = [
    ("insert into ^nope values (1)", NotFound, 'relation "nope" does not exist'),
    ("insert into ^m values (1)", Invalid, 'cannot change materialized view "m"'),
    ("insert into t (id, ^zz) values (1, 2)", NotFound, 'column "zz" of relation "t" does not exist'),
    ("insert into u (^_row_id) values (1)", NotFound, 'column "_row_id" of relation "u" does not exist'),
    ("insert into t (id, ^id) values (1, 2)", Invalid, 'column "id" specified more than once'),
    ("insert into u values (^1, 2, 3)", Invalid, "INSERT has more expressions than target columns"),
    ("insert into u (x, y) values (^1)", Invalid, "INSERT has more target columns than expressions"),
    ("insert into u ^values (1), (1, 2)", Invalid, "VALUES lists must all be the same length"),
    (
        "insert into ^t (id) values (1)",
        Invalid,
        'null value in column "b" of relation "t" violates not-null constraint',
    ),
    (
        "insert into ^t (b) values ('x')",
        Invalid,
        'null value in column "id" of relation "t" violates not-null constraint',
    ),
    (
        "insert into t values (^1, 2, null)",
        Invalid,
        'null value in column "b" of relation "t" violates not-null constraint',
    ),
    ("insert into ^t (a) select 1", Invalid, 'null value in column "id" of relation "t" violates not-null constraint'),
    ("insert into ^u select 1, 2, 3", Invalid, "INSERT has more expressions than target columns"),
    ("insert into ^u (x, y) select 1", Invalid, "INSERT has more target columns than expressions"),
    ("insert into u values (^a)", NotFound, 'column "a" does not exist'),
    ("insert into u values ((select 1 from ^nope))", NotFound, 'relation "nope" does not exist'),
    ("insert into u values ((select 1 from ^state.t_1))", NotFound, 'relation "state.t_1" does not exist'),
    ("insert into u values (1) ^on conflict do nothing", Invalid, "ON CONFLICT is not supported"),
    ("insert into u values (1) ^returning x", Invalid, "RETURNING is not supported"),
    ("insert into u ^default values", Invalid, "DEFAULT is not supported in INSERT"),
    ("insert into u ^set x = 1", Invalid, 'syntax error at or near "set"'),
    ("insert ^u values (1)", Invalid, 'syntax error at or near "u"'),
    ("insert into ^rw_catalog.x values (1)", Invalid, 'schema "rw_catalog" does not exist'),
    ("insert into u values (^$1)", Invalid, "there is no parameter $1"),
    ("update t set ^zz = 1", NotFound, 'column "zz" of relation "t" does not exist'),
    ("update u set ^_row_id = 1", NotFound, 'column "_row_id" of relation "u" does not exist'),
    ("update t set a = ^zz", NotFound, 'column "zz" does not exist'),
    ("update t set a = ^_from", NotFound, 'column "_from" does not exist'),
    ("update t set a = (select ^_to from u)", NotFound, 'column "_to" does not exist'),
    ("update u set x = ^_row_id", NotFound, 'column "_row_id" does not exist'),
    ("update t set a = ^u.x", NotFound, 'missing FROM-clause entry for table "u"'),
    ("update t x set a = ^t.a", NotFound, 'missing FROM-clause entry for table "t"'),
    ("update t set a = 1, ^a = 2", Invalid, 'multiple assignments to same column "a"'),
    ("update t set ^b = null", Invalid, 'null value in column "b" of relation "t" violates not-null constraint'),
    ("^update t set a = 1 from u", Invalid, "UPDATE .. FROM is not supported: use a subquery"),
    ("update t set a = 1 ^returning a", Invalid, "RETURNING is not supported"),
    ("update t set (^a, n) = (select 1, 2)", Invalid, "a list of columns takes as many values"),
    ("update t^", Invalid, "syntax error at end of input"),
    ("update ^nope set a = 1", NotFound, 'relation "nope" does not exist'),
    ("update t set a = 1 where a = (select 1 from ^nope)", NotFound, 'relation "nope" does not exist'),
    (
        "update t x set a = (select max(t.a) from t where t.id = ^x.id)",
        Invalid,
        'a subquery that reads "t" needs an alias for it here',
    ),
    ("delete from ^m", Invalid, 'cannot change materialized view "m"'),
    ("^delete from t using u", Invalid, "DELETE .. USING is not supported: use a subquery"),
    ("delete from only ^t", Invalid, "ONLY is not supported here"),
    ("delete from t where ^zz", NotFound, 'column "zz" does not exist'),
    ("delete from t where exists (with x as (^delete from u) select 1)", Invalid, "DELETE is not allowed here"),
    ("insert into u values^", Invalid, "syntax error at end of input"),
    ("insert into u values (^)", Invalid, 'syntax error at or near ")"'),
    ("insert into u values (^*)", Invalid, 'syntax error at or near "*"'),
    ("insert into u values (1,^)", Invalid, 'syntax error at or near ")"'),
    ("update t set a = u.^*", Invalid, 'syntax error at or near "*"'),
    ("update t set a = ^count(*)", Invalid, "aggregate function count is not allowed here"),
    ("update t set a = ^row_number() over ()", Invalid, "window functions are not allowed here"),
    ("update t set a ^== 1", Invalid, 'syntax error at or near "="'),
    ("delete ^t", Invalid, 'syntax error at or near "t"'),
]


@pytest.mark.parametrize(("text", "kind", "message"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_what_cannot_be_run_is_refused_at_its_place(text: str, kind: type[MetaError], message: str) -> None:
    with pytest.raises(kind) as error:
        bind(text.replace("^", ""))
    assert isinstance(error.value, Invalid | NotFound)
    assert message in str(error.value)
    if message:
        assert error.value.position == text.index("^") + 1, str(error.value)
