"""Define which values a stored table cannot keep, because Spark cannot represent them exactly.

A followed table either refuses such a value, or stores NULL for it and counts it. One expression does the latter, in
the external server for rows of history, and in the state store for rows of the log.
"""

from typing import Final

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import RelationId

_BOUNDS: Final = {
    TypeName.DATE: (("<=", "date '0001-01-01'"), (">=", "date '9999-12-31'")),
    TypeName.TIMESTAMP: (("<=", "timestamp '0001-01-01'"), (">", "timestamp '10000-01-01'")),
    TypeName.TIMESTAMPTZ: (
        ("<=", "timestamptz '0001-01-01 00:00:00+00'"),
        (">", "timestamptz '10000-01-01 00:00:00+00'"),
    ),
    TypeName.NUMERIC: (("<>", "numeric 'NaN'"),),
}
_FINITE: Final = (("<", "numeric '-Infinity'"), (">", "numeric 'Infinity'"))


def bounds_of(kind: ColumnType) -> tuple[tuple[str, str], ...]:
    """Return operators and bounds of a type's values, for conditions `bound <operator> value`.

    For an array a condition is `bound <operator> all (array)`. A numeric with a precision is never infinite.
    """
    return (*_BOUNDS.get(kind.name, ()), *(_FINITE if kind.unbounded else ()))


def nulled_counter(relation: RelationId) -> str:
    """Return the setting in which a transaction counts the values of a relation that it has replaced by NULL."""
    return f"tidefill.nulled_{relation}"


def nulled_query(relation: RelationId) -> str:
    """Return the query for the number of values that this transaction has replaced by NULL."""
    return f"select {_count(nulled_counter(relation))}"


def or_null_postgres(value: str, stored: str, kind: ColumnType, relation: RelationId) -> str:
    """Return the expression for a stored value, or for NULL, counted, where the value cannot be kept.

    `value` is the value before it gets its type, and `stored` the expression with that type.
    """
    numeric = kind.name is TypeName.NUMERIC
    # A number is examined before it gets a precision, which infinity does not have.
    whole = "numeric[]" if kind.array else "numeric"
    raw = f"({value})::{whole if numeric else kind}"
    bounds = (*_BOUNDS.get(kind.name, ()), *(_FINITE if numeric else ()))
    conditions = [f"{bound} {operator} {f'all ({raw})' if kind.array else raw}" for operator, bound in bounds]
    if kind.array:
        conditions.append(f"coalesce(array_ndims({raw}) = 1 and array_lower({raw}, 1) = 1, true)")
    if not conditions:
        return stored
    counter = nulled_counter(relation)
    # `set_config` returns no NULL, so the second branch only counts. NULL itself satisfies every condition.
    counted = f"set_config('{counter}', ({_count(counter)} + 1)::text, true) is null"
    return f"case when ({' and '.join(conditions)}) is not false then {stored} when {counted} then {stored} end"


def _count(counter: str) -> str:
    return f"coalesce(nullif(current_setting('{counter}', true), ''), '0')::bigint"
