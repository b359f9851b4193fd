"""Views that read no relation: which queries are constants, and which values a table would not keep."""

import pytest

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType
from service.sql.queries.constant import is_constant, is_kept
from service.sql.text.tokens import tokenize
from service.sql.text.tree import parse_tree


@pytest.mark.parametrize(
    "query",
    [
        "select 1",
        "values (1, 'x'), (2, 'y')",
        "select a from (values (1)) as t (a)",
        "with x as (select 1 as a) select a, count(*) from x group by a",
        "select g from generate_series(1, 3) g union all select 1 order by 1 limit 2",
        "select date '2026-01-01' + interval '1 day', 'now'::text",
    ],
)
def test_u11_a_query_that_reads_no_relation_is_a_constant(query: str) -> None:
    assert is_constant(parse_tree(query, tokenize(query)))


@pytest.mark.parametrize(
    "query", ["select a from t", "select 1 from rw_catalog.rw_relations", "select (select a from t)"]
)
def test_u11_a_query_that_reads_a_relation_is_none(query: str) -> None:
    assert not is_constant(parse_tree(query, tokenize(query)))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select ^now()", "depends on the time"),
        ("select ^current_date", "depends on the time"),
        ("select ^'today'::date", "changes with the clock"),
        ("select ^random()", "another value at each call"),
        ("select ^current_user", "depends on the session"),
        ("select ^pg_backend_pid()", "is not allowed here"),
        ("select * from ^pg_ls_dir('.')", "is not allowed here"),
        ("values (^clock_timestamp())", "depends on the time"),
    ],
)
def test_u11_a_constant_is_the_same_at_each_call(query: str, said: str) -> None:
    text = query.replace("^", "")
    with pytest.raises(Invalid) as caught:
        is_constant(parse_tree(text, tokenize(text)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "kept"),
    [
        ("date", "2026-01-01", True),
        ("date", "infinity", False),
        ("date", "0044-03-15 BC", False),
        ("timestamp", "10000-01-01 00:00:00", False),
        ("timestamptz", "9999-12-31 23:59:59+00", True),
        ("numeric", "NaN", False),
        ("numeric", "-Infinity", False),
        ("numeric[]", "{1.5,NaN}", False),
        ("numeric[]", "{1.5,NULL}", True),
        ("double precision", "NaN", True),
        ("integer[]", "[0:1]={1,2}", False),
        ("integer[]", "{{1},{2}}", False),
        ("date[]", "{}", True),
        ("date[]", "{2026-01-01,NULL}", True),
        ("timestamp[]", '{"2026-01-01 00:00:00","0044-03-15 00:00:00 BC"}', False),
        ("text", "infinity BC", True),
    ],
)
def test_u11_a_constant_keeps_what_a_table_keeps(kind: str, text: str, kept: bool) -> None:
    assert is_kept(ColumnType.parse(kind), text) is kept
