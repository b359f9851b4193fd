"""The meaning of names and numbers in a store's expression that Spark is to compute with exactly its result.

It binds as a view over one relation does, with the columns of all inputs. A numeric without a precision is a text in
Spark. It must have Postgres's digits, so only sums and products of plain columns and numbers become one: there all rows
have as many digits behind the point. It is compared part by part, and computed with as a decimal.
"""

from dataclasses import dataclass, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.sql.expressions.allowed import called_name
from service.sql.expressions.contexts import passed_on
from service.sql.expressions.operators import truth
from service.sql.expressions.scalar import Scope
from service.sql.expressions.typed import (
    BOOLEAN,
    DOUBLE,
    INTEGERS,
    NUMERIC,
    TEXT,
    Typed,
    coerced,
    digits,
)
from service.sql.queries.folding import check_folded
from service.sql.queries.measures import MINUS_ZERO
from service.sql.queries.nodes import bare, built
from service.sql.text.tree import identifier

_UNIFORM: Final = (
    exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Cast, exp.DataType, exp.DataTypeParam, exp.Column,
    exp.Identifier, exp.Literal, exp.Extract, exp.Var,
)  # fmt: skip
"""Nodes of an expression whose values all have the same number of digits behind the point."""
_COMPARING: Final = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between, exp.In
)  # fmt: skip
_COMPUTED: Final = ColumnType(TypeName.NUMERIC, NUMERIC_PRECISION_MAX, 20)
"""In this type Spark computes with a numeric without a precision. An average has 16 digits behind the point or more."""
_DECIMAL: Final = (
    "(case when {0} rlike '[.][0-9]{{20}}[0-9]*[1-9]' then raise_error('only the state store computes with a numeric of"
    f" more than 20 digits behind the point: SET stage_engine = store') else cast({{0}} as {_COMPUTED.spark}) end)"
)
_CASES: Final = {
    "lower": f"'{ascii_uppercase}', '{ascii_lowercase}'",
    "upper": f"'{ascii_lowercase}', '{ascii_uppercase}'",
}
"""The letters that a function replaces, and by which."""
_MINUS_ZERO: Final = built(MINUS_ZERO, exp.Literal.number(0))
_SPECIAL: Final = frozenset({"NaN", "Infinity", "-Infinity"})


@dataclass(frozen=True, slots=True)
class StoreScope(Scope):
    """A scope that refuses, or computes otherwise, what Spark computes with another result than the store."""

    def bind(self, node: exp.Expr) -> Typed:
        check_folded(node)
        value = self._unbounded(node)
        if value is not None:
            return value if _takes_text(node) else _as_decimal(value)
        if isinstance(node, exp.Cast) and type_of(node).unbounded and not type_of(node).array:
            return self._exact(node)
        if isinstance(node, exp.Case) and node.this is None and any(map(_is_special, node.args["ifs"])):
            return self._finite(node)
        if isinstance(node, exp.Anonymous) and called_name(node) in _CASES:
            return self._cased(node)
        if isinstance(node, exp.EQ) and node.expression == _MINUS_ZERO.expression:
            found = self._minus_zero(node)
            if found is not None:
                return found
        if isinstance(node.this if isinstance(node, exp.Escape) else node, exp.ILike):
            raise Invalid("only the state store ignores case as Postgres does")
        return Scope.bind(self, node)

    def _minus_zero(self, node: exp.EQ) -> Typed | None:
        """Bind the question whether a float is -0, which Spark prints otherwise. None for another comparison."""
        text = node.this
        if not isinstance(text, exp.Cast) or text.to != _MINUS_ZERO.this.to or not isinstance(text.this, exp.Cast):
            return None
        value = self.bind(text.this)
        if value.type != DOUBLE:
            return None
        return replace(value, sql=f"(cast({value.sql} as string) = '-0.0')", type=BOOLEAN, column=None)

    def _cased(self, node: exp.Anonymous) -> Typed:
        """Bind a change of case. A text without a column has the collation of the database, which may be any."""
        if not node.sql().isascii():
            raise Invalid("only the state store changes the case of such a text as Postgres does")
        (argument,) = node.expressions
        value = coerced(self.bind(argument), TEXT)
        return replace(value, sql=f"translate({value.sql}, {_CASES[called_name(node)]})", column=None)

    def _unbounded(self, node: exp.Expr) -> Typed | None:
        """Return a column if it is a numeric without a precision, whose values are texts."""
        inner = bare(node)
        if not isinstance(inner, exp.Column):
            return None
        found = self.resolved(inner.args.get("table"), identifier(inner.this))
        return found if found is not None and found.type is not None and found.type.unbounded else None

    def _finite(self, node: exp.Case) -> Typed:
        """Bind the value of a sum that may be NaN or infinite in Postgres. No decimal of Spark is, so it fails."""
        branches: list[exp.If] = node.args["ifs"]
        special = [truth(self.argument(one), "CASE/WHEN") for one in branches if _is_special(one)]
        value = self.bind(_without_special(node))
        if not is_exact(value):
            raise Invalid("Spark's sum of floats is another one")
        failing = "raise_error('NaN and infinity are not supported in a numeric')"
        return replace(
            value, sql=f"(case when {' or '.join(special)} then {failing} else {value.sql} end)", column=None
        )

    def _exact(self, node: exp.Cast) -> Typed:
        """Bind a cast to numeric without a precision, which changes no exact number."""
        value = self.argument(node)
        if value.type is None or value.name in INTEGERS or value.name is TypeName.NUMERIC:
            return replace(coerced(value, NUMERIC), column=None)
        raise Invalid(f"a cast from {value.shown} to numeric without a precision is the state store's alone")


def value_text(value: Typed, node: exp.Expr, to: ColumnType) -> str:
    """Return a value in exactly the type of its column. Raises Invalid."""
    if value.type is None:
        value = coerced(value, to)
    if value.type == to:
        return value.sql
    if to.unbounded and not to.array and is_exact(value) and is_uniform(taken(node)):
        exact = coerced(value, NUMERIC)
        if exact.type is not None and digits(exact.type)[0] + digits(exact.type)[1] < NUMERIC_PRECISION_MAX:
            return f"cast({exact.sql} as string)"
    if widens(value, to):
        return f"cast({value.sql} as {to.spark})"
    raise Invalid(f"Spark's value has type {value.type}, and the column {to}")


def _takes_text(node: exp.Expr) -> bool:
    """Whether an expression is passed on or compared."""
    while isinstance(node.parent, exp.Paren):
        node = node.parent
    return passed_on(node) or isinstance(node.parent, _COMPARING)


def _as_decimal(value: Typed) -> Typed:
    """Return a numeric without a precision as a decimal. Spark would round the digits that do not fit, so it fails."""
    return replace(value, sql=_DECIMAL.format(value.sql), type=_COMPUTED, column=None)


def type_of(node: exp.Cast) -> ColumnType:
    """Return the type of a cast. Raises Invalid."""
    try:
        return ColumnType.parse(node.args["to"].sql("postgres"))
    except ValueError as error:
        raise Invalid(str(error)) from None


def is_exact(value: Typed) -> bool:
    """Whether Spark holds a number exactly: an integer, or a numeric with a precision."""
    return value.name in INTEGERS or (
        value.name is TypeName.NUMERIC and value.type is not None and not value.type.unbounded
    )


def widens(value: Typed, to: ColumnType) -> bool:
    """Whether every value of an exact number is one of the column's type."""
    if to.array or to.unbounded or value.type is None or not is_exact(value):
        return False
    if to.name in INTEGERS:
        return value.name in INTEGERS and INTEGERS.index(value.name) <= INTEGERS.index(to.name)
    if to.name is not TypeName.NUMERIC:
        return False
    (whole, scale), (room, places) = digits(value.type), digits(to)
    return whole <= room and scale <= places


def _is_special(branch: exp.If) -> bool:
    value = branch.args["true"]
    return isinstance(value, exp.Literal) and value.is_string and value.name in _SPECIAL


def _without_special(node: exp.Case) -> exp.Expr:
    """Return a CASE without the branches that give NaN or infinity."""
    rest = [one for one in node.args["ifs"] if not _is_special(one)]
    otherwise = node.args.get("default")
    if rest or otherwise is None:
        return exp.Case(ifs=rest, default=otherwise)
    return otherwise


def is_uniform(node: exp.Expr) -> bool:
    """Whether all values of an expression have as many digits behind the point."""
    return all(isinstance(part, _UNIFORM) for part in node.walk())


def taken(node: exp.Expr) -> exp.Expr:
    """Return the only value of `case when .. then value end` that is not NULL."""
    while True:
        if isinstance(node, exp.Paren) or (isinstance(node, exp.Cast) and type_of(node).unbounded):
            node = node.this
            continue
        if not isinstance(node, exp.Case) or node.this is not None:
            return node
        branches = [one for one in node.args["ifs"] if not _is_special(one)]
        otherwise = node.args.get("default")
        if not branches and otherwise is not None:
            node = otherwise
        elif len(branches) == 1 and otherwise is None:
            node = branches[0].args["true"]
        else:
            return node
