import pytest

from service.domain.errors import Invalid
from service.sql.parse import parse
from service.sql.statements.select import Select


def selected(text: str) -> Select:
    statement = parse(text)
    assert isinstance(statement, Select)
    return statement


@pytest.mark.parametrize(
    ("text", "relations"),
    [
        ("select 1", []),
        ("select * from t", ["t"]),
        ('select * from public."T u" as x join b on true', ["T u", "b"]),
        ("with c as (select * from a) select * from c, b", ["a", "b"]),
        ("select (select max(x) from a) from b union select 1 from c", ["b", "a", "c"]),
        ("select * from rw_catalog.rw_tables", []),
        ("select * from information_schema.columns, pg_catalog.pg_class", []),
        ("select * from generate_series(1, 3) g, lateral (select * from a) x", ["a"]),
        ("(select 1 from a) intersect (select 2 from b)", ["a", "b"]),
        ("table t", ["t"]),
    ],
)
def test_the_relations_that_a_query_names(text: str, relations: list[str]) -> None:
    assert sorted(selected(text).relations) == sorted(relations)


@pytest.mark.parametrize(
    "text",
    [
        "select 'a;b', \"c;d\", $x$ ; $x$, e'\\';' -- ;\n /* ; /* ; */ */",
        "select $$pg_sleep(1)$$, 'for update', \"pg_sleep\", 'select into'",
        "select * from t where a @@@ b",
        "select * from xmltable('x' passing y columns z int path 'q') as w",
        "select count(*) filter (where a) over (partition by b rows between 1 preceding and current row) from t",
        "select x.into, substring(a for 2), pg_sleep from t as x",
        "select a as into from t",
        "select $body$pg_notify('a')$body$",
    ],
)
def test_a_query_is_handed_on_as_it_is(text: str) -> None:
    assert selected(text).sql == text.partition(" -- ;\n")[0]


DENIED = [
    "pg_advisory_lock",
    "pg_advisory_xact_lock_shared",
    "pg_try_advisory_lock",
    "pg_notify",
    "set_config",
    "pg_sleep",
    "pg_sleep_for",
    "lo_import",
    "lo_export",
    "loread",
    "dblink",
    "dblink_exec",
    "pg_read_file",
    "pg_read_binary_file",
    "pg_ls_dir",
    "pg_stat_file",
    "query_to_xml",
    "query_to_xml_and_xmlschema",
    "table_to_xml",
    "cursor_to_xml",
    "database_to_xml",
    "schema_to_xml",
    "pg_cancel_backend",
    "pg_terminate_backend",
    "pg_reload_conf",
    "txid_current",
    "pg_current_xact_id",
    "nextval",
    "setval",
    "currval",
    "lastval",
    "pg_export_snapshot",
    "pg_logical_slot_get_changes",
    "ts_stat",
    "pg_stat_get_activity",
    "pg_stat_get_backend_activity",
    "pg_stat_get_progress_info",
    "pg_cursor",
    "pg_prepared_statement",
    "pg_lock_status",
    "pg_blocking_pids",
]


@pytest.mark.parametrize("name", DENIED)
@pytest.mark.parametrize(
    "query",
    [
        "select ^{}(1)",
        "select * from ^{}('a') x",
        'select pg_catalog."^{}" /* x */ (1)',
        "select 1 where 1 = ^{} -- y\n(1)",
        "select @@@ ^{}(1)",
        "update t set a = ^{}(1)",
        "delete from t where ^{}(1) is null",
        "insert into t values (^{}(1))",
        "insert into t select ^{}(1)",
        "explain select ^{}(1)",
    ],
)
def test_a_function_that_acts_is_refused(name: str, query: str) -> None:
    quoted = '"^{}"' in query
    text = query.replace("^", "").format(name if quoted else name.upper())
    with pytest.raises(Invalid) as error:
        parse(text)
    assert str(error.value) == f"function {name} is not allowed here"
    assert error.value.position == query.index("^") + 1 - quoted


@pytest.mark.parametrize("name", ["pg_stat_get_activity", "ts_stat", "pg_sleep", "pg_read_file", "lo_unlink"])
@pytest.mark.parametrize("query", ["select (null::int4).{}", "select ('select 1'::text) . {}", 'select t."{}" from t'])
def test_a_function_that_acts_is_refused_where_it_looks_like_a_column(name: str, query: str) -> None:
    """So one read what the sessions of others ran, and another ran any text as a query."""
    with pytest.raises(Invalid, match=f"function {name} is not allowed here"):
        parse(query.format(name))


def test_columns_may_be_named_like_such_functions() -> None:
    parse("select l.lo_revenue, l.nextval, l.current_setting from lineorder l")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select a ^into b from t", "SELECT INTO is not allowed here"),
        ("select * from t ^for update", "FOR UPDATE is not allowed here"),
        ("select * from t ^for no key update of t", "FOR NO is not allowed here"),
        ("select * from t ^for share", "FOR SHARE is not allowed here"),
        ("with x as (^delete from t returning *) select * from x", "DELETE is not allowed here"),
        ("with x as (^update t set a = 1 returning *) select * from x", "UPDATE is not allowed here"),
        ("with x as (insert ^into t values (1) returning *) select 1", "INSERT is not allowed here"),
        ("with y as (select 1), x as (with z as (select 1) ^delete from t) select 1", "DELETE is not allowed here"),
        ("with x as (select 1) ^delete from t", "DELETE is not allowed here"),
        ("select ^$1", "there is no parameter $1"),
        ("select * from ^state.t_1", 'schema "state" does not exist'),
        ("select * from a, (select * from ^live.t) x", 'schema "live" does not exist'),
    ],
)
def test_a_query_that_does_more_than_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(text.replace("^", ""))
    assert (str(error.value), error.value.position) == (message, text.index("^") + 1)


@pytest.mark.parametrize(
    "view", ["pg_stat_activity", "pg_cursors", "pg_prepared_statements", "pg_locks", "pg_stat_ssl"]
)
@pytest.mark.parametrize(
    "query",
    [
        "select query from ^{}",
        "select query from pg_catalog.^{} a",
        'select query from pg_catalog . "^{}"',
        "table ^{}",
        "with a as (select * from ^{}) select * from a",
        "select * from t where a @@@ (table ^{})",
        "insert into t select pid from ^{}",
        "create view v as select query from ^{}",
    ],
)
def test_n6_a_view_of_other_callers_sessions_is_refused(view: str, query: str) -> None:
    quoted = '"^{}"' in query
    with pytest.raises(Invalid) as error:
        parse(query.replace("^", "").format(view if quoted else view.upper()))
    assert str(error.value) == f"view {view} is not allowed here: it shows other sessions"
    assert error.value.position == query.index("^") + 1 - quoted
    assert selected(f"select '{view}', activity.pg_stat from activity").relations == ("activity",)
