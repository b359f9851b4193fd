"""A logical view in the query of a materialized one: what its names stand for, its conditions, its union."""

from collections.abc import Mapping

import pytest

from service.domain.errors import Invalid, MetaError, NotFound
from service.protocol.ids import RelationId
from service.sql.queries.drafts import Draft
from service.sql.queries.plan import plan_query
from service.sql.text.tree import Tree
from tests.support.expressions import HEAD, bound, query_of, table

RELATIONS = {
    "t": table("create table t (id bigint primary key, a int, b text, n numeric(12,2))"),
    "u": table("create table u (k text primary key, big bigint, s smallint)").model_copy(update={"id": RelationId(1)}),
}
VIEWS: Mapping[str, Tree] = {
    name: query_of(query)
    for name, query in {
        "plain": "select * from t",
        "named": "select id as key, a * 2 as twice, b, 'live' as origin, null as nil from t where a > 3 and b <> ''",
        "nested": "select key, twice + 1 as more from named as n where n.twice < 100",
        "united": "select id, a from t where a > 0 union all select big, s from u",
        "gone": "select * from dropped",
        "uneven": "select a from t union all select k, s from u",
    }.items()
}


def planned(query: str, names: str, views: Mapping[str, Tree] = VIEWS) -> tuple[Draft, ...]:
    return plan_query(query_of(query), RELATIONS, views, names.split())


@pytest.mark.parametrize(
    ("through", "directly", "names"),
    [
        ("select * from plain", "select * from t", "id a b n"),
        ("select v.a, id from plain v where v.b = 'x'", "select a, id from t where b = 'x'", "a id"),
        ("select public.plain.a, plain.id from public.plain", "select a, id from t", "a id"),
        ("select twice, key from named", "select a * 2 as twice, id as key from t where a > 3 and b <> ''", "t key"),
        ("select origin, key from named", "select 'live' as o, id as key from t where a > 3 and b <> ''", "o key"),
        (
            "select key from named union all select id from t",
            "select id as key from t where a > 3 and b <> '' union all select id from t",
            "key",
        ),
    ],
)
def test_it_is_what_its_query_says(through: str, directly: str, names: str) -> None:
    """The same stages, key and names."""
    one, other = ([(draft, draft.places.clear())[0] for draft in planned(text, names)] for text in (through, directly))
    assert one == other


def test_conditions_of_all_levels_hold_together() -> None:
    made = bound(query_of("select more - 1 as x, key from nested where key <> 7"), RELATIONS["t"], VIEWS)
    assert made.texts == ("(((`a` * 2) + 1) - 1)", "`id`")
    assert made.conditions == ("(`a` > 3)", "(`b` <> '')", "((`a` * 2) < 100)", "(`id` <> 7)")


def test_a_column_of_a_union_has_one_type_where_it_is_computed_with() -> None:
    one, other = planned("select id, a * 2 as x from united where a > 5", "id x")
    assert [value.sql for value in one.rows[:2]] == ['"i0"."id"', '("i0"."a" * 2)']
    assert [each.sql for each in one.joins[0].on] == ['("i0"."a" > 0)', '("i0"."a" > 5)']
    assert [value.sql for value in other.rows[:2]] == ['"i1"."big"', '(CAST("i1"."s" AS INT) * 2)']
    assert [each.sql for each in other.joins[0].on] == ['(CAST("i1"."s" AS INT) > 5)']


def test_an_untyped_literal_of_a_view_is_text() -> None:
    texts = bound(query_of("select origin || '!' as x, nil, key from named"), RELATIONS["t"], VIEWS).texts
    assert texts == ("concat('live', '!')", "cast(NULL as string)", "`id`")


def test_every_branch_takes_its_turn() -> None:
    drafts = planned("select id from united union all select id from united where a = 1", "id")
    assert [draft.joins[0].inputs[0].relation for draft in drafts] == [0, 1, 0, 1]
    assert [draft.rows[1].sql for draft in drafts] == [f"CAST({number} AS SMALLINT)" for number in range(4)]
    assert {tuple(part.name for part in draft.key) for draft in drafts} == {("_key_branch", "_key_0", "_key_1")}


@pytest.mark.parametrize(
    ("query", "kind", "message"),
    [
        ("select * from ^gone", Invalid, 'view "gone": relation "dropped" does not exist'),
        ("select * from ^uneven", Invalid, 'view "uneven": each UNION query must have the same number of columns'),
        ("select ^a from named", NotFound, 'column "a" does not exist'),
        ("select ^t.key from named", NotFound, 'column "key" does not exist'),
        ("select * from ^other", NotFound, 'relation "other" does not exist'),
    ],
)
def test_what_is_refused_is_refused_at_its_place_in_the_statement(
    query: str, kind: type[MetaError], message: str
) -> None:
    """A view that cannot be maintained is named, at the place where it is read."""
    with pytest.raises(kind) as refused:
        planned(query.replace("^", ""), "a")
    assert str(refused.value) == message
    assert getattr(refused.value, "position", None) == len(HEAD) + query.index("^") + 1


def test_views_that_double_each_other_are_refused_before_they_fill_the_memory() -> None:
    views = {"v0": query_of("select id from t")}
    for level in range(1, 40):
        if level == 7:
            assert len(planned("select id from v6", "id", views)) == 64
        views[f"v{level}"] = query_of(f"select id from v{level - 1} union all select id from v{level - 1}")
    with pytest.raises(Invalid, match="the view has more than 64 SELECTs in one UNION ALL"):
        planned("select id from v39", "id", views)
