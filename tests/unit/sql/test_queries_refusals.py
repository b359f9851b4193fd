"""A query that a view cannot maintain is refused in plain words, at its position, with what works instead."""

from collections.abc import Mapping
from typing import Final

import pytest

from service.domain.errors import Invalid, NotFound
from service.operations.offload import INLINE_STEPS
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.sql.queries.plan import plan_query
from service.sql.queries.planner import TooManySteps
from service.sql.text.tokens import tokenize
from service.sql.text.tree import Tree, parse_tree

T = Relation(
    id=RelationId(1),
    name="t",
    kind=RelationKind.TABLE,
    columns=(
        Column(name="id", type=ColumnType.parse("bigint"), nullable=False),
        Column(name="x", type=ColumnType.parse("integer")),
        Column(name="d", type=ColumnType.parse("date")),
        Column(name="s", type=ColumnType.parse("text")),
    ),
    key=(KeyColumn(name="id"),),
)
U = T.model_copy(update={"id": RelationId(2), "name": "u"})

REFUSED: Mapping[str, tuple[str, str]] = {
    # The marked part is where the error points.
    "select ^now() as n, id from t join u using (id)": ("now", "a view changes only when its tables do"),
    "select id from t join u using (id) where t.d < ^current_date": ("current_date", "depends on the time"),
    "select id from t join u using (id) where ^current_user = 'a'": ("current_user", "depends on the session"),
    "select ^random() as r from t, u": ("random", "store its value in a table"),
    "select ^age(t.d) as a from t, u": ("age", "use age with two arguments"),
    "select date ^'today' as a from t, u": ("'today'", "use a constant"),
    "select ^$$now$$::timestamp as a from t, u": ("'now'", "use a constant"),
    "select ^E'today'::date as a from t, u": ("'today'", "use a constant"),
    r"select ^E't\157day'::date as a from t, u": ("day'", "use a constant"),
    "select t.id from t, u where t.d > ^'now'": ("'now'", "use a constant"),
    "select ^unnest(array[1]) as a from t, u": ("unnest", "returns several rows"),
    "select ^pg_sleep(1) as a from t, u": ("pg_sleep", "is not supported in a view"),
    "select t.id from t, ^generate_series(1, 3) g": ("function", "a materialized view of their own"),
    "select t.id from t, lateral (select ^1 from u) q": ("LATERAL", "row_number"),
    "with recursive ^r as (select id from t) select id from r": ("WITH RECURSIVE", "is not supported"),
    "select id from t where (^x, s) not in (select x, s from u)": ("a row before NOT IN", "write NOT EXISTS"),
    "select id, ^x in (select x from u) as b from t": ("IN (subquery)", "use EXISTS"),
    "select id, (^x, id) in (select x, x from u) as b from t": ("a row before IN (subquery)", "write EXISTS"),
    "select id from t where (x, id) < (select ^max(x), max(id) from u)": ("a row that is compared", "IN or EXISTS"),
    "select id from t where (^x, id) > any (select x, id from u)": ("a row before ANY or ALL", "write EXISTS"),
    "select id, (^x, id) = any (select x, x from u) as b from t": ("a row before IN (subquery)", "write EXISTS"),
    "select ^t from t join u using (id)": ("whole row", "name its columns"),
    "select count(^t.*) from t": ("whole row", "name its columns"),
    "select id, (select ^x from u where u.s = t.s) as v from t": ("several rows", "use an aggregate of it"),
    "select id, (select ^count(*) from u where u.x < t.x) as v from t": ("equalities", "join, or as EXISTS"),
    "select id, last_value(x) over (order by x range 1 preceding) as v from t": ("last_value", "ROWS BETWEEN"),
    "select id, nth_value(x, 0) over (order by id rows 2 preceding) as v from t": ("nth_value", "whole number above 0"),
    "select id, ntile(x) over (order by id) as v from t": ("ntile", "whole number above 0"),
    "select id, sum(x) over (order by id rows -1 preceding) as v from t": ("a window begins", "not below 0"),
    "select s, max(x) from t group by rollup (s)": ("ROLLUP", "UNION ALL of GROUP BYs"),
    "select y, z, count(*) from (select x as y, x as z from t) q group by rollup (y, ^z)": (
        "two columns", "one of them"),
    "select id from t order by id limit (select ^3)": ("LIMIT", "take constants"),
    "select 1 as one union select 2": ("FROM is missing", "a materialized view of their own"),
    "select id from t union values (^1)": ("list of values", "a materialized view of their own"),
    "select ^id from t for update": ("FOR UPDATE", "is not supported"),
    "select id from ^t tablesample system (10) join u using (id)": ("TABLESAMPLE", "other rows each time"),
    "select id from t where x > any (select ^x from u) or x = 1": ("ANY", "write EXISTS"),
    "select id from t where exists (select ^1 from u where exists (select 1 from u v where v.x = t.x and v.s = u.s))": (
        "outermost", "is not supported"),
}  # fmt: skip


def _tree(text: str) -> Tree:
    return parse_tree(text, tokenize(text))


def _refusal(text: str, views: Mapping[str, Tree] | None = None) -> Invalid:
    with pytest.raises(Invalid) as caught:
        plan_query(_tree(text), {"t": T, "u": U}, views or {}, ["c"] * 9)
    return caught.value


@pytest.mark.parametrize("text", REFUSED)
def test_a_refusal_names_what_is_refused_and_what_works_instead(text: str) -> None:
    error = _refusal(text.replace("^", ""))
    for part in REFUSED[text]:
        assert part in str(error)
    assert error.position is not None
    if "^" in text:
        assert error.position == text.index("^") + 1


def test_an_error_in_a_logical_view_stands_where_the_view_is_named() -> None:
    text = "select v.id from t join v on v.id = t.id"
    error = _refusal(text, {"v": _tree("select id from t where d < now()")})
    assert str(error).startswith('view "v": now depends on the time')
    assert error.position == text.index("v on") + 1


def test_u11_a_logical_view_of_constants_has_the_way_out() -> None:
    error = _refusal("select id from t join v on v.a = t.id", {"v": _tree("values (1)")})
    assert str(error).startswith('view "v": VALUES is not supported here: rows of constants')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select id from t join gone using (id)", 'relation "gone" does not exist'),
        ("select t.gone from t, u", 'column "gone" does not exist'),
        ("select t.id from other.t, u", 'relation "other.t" does not exist'),
    ],
)
def test_an_unknown_name_is_not_found(text: str, message: str) -> None:
    with pytest.raises(NotFound, match=message):
        plan_query(_tree(text), {"t": T, "u": U}, {}, ["c"])


@pytest.mark.parametrize("depth", [3, 40])
def test_nested_queries_of_any_depth_end_in_a_plan_or_a_refusal(depth: int) -> None:
    text = "select id from t join u using (id)"
    for _ in range(depth):
        text = f"select id from ({text}) q where id > 0"
    (draft,) = plan_query(_tree(text), {"t": T, "u": U}, {}, ["id"])
    assert len(draft.joins[0].inputs) == 2


LEVELS: Final = {
    "values": "select x.id, x.x + x.x as x from {0} x",
    "values of derived tables": "select q.id, q.x || q.x as x from (select * from {0} x) q",
    "joins": "select x.id, x.x from {0} x, {0} y where x.id = y.id",
    "subqueries": "select x.id, (select max(y.x) from {0} y where y.id = x.id) as x from {0} x",
}
"""Queries over the level below, of which each takes more work than that."""


def _levels(name: str, number: int) -> str:
    parts = [f"c{at + 1} as ({LEVELS[name].format(f'c{at}' if at else 't')})" for at in range(number)]
    return f"with {', '.join(parts)} select id, x from c{number}"


@pytest.mark.parametrize("name", LEVELS)
def test_i13_a_short_text_that_takes_many_steps_is_given_up(name: str) -> None:
    """The service planned 18 levels of sums in its event loop, and stood still for 42 s."""
    relations = {"t": T, "u": U}
    plan_query(_tree(_levels(name, 2)), relations, {}, ["id", "x"], INLINE_STEPS)
    with pytest.raises((TooManySteps, Invalid)) as caught:
        plan_query(_tree(_levels(name, 14)), relations, {}, ["id", "x"], INLINE_STEPS)
    if isinstance(caught.value, Invalid):
        assert "more than" in str(caught.value)
        assert caught.value.position is not None


def test_i13_a_join_has_at_most_64_inputs_and_32_inner_ones() -> None:
    """Postgres needed more memory than a session may have to plan the changes of 64 inner ones."""

    def of(inner: int, outer: int) -> str:
        items = "".join(f", u u{at}" for at in range(1, inner))
        return f"select t.id from t{items}{''.join(f' left join u v{at} on true' for at in range(outer))}"

    (draft,) = plan_query(_tree(of(32, 32)), {"t": T, "u": U}, {}, ["id"])
    assert [len(join.inputs) for join in draft.joins] == [32, *[1] * 32]
    for beyond in (of(33, 0), of(32, 33), of(1, 64)):
        assert "joins more than 64 relations, or more than 32 by inner joins" in str(_refusal(beyond))
