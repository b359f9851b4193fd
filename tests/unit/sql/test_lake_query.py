"""A SELECT over a lake is divided: what Spark computes, and how Postgres orders and limits its rows."""

import pytest

from service.domain.errors import Invalid
from service.sql.statements.lake_query import OrderedBy, lake_query

DIVIDED = [
    ("select a from t", "select a from t", [], None, 0),
    ("select a from t limit 5 offset 2", "select a from t ", [], 5, 2),
    ("select a from t offset 2 rows limit all", "select a from t ", [], None, 2),
    ("select a, b from t order by b desc nulls last, 1", "select a, b from t ", ["2 desc nulls last", "1"], None, 0),
    # With both, the query is that of a view which has its first rows.
    ("select a from t order by a limit 3", "select a from t order by a limit 3", ["1"], None, 0),
    ('select "A b" from t order by "A b" asc', 'select "A b" from t ', ["1 asc"], None, 0),
    ("select a from (select a from t order by b limit 3) q", None, [], None, 0),
    ("select sum(a) over (order by a) as a from t limit 1", "select sum(a) over (order by a) as a from t ", [], 1, 0),
    ("select 'order by x' as a from t", None, [], None, 0),
    ("select a from t union select a from u order by a", "select a from t union select a from u ", ["1"], None, 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sql", "order", "limit", "offset"), DIVIDED)
def test_a_query_is_divided(text: str, sql: str | None, order: list[str], limit: int | None, offset: int) -> None:
    found = lake_query(text)
    names = ["A b"] if "A b" in text else ["a", "b"]
    assert found.sql == (text if sql is None else sql)
    assert [f"{term.place(names)}{term.direction}" for term in found.order] == order
    assert (found.limit, found.offset, found.any_rows) == (limit, offset, not order)


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("select a from t order by a + 1", 26, "names or numbers"),
        ("select a from t order by lower(a)", 26, "names or numbers"),
        ("select a from t limit -1", 23, "must not be negative"),
        ("select a from t limit 1 + 1", 25, "syntax error"),
        ("select a from t for update", 17, "syntax error"),
        ("select a from t fetch first 3 rows only", 17, "syntax error"),
        ("select a from t order by", 25, "syntax error"),
    ],
)
def test_what_is_refused_has_its_place(text: str, position: int, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refused:
        lake_query(text)
    assert refused.value.position == position


@pytest.mark.parametrize(("column", "why"), [(3, "position 3 is not in select list"), ("c", "a column of the result")])
def test_an_order_by_what_is_not_there_is_refused(column: str | int, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        OrderedBy(column, "", 1).place(["a", "b"])
