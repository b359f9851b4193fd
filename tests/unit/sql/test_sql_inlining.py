"""A logical view in the query of a materialized one: what its names stand for, its conditions, its union."""

from collections.abc import Mapping

import pytest

from service.domain.errors import Invalid, MetaError, NotFound
from service.protocol.relation import Relation
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.text.tree import Tree
from service.sql.views.bind import BoundView, bind_view

HEAD = "create materialized view m as "


def table(text: str) -> Relation:
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return table_relation(statement)


def tree(query: str) -> Tree:
    statement = parse(HEAD + query)
    assert isinstance(statement, CreateMaterializedView)
    return statement.query


RELATIONS = {
    "t": table("create table t (id bigint primary key, a int, b text, n numeric(12,2))"),
    "u": table("create table u (k text primary key, big bigint, s smallint)"),
}
VIEWS: Mapping[str, Tree] = {
    name: tree(query)
    for name, query in {
        "plain": "select * from t",
        "named": "select id as key, a * 2 as twice, b, 'live' as origin, null as nil from t where a > 3 and b <> ''",
        "nested": "select key, twice + 1 as more from named as n where n.twice < 100",
        "united": "select id, a from t where a > 0 union all select big, s from u",
        "counted": "select a, count(*) as c from t group by a",
        "wrong": "select a + b as x from t",
        "gone": "select * from dropped",
        "twice": "select a, a from t",
        "uneven": "select a from t union all select k, s from u",
    }.items()
}


def bound(query: str, views: Mapping[str, Tree] = VIEWS) -> BoundView:
    statement = parse(HEAD + query)
    assert isinstance(statement, CreateMaterializedView)
    return bind_view(statement, RELATIONS, views)


@pytest.mark.parametrize(
    ("through", "directly"),
    [
        ("select * from plain", "select * from t"),
        ("select v.a, id from plain v where v.b = 'x'", "select a, id from t where b = 'x'"),
        ("select public.plain.a, plain.id from public.plain", "select a, id from t"),
        ("select twice, key from named", "select a * 2 as twice, id as key from t where a > 3 and b <> ''"),
        ("select origin, key from named", "select 'live' as origin, id as key from t where a > 3 and b <> ''"),
        (
            "select key from named union all select id from t",
            "select id as key from t where a > 3 and b <> '' union all select id from t",
        ),
    ],
)
def test_it_is_what_its_query_says(through: str, directly: str) -> None:
    """The same scans, key and names; also what the store copies by itself."""
    one, other = bound(through), bound(directly)
    assert [scan.query for scan in one.scans] == [scan.query for scan in other.scans]
    assert (one.names, one.key, one.hidden) == (other.names, other.key, other.hidden)
    assert [scan.upstream.name for scan in one.scans] == [scan.upstream.name for scan in other.scans]


def test_conditions_of_all_levels_hold_together() -> None:
    (scan,) = bound("select more - 1 as x, key from nested where key <> 7").scans
    assert scan.query.projection == ("(((`a` * 2) + 1) - 1)", "`id`")
    assert scan.query.predicate == "(((`a` > 3) and (`b` <> '')) and ((`a` * 2) < 100) and (`id` <> 7))"
    assert scan.query.pushdown is None


def test_what_the_store_can_answer_goes_down_through_views() -> None:
    views = {**VIEWS, "few": tree("select id as key, b as label from t where a > 3")}
    (scan,) = bound("select label, key from few where label = 'x'", views).scans
    assert scan.query.pushdown is not None
    assert scan.query.pushdown.columns == ("b", "id")
    assert scan.query.pushdown.predicate == """(("a" > 3) and ("b" = 'x'::text))"""
    (computed,) = bound("select twice, key from named").scans
    assert computed.query.pushdown is None


def test_a_union_has_one_type_for_a_column() -> None:
    one, other = bound("select id, a * 2 as x from united where a > 5").scans
    assert one.query.projection[:2] == ("`id`", "(`a` * 2)")
    assert one.query.predicate == "((`a` > 0) and (`a` > 5))"
    assert other.query.projection[:2] == ("`big`", "(cast(`s` as int) * 2)")
    assert other.query.predicate == "(cast(`s` as int) > 5)"


def test_an_untyped_literal_of_a_view_is_text() -> None:
    assert bound("select origin || '!' as x, nil, key from named").scans[0].query.projection[:2] == (
        "concat('live', '!')",
        "cast(NULL as string)",
    )
    with pytest.raises(Invalid, match="text"):
        bound("select origin + 1 as x, key from named")


def test_every_branch_takes_its_turn() -> None:
    scans = bound("select id from united union all select id from united where a = 1").scans
    assert [scan.upstream.name for scan in scans] == ["t", "u", "t", "u"]
    branches = [scan.query.projection[1] for scan in scans]
    assert branches == [f"cast({number} as smallint)" for number in range(4)]


@pytest.mark.parametrize(
    ("query", "kind", "message"),
    [
        ("select a from ^counted", Invalid, 'view "counted": GROUP BY is not supported in a view'),
        ("select x from ^wrong", Invalid, 'view "wrong": operator does not exist: integer + text'),
        ("select * from ^gone", Invalid, 'view "gone": relation "dropped" does not exist'),
        ("select * from ^twice", Invalid, 'view "twice": column "a" specified more than once'),
        ("select * from ^uneven", Invalid, 'view "uneven": each UNION query must have the same number of columns'),
        ("select ^a from named", NotFound, 'column "a" does not exist'),
        ("select ^t.key from named", NotFound, 'missing FROM-clause entry for table "t"'),
        ("select key + ^b as x from named", Invalid, "operator does not exist: bigint + text"),
        ("select * from ^other", NotFound, 'relation "other" does not exist'),
    ],
)
def test_what_is_refused_is_refused_at_its_place_in_the_statement(
    query: str, kind: type[MetaError], message: str
) -> None:
    """A view that cannot be maintained is named, at the place where it is read."""
    place = query.index("^")
    with pytest.raises(kind) as refused:
        bound(query.replace("^", ""))
    assert str(refused.value) == message
    assert getattr(refused.value, "position", None) in {len(HEAD) + place + 1, len(HEAD) + query.index(" ") + 2}


def test_views_that_double_each_other_are_refused_before_they_fill_the_memory() -> None:
    views = {"v0": tree("select id from t")}
    for level in range(1, 40):
        views[f"v{level}"] = tree(f"select id from v{level - 1} union all select id from v{level - 1}")
    with pytest.raises(Invalid, match="the view has more than 64 scans, one for each SELECT"):
        bound("select id from v39", views)


def test_an_order_is_between_what_is_really_read() -> None:
    statement = parse("create materialized view m with (backfill_order = FIXED(u -> t)) as select id from united")
    assert isinstance(statement, CreateMaterializedView)
    assert bind_view(statement, RELATIONS, VIEWS).order == (("u", "t"),)
    statement = parse("create materialized view m with (backfill_order = FIXED(united -> t)) as select id from united")
    assert isinstance(statement, CreateMaterializedView)
    with pytest.raises(Invalid, match="Table or source 'united' specified in backfill_order is not used in the query"):
        bind_view(statement, RELATIONS, VIEWS)
