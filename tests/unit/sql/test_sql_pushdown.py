"""Which queries the state store answers itself. The parity tests compare what both sides make of such conditions."""

import pytest

from tests.unit.sql.test_sql_views import bound

PUSHED = {
    "a > 1": '("a" > 1)',
    "1 <= a": '(1 <= "a")',
    "a = id": '("a" = "id")',
    "n >= 1.5": None,  # a literal with a point is numeric, whose type in a comparison is Spark's to say
    "n >= 2": '("n" >= 2)',
    "b = 'it''s'": "(\"b\" = 'it''s'::text)",
    "'x' < b": "('x'::text < \"b\")",
    '"Q q" <> b': '("Q q" <> "b")',
    "ok": '"ok"',
    "not ok or a is null": '((not "ok") or ("a" is null))',
    "(a is not null) and (b = 'x')": '((not ("a" is null)) and ("b" = \'x\'::text))',
    "id = '7'": None,
    "d = 1": None,
    "d > d": None,
    "ts > '2024-01-01'": None,
    "a + 1 > 2": None,
    "upper(b) = 'X'": None,
    "b like 'x%'": None,
    "a > 1 and b like 'x%'": None,
    "u = u": None,
    "a > -1": None,
    "a in (1, 2)": None,
    "ok is true": None,
}


@pytest.mark.parametrize(("condition", "pushed"), PUSHED.items())
def test_a_condition_is_pushed_down_where_both_engines_must_agree(condition: str, pushed: str | None) -> None:
    query = bound(f"select b, id from t where {condition}").scans[0].query
    assert query.predicate is not None
    assert (None if query.pushdown is None else query.pushdown.predicate) == pushed


def test_columns_are_pushed_down_with_the_hidden_key() -> None:
    query = bound("select b as x, b as y from t").scans[0].query
    assert query.pushdown is not None
    assert (query.pushdown.columns, query.pushdown.predicate) == (("b", "b", "k", "id"), None)


@pytest.mark.parametrize("output", ["a + 1", "upper(b)", "1", "a::bigint", "coalesce(a, 1)"])
def test_a_computed_column_is_not_pushed_down(output: str) -> None:
    assert bound(f"select {output} as x, b from t").scans[0].query.pushdown is None
