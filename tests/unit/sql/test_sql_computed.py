"""Functions that the state store computes, because Spark's last digit differs (I12), and the arguments they take."""

import pytest

from service.domain.errors import Invalid
from service.protocol.plan import Stateless
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.views.bind import bind_view

CREATED = parse(
    "create table t (id bigint primary key, i int, b bigint, d double precision, r real, n numeric(12,2), x text,"
    ' "a{0}" double precision)'
)
assert isinstance(CREATED, CreateTable)
RELATIONS = {"t": table_relation(CREATED)}


def view(text: str) -> CreateMaterializedView:
    statement = parse(f"create materialized view m as {text}")
    assert isinstance(statement, CreateMaterializedView)
    return statement


LOGICAL = {"v": view("select id, exp(d) as e, i + 1 as next from t where ln(d) > 1").query}


def query(text: str) -> Stateless:
    return bind_view(view(text), RELATIONS, LOGICAL).scans[0].query


FUNCTIONS = (
    "cbrt(d)",
    "exp(d)",
    "ln(d)",
    "log(d)",
    "log10(d)",
    "power(d, 2)",
    "pow(d, d)",
    "d ^ 2",
    "cbrt(n)",
    "2 ^ 3",
)


@pytest.mark.parametrize("text", [*FUNCTIONS, *(one.replace("d", "r") for one in FUNCTIONS[:4])])
def test_a_function_whose_last_digit_differs_is_computed_by_the_store(text: str) -> None:
    made = query(f"select id, {text} as c from t where {text} > 1")
    assert [one.name for one in made.computed] == ["_tidefill_computed_0"], "one column serves both places"
    assert made.predicate is not None
    for spark in (made.projection[1], made.predicate):
        assert "`_tidefill_computed_0`" in spark
        assert not any(f"{name}(" in spark for name in ("cbrt", "exp", "ln", "log10", "power"))
    assert made.pushdown is None


def test_what_the_store_computes_never_fails() -> None:
    (computed,) = query("select id, ln(d) as c from t").computed
    assert computed.expression == '(case when "d" > 0 then ln("d") end)'
    (computed,) = query("select id, ln(b * 2) as c from t").computed
    assert '("b")::numeric * (2)::numeric' in computed.expression, "a product of bigints would overflow"


@pytest.mark.parametrize(
    "argument",
    [
        *(
            "d",
            "-d",
            "+d",
            "(d)",
            "r",
            "n",
            "b",
            "1.5",
            "'2.5'",
            "null",
            "d::double precision",
            "i::real",
            "-3",
            "abs(d)",
        ),
        *("d + 1", "d * n - r", "d / i", "i / 2 + b % 7", "n * n", "sqrt(d)", "floor(d)", "round(n)", "sign(d)"),
        *("coalesce(d, 0)", "greatest(i, n)", "ln(exp(d))", "power(d, i) + 1", '"a{0}"', "-2147483648"),
    ],
)
def test_an_argument_that_the_store_can_compute(argument: str) -> None:
    made = query(f"select id, exp({argument}) as c from t")
    assert all("{" not in one.expression.replace('"a{0}"', "") for one in made.computed)
    assert made.computed


@pytest.mark.parametrize(
    "argument",
    [
        *(
            "case when d > 0 then d end",
            "x::double precision",
            "length(x)",
            "r + r",
            "d::real",
            "i & 3",
            "nullif(d, 1)",
        ),
        *("n::numeric(5,1)", "d::integer", "'1e400'", "'1e-400'", "exp(exp(exp(exp(exp(exp(d + d))))))"),
    ],
)
def test_another_argument_is_refused_with_the_reason(argument: str) -> None:
    with pytest.raises(Invalid, match="make the argument a column of a view") as refusal:
        query(f"select id, cbrt({argument}) as c from t")
    assert refusal.value.position is not None


def test_through_a_logical_view_the_store_computes_over_stored_columns() -> None:
    made = query("select id, ln(e) as c, exp(next) as f from v where e < 9")
    texts = [one.expression for one in made.computed]
    assert len(texts) == 4
    assert all('"e"' not in text and '"next"' not in text for text in texts)
    assert any("ln((case" in text and 'exp("d")' in text for text in texts)
