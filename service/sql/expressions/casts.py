"""Print Postgres's casts in Spark SQL. A cast whose value differs in Spark is rewritten or refused.

Postgres rounds to an integer (a double half to even, a numeric half away from zero), but Spark truncates. Postgres
prints the zone of a timestamptz. Spark's text of a float differs from Postgres's.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType, TypeName
from service.sql.expressions.typed import INSTANTS, INTEGERS, Typed, coerced

_T = TypeName
_FLOATS: Final = (_T.REAL, _T.DOUBLE)
_PLAIN: Final = "cast({0} as {1})"

# Casts that Spark evaluates as Postgres does, refusing the same values.
_SAME: Final = frozenset(
    {
        *((whole, other) for whole in INTEGERS for other in (*INTEGERS, _T.NUMERIC, *_FLOATS)),
        *((number, other) for number in (_T.NUMERIC, *_FLOATS) for other in _FLOATS),
        *((_T.TEXT, other) for other in (_T.BOOLEAN, *INTEGERS, _T.NUMERIC, *_FLOATS, *INSTANTS)),
        *((number, _T.TEXT) for number in (_T.BOOLEAN, *INTEGERS, _T.NUMERIC, _T.DATE, _T.TIMESTAMP)),
        *((one, other) for one in INSTANTS for other in INSTANTS),
        (_T.BOOLEAN, _T.INTEGER),
        (_T.INTEGER, _T.BOOLEAN),
    }
)
_REWRITTEN: Final[Mapping[tuple[TypeName, TypeName], str]] = MappingProxyType(
    {
        **{(number, whole): "cast(rint({0}) as {1})" for number in _FLOATS for whole in INTEGERS},
        # Spark's own cast would return NULL. Postgres's numeric has a NaN, but Spark's has none.
        **{
            (number, _T.NUMERIC): "case when isnan({0}) then raise_error('NaN as numeric is not supported in a view')"
            " when abs({0}) = cast('Infinity' as double) then"
            " raise_error('cannot convert infinity to numeric') else cast({0} as {1}) end"
            for number in _FLOATS
        },
        **{(_T.NUMERIC, whole): "cast(round({0}, 0) as {1})" for whole in INTEGERS},
        # These types travel as their Postgres text.
        **{(kind, _T.TEXT): "{0}" for kind in (_T.TIME, _T.UUID, _T.JSONB, _T.INTERVAL)},
        (_T.TIMESTAMPTZ, _T.TEXT): "concat(cast({0} as string), '+00')",
        (_T.BYTEA, _T.TEXT): "concat('\\\\x', lower(hex({0})))",
    }
)
_REASONS: Final[Mapping[tuple[TypeName, TypeName], str]] = MappingProxyType(
    {
        **{(kind, _T.TEXT): "Spark writes floats differently: cast to numeric first" for kind in _FLOATS},
        **{
            (_T.TEXT, kind): "Spark keeps it as text and could not check it"
            for kind in (_T.UUID, _T.JSONB, _T.TIME, _T.INTERVAL)
        },
    }
)


def cast(value: Typed, to: ColumnType) -> Typed:
    """Return `value` cast to `to`. Raises Invalid if Postgres has no such cast or Spark has no equal one."""
    if value.type is None:
        value = coerced(value, to)
        # A literal keeps the digits with which it was written.
        exact = to.name is TypeName.NUMERIC and not to.array
        return replace(value, sql=f"cast({value.sql} as {to.spark})", type=to) if exact else value
    if value.type == to:
        return value
    if to.array or value.name is None:
        raise Invalid(f"a cast from {value.shown} to {to} is not supported in a view")
    pair = (value.name, to.name)
    same = value.name is to.name or pair in _SAME
    template = _PLAIN if same else _REWRITTEN.get(pair, "")
    if not template:
        reason = f": {_REASONS[pair]}" if pair in _REASONS else ""
        raise Invalid(f"a cast from {value.shown} to {to} is not supported in a view{reason}")
    return Typed(f"({template.format(value.sql, to.spark)})", to)
