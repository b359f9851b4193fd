"""Bind the scalar expressions of a view: a parsed tree becomes typed Spark SQL, node by node.

A node class that is not in `_BINDERS`, a node argument that its binder does not read, or a function that is not in the
allow-list is refused with its name. Only names of existing columns and literals reach Spark, both quoted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.columns import ColumnType, TypeName
from service.sql.expressions import operators
from service.sql.expressions.casts import cast
from service.sql.expressions.comparing import compared, listed
from service.sql.expressions.contexts import check_context
from service.sql.expressions.functions import FUNCTIONS, binder, call
from service.sql.expressions.intervals import parse_span
from service.sql.expressions.patterns import like
from service.sql.expressions.special import array_of, extract, subscript
from service.sql.expressions.typed import (
    BOOLEAN,
    INTERVAL,
    TIMESTAMP,
    TIMESTAMPTZ,
    Typed,
    coerced,
    common,
    number,
)
from service.sql.expressions.typed import quoted as quoted_text
from service.sql.text.tokens import fold
from service.sql.text.tree import called, given, identifier

NO_PARENTHESES: Final = frozenset(name for name, row in FUNCTIONS.items() if row.bare)
"""Functions that Postgres calls without parentheses. The parser takes them for columns."""


Name = tuple[str | None, str]
"""The qualifier of a column, if it has one, and its name."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The meaning of names: the columns of all inputs, with their values in Spark."""

    values: Mapping[Name, Typed]

    def resolved(self, qualifier: exp.Expr | None, name: str) -> Typed | None:
        """Return the value of a name with its qualifier, if it has one, or None."""
        return self.values.get((None if qualifier is None else identifier(qualifier), name))

    def bind(self, node: exp.Expr) -> Typed:
        """Return the Spark SQL of an expression. Raises Invalid and NotFound."""
        binder = _BINDERS.get(type(node))
        if binder is None:
            raise self.refusal(node)
        value = binder(self, node)
        check_context(value, node)
        return value

    def argument(self, node: exp.Expr, name: str = "this") -> Typed:
        """Bind one argument of a node. Raises Invalid and NotFound."""
        value = node.args.get(name)
        if not isinstance(value, exp.Expr):
            raise self.refusal(node)
        return self.bind(value)

    def reads(self, node: exp.Expr, *names: str) -> None:
        """Raise Invalid if the node has an argument that its binder does not read."""
        if extra := given(node) - set(names):
            raise Invalid(f"{called(node)} .. {min(extra)} is not supported in a view")

    def refusal(self, node: exp.Expr) -> Invalid:
        """Return the error that refuses a node by its name."""
        return Invalid(f"{called(node)} is not supported in a view")


def _column(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "table", "db")
    if isinstance(node.this, exp.Star):
        raise scope.refusal(node.this)
    name = identifier(node.this)
    if given(node) == frozenset({"this"}) and name in NO_PARENTHESES and not node.this.args.get("quoted"):
        raise Invalid(f"function {name} is not supported in a view")
    schema = node.args.get("db")
    if schema is not None and identifier(schema) != "public":
        raise NotFound(f'schema "{identifier(schema)}" does not exist', kind="schema")
    found = scope.resolved(node.args.get("table"), name)
    if found is None:
        raise NotFound(f'column "{name}" does not exist', kind="column")
    return found


def _literal(_: Scope, node: exp.Expr) -> Typed:
    text = str(node.this)
    if node.args.get("is_string"):
        return Typed(quoted_text(text), None, literal=text)
    return number(text)


def _boolean(_: Scope, node: exp.Expr) -> Typed:
    return Typed("true" if node.this else "false", BOOLEAN)


def _paren(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this")
    return scope.argument(node)


def _binary(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression", "safe", "typed")
    right = node.args.get("expression")
    if isinstance(right, exp.Any):
        return _any(scope, node, right)
    return operators.binary(type(node), scope.argument(node), scope.argument(node, "expression"))


def _power(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression")
    given = [scope.argument(node), scope.argument(node, "expression")]
    operators.require_powers(*given)
    return call("power", given)


def _any(scope: Scope, node: exp.Expr, right: exp.Any) -> Typed:
    scope.reads(right, "this")
    value, array = scope.argument(node), scope.argument(right)
    if not isinstance(node, exp.EQ) or array.type is None or not array.type.array:
        raise Invalid("ANY is supported as = ANY (array) only")
    kind = array.type.element
    common([replace(array, type=kind), value], "ANY")
    found = f"array_contains({array.sql}, {coerced(value, kind).sql})"
    # Nothing is in an empty array, not even NULL.
    return Typed(f"(case when cardinality({array.sql}) = 0 then false else {found} end)", BOOLEAN)


def _unary(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this")
    return operators.unary(type(node), scope.argument(node))


def _is(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression", "negate")
    value, what = scope.argument(node), node.args.get("expression")
    word = "not " if node.args.get("negate") else ""
    if isinstance(what, exp.Null):
        return Typed(f"({value.sql} is {word}null)", BOOLEAN)
    if isinstance(what, exp.Boolean):
        truth = operators.truth(value, "IS TRUE")
        return Typed(f"({truth} is {word}{'true' if what.this else 'false'})", BOOLEAN)
    raise scope.refusal(node)


def _in(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expressions", "negate")
    if not node.expressions:
        raise scope.refusal(node)
    values = [scope.argument(node), *(scope.bind(item) for item in node.expressions)]
    kind = operators.comparable(values, "IN")
    shown = f"(not {listed(values, kind)})" if node.args.get("negate") else listed(values, kind)
    return Typed(shown, BOOLEAN)


def _between(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "low", "high", "negate")
    values = [scope.argument(node), scope.argument(node, "low"), scope.argument(node, "high")]
    kind = operators.comparable(values, "BETWEEN")
    value, low, high = values
    shown = f"{compared('>=', value, low, kind)} and {compared('<=', value, high, kind)}"
    return Typed(f"({'not ' if node.args.get('negate') else ''}({shown}))", BOOLEAN)


def _like(scope: Scope, node: exp.Expr, escape: str = "\\") -> Typed:
    scope.reads(node, "this", "expression", "negate")
    value, pattern = scope.argument(node), scope.argument(node, "expression")
    shown = like(value, pattern, escape, folded=isinstance(node, exp.ILike))
    return Typed(f"(not {shown})" if node.args.get("negate") else shown, BOOLEAN)


def _escape(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression")
    character = node.args.get("expression")
    if not isinstance(node.this, exp.Like | exp.ILike) or not isinstance(character, exp.Literal):
        raise scope.refusal(node)
    if not character.is_string or len(str(character.this)) > 1:
        raise Invalid("invalid escape string: it is empty or one character")
    return _like(scope, node.this, str(character.this))


def _case(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "ifs", "default")
    subject = scope.argument(node) if node.args.get("this") else None
    branches: list[tuple[str, Typed]] = []
    for branch in node.args.get("ifs") or []:
        condition = scope.argument(branch)
        if subject is None:
            when = operators.truth(condition, "CASE/WHEN")
        else:
            when = operators.binary(exp.EQ, subject, condition).sql
        branches.append((when, scope.argument(branch, "true")))
    otherwise = [scope.argument(node, "default")] if node.args.get("default") else []
    kind = common([*(value for _, value in branches), *otherwise], "CASE")
    shown = " ".join(f"when {when} then {coerced(value, kind).sql}" for when, value in branches)
    rest = f" else {coerced(otherwise[0], kind).sql}" if otherwise else ""
    return Typed(f"(case {shown}{rest} end)", kind)


def _cast(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "to")
    try:
        kind = ColumnType.declared(node.args["to"].sql("postgres"))
    except ValueError as error:
        raise Invalid(str(error)) from None
    value = scope.argument(node)
    if kind == INTERVAL and value.literal is not None:
        return Typed("NULL", INTERVAL, span=parse_span(value.literal))
    return cast(value, kind)


def _function(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expressions")
    name = identifier(node.this) if isinstance(node.this, exp.Identifier) else fold(str(node.this))
    bind = binder(name, len(node.expressions))
    return bind(name, [scope.bind(argument) for argument in node.expressions])


def _extract(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression")
    return extract(node.this.name.lower(), scope.argument(node, "expression"))


def _substring(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "start", "length")
    start = node.args.get("start")
    first = scope.bind(start) if start is not None else number("1")
    length = [scope.argument(node, "length")] if node.args.get("length") else []
    if first.type is None and all(one.type is None for one in length):
        raise Invalid(
            "substring(.., a pattern) is a regular expression in Postgres, which a view has not: give a number",
        )
    return call("substring", [scope.argument(node), first, *length])


def _trim(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression", "position")
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "btrim")
    characters = [scope.argument(node, "expression")] if node.args.get("expression") else []
    return call(name, [scope.argument(node), *characters])


def _position(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "substr")
    given = [scope.argument(node), scope.argument(node, "substr")]
    return call("strpos", given)


def _subscript(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expressions")
    array = scope.argument(node)
    if len(node.expressions) != 1:
        raise Invalid(f"cannot subscript type {array.shown}")
    return subscript(array, scope.bind(node.expressions[0]))


def _array(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "expressions")
    if not node.expressions:
        raise Invalid("cannot determine type of empty array")
    return array_of([scope.bind(item) for item in node.expressions])


def _json(_: Scope, __: exp.Expr) -> Typed:
    message = "Spark reads JSON numbers as floats and prints objects differently"
    raise Invalid(message)


def _at_time_zone(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "zone")
    zone, value = scope.argument(node, "zone"), scope.argument(node)
    if zone.literal is None or zone.literal.strip().upper() not in ("UTC", "ETC/UTC"):
        raise Invalid("AT TIME ZONE takes 'UTC' only in a view")
    if value.name not in (TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ):
        raise Invalid(f"AT TIME ZONE is not supported for type {value.shown} in a view")
    return cast(value, TIMESTAMPTZ if value.name is TypeName.TIMESTAMP else TIMESTAMP)


_BINDERS: Final[Mapping[type[exp.Expr], Callable[[Scope, exp.Expr], Typed]]] = {
    **dict.fromkeys(operators.BINARY, _binary),
    **dict.fromkeys(operators.UNARY, _unary),
    exp.Anonymous: _function,
    exp.Array: _array,
    exp.AtTimeZone: _at_time_zone,
    exp.Between: _between,
    exp.Boolean: _boolean,
    exp.Bracket: _subscript,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.Column: _column,
    exp.Escape: _escape,
    exp.Extract: _extract,
    exp.ILike: _like,
    exp.In: _in,
    exp.Is: _is,
    exp.JSONExtract: _json,
    exp.JSONExtractScalar: _json,
    exp.Like: _like,
    exp.Literal: _literal,
    exp.Null: lambda _, __: Typed("NULL", None),
    exp.Paren: _paren,
    exp.Pow: _power,
    exp.StrPosition: _position,
    exp.Substring: _substring,
    exp.Trim: _trim,
}
