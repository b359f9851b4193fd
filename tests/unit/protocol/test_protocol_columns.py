"""Types are read as Postgres spells them, or refused with a reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.protocol.columns import ALIASES, NUMERIC_PRECISION_MAX, Column, ColumnType, TypeName


@st.composite
def column_types(draw: st.DrawFn) -> ColumnType:
    name, array = draw(st.sampled_from(TypeName)), draw(st.booleans())
    if name is not TypeName.NUMERIC:
        return ColumnType(name, array=array)
    if draw(st.booleans()):
        return ColumnType(name, array=array)
    precision = draw(st.integers(1, NUMERIC_PRECISION_MAX))
    return ColumnType(name, precision, draw(st.integers(0, precision)), array)


@settings(derandomize=True)
@given(column_types())
def test_what_is_printed_is_read_back(kind: ColumnType) -> None:
    assert ColumnType.parse(str(kind)) == kind
    column = Column(name="c", type=kind)
    assert Column.model_validate_json(column.model_dump_json()) == column
    assert kind.native is (not kind.array and kind.name in NATIVE)
    if kind.array:
        assert ColumnType.parse(f"{kind.element}[]") == kind
        assert kind.spark == f"array<{kind.element.spark}>"
        assert kind.why_not_a_key == "arrays cannot be keys"


NATIVE = {
    TypeName(name)
    for name in (
        "boolean", "smallint", "integer", "bigint", "real", "double precision", "text", "bytea", "date", "timestamp",
        "timestamptz",
    )
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *ALIASES.items(),
        (" BigInt ", "bigint"),
        ("Double Precision", "double precision"),
        ("timestamp with time zone", "timestamptz"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert ColumnType.parse(text).name == name


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("numeric(10)", "numeric(10,0)"),
        ("decimal( 38 , 38 )", "numeric(38,38)"),
        ("int []", "integer[]"),
        ("numeric(1,1)[]", "numeric(1,1)[]"),
        ("varchar[]", "text[]"),
        ("decimal", "numeric"),
        ("numeric []", "numeric[]"),
    ],
)
def test_normal_spelling(text: str, printed: str) -> None:
    assert str(ColumnType.parse(text)) == printed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not supported"),
        ("money", "is not supported"),
        ("bigint; drop table t", "is not supported"),
        ("int[][]", "arrays have one dimension"),
        ("int[3]", "is not supported"),
        ("varchar(10)", "use text without a length"),
        ("timestamp(3)", "use timestamp without a length or precision"),
        ("bigint(1)", "use bigint"),
        ("numeric(0)", "precision is 1 to 38"),
        ("numeric(39)", "precision is 1 to 38"),
        ("numeric(3,4)", "scale 0 to precision"),
        ("numeric(3,-1)", "scale 0 to precision"),
    ],
)
def test_refusals(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="type ") as refused:
        ColumnType.parse(text)
    assert why in str(refused.value)
    assert f'"{text}"' in str(refused.value)


@pytest.mark.parametrize("text", ["numeric", "decimal", "numeric[]"])
def test_a_user_declares_a_numeric_with_a_precision(text: str) -> None:
    with pytest.raises(ValueError, match="needs a precision"):
        ColumnType.declared(text)
    assert ColumnType.declared(text.replace("[]", "") + "(9,2)").precision == 9


def test_a_numeric_without_a_precision_is_text_in_spark() -> None:
    kind = ColumnType.parse("numeric")
    assert (kind.unbounded, kind.native, kind.spark, kind.why_not_a_key) == (True, False, "string", None)
    assert ColumnType.parse("numeric[]").spark == "array<string>"
    assert not ColumnType.parse("numeric(9)").unbounded


@settings(max_examples=300, derandomize=True)
@given(st.text(max_size=40) | st.from_regex(r"[a-z]{1,9}( ?\([0-9]{1,3}(,[0-9]{1,3})?\))?(\[\])?", fullmatch=True))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        kind = ColumnType.parse(text)
    except ValueError:
        return
    assert ColumnType.parse(str(kind)) == kind


@pytest.mark.parametrize(
    ("name", "precision", "scale"),
    [(TypeName.NUMERIC, None, 5), (TypeName.NUMERIC, 5, None), (TypeName.BIGINT, 5, 0), (TypeName.NUMERIC, 39, 0)],
)
def test_a_type_that_cannot_be(name: TypeName, precision: int | None, scale: int | None) -> None:
    with pytest.raises((AssertionError, ValueError)):
        ColumnType(name, precision, scale)


def test_keys_that_spark_would_order_otherwise_are_refused() -> None:
    refused = {name for name in TypeName if ColumnType(*_minimal(name)).why_not_a_key}
    assert refused == {TypeName.JSONB, TypeName.INTERVAL}


def _minimal(name: TypeName) -> tuple[TypeName, int | None, int | None]:
    return (name, 1, 0) if name is TypeName.NUMERIC else (name, None, None)
