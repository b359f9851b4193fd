"""Bind the scalar expressions of a view: a parsed tree becomes typed Spark SQL, node by node.

A node class that is not in `_BINDERS`, a node argument that its binder does not read, or a function that is not in the
allow-list is refused with its name and position. Only names of existing columns and literals reach Spark, both quoted.
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
from service.sql.text.tree import Tree, called, given, identifier

NO_PARENTHESES: Final = frozenset(name for name, row in FUNCTIONS.items() if row.bare)
"""Functions that Postgres calls without parentheses. The parser takes them for columns."""


Name = tuple[str | None, str]
"""The qualifier of a column, if it has one, and its name."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The meaning of names: the columns of all inputs, with their values in Spark."""

    tree: Tree
    values: Mapping[Name, Typed]

    def resolved(self, qualifier: exp.Expr | None, name: str, place: int) -> Typed | None:
        """Return the value of a name with its qualifier, if it has one, or None."""
        found = self.values.get((None if qualifier is None else identifier(qualifier), name))
        return None if found is None else replace(found, position=place)

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
            raise Invalid(
                f"{called(node)} .. {min(extra)} is not supported in a view", position=self.tree.position(node)
            )

    def refusal(self, node: exp.Expr) -> Invalid:
        """Return the error that refuses a node by its name."""
        return Invalid(f"{called(node)} is not supported in a view", position=self.tree.position(node))


def _column(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "table", "db")
    if isinstance(node.this, exp.Star):
        raise scope.refusal(node.this)
    place, name = scope.tree.position(node.this), identifier(node.this)
    if given(node) == frozenset({"this"}) and name in NO_PARENTHESES and not node.this.args.get("quoted"):
        raise Invalid(f"function {name} is not supported in a view", position=place)
    schema = node.args.get("db")
    if schema is not None and identifier(schema) != "public":
        raise NotFound(
            f'schema "{identifier(schema)}" does not exist', kind="schema", position=scope.tree.position(schema)
        )
    found = scope.resolved(node.args.get("table"), name, place)
    if found is None:
        raise NotFound(f'column "{name}" does not exist', kind="column", position=place)
    return found


def _literal(scope: Scope, node: exp.Expr) -> Typed:
    place, text = scope.tree.position(node), str(node.this)
    if node.args.get("is_string"):
        return Typed(quoted_text(text, place), None, place, literal=text)
    return number(text, place)


def _boolean(scope: Scope, node: exp.Expr) -> Typed:
    return Typed("true" if node.this else "false", BOOLEAN, scope.tree.position(node))


def _paren(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this")
    return scope.argument(node)


def _binary(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression", "safe", "typed")
    right = node.args.get("expression")
    if isinstance(right, exp.Any):
        return _any(scope, node, right)
    place = scope.tree.position(node)
    return operators.binary(type(node), scope.argument(node), scope.argument(node, "expression"), place)


def _power(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression")
    given = [scope.argument(node), scope.argument(node, "expression")]
    operators.require_powers(*given)
    return call("power", given, scope.tree.position(node))


def _any(scope: Scope, node: exp.Expr, right: exp.Any) -> Typed:
    scope.reads(right, "this")
    value, array = scope.argument(node), scope.argument(right)
    if not isinstance(node, exp.EQ) or array.type is None or not array.type.array:
        raise Invalid("ANY is supported as = ANY (array) only", position=scope.tree.position(right))
    kind = array.type.element
    common([replace(array, type=kind), value], "ANY")
    found = f"array_contains({array.sql}, {coerced(value, kind).sql})"
    # Nothing is in an empty array, not even NULL.
    return Typed(f"(case when cardinality({array.sql}) = 0 then false else {found} end)", BOOLEAN, value.position)


def _unary(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this")
    return operators.unary(type(node), scope.argument(node), scope.tree.position(node))


def _is(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression", "negate")
    value, what = scope.argument(node), node.args.get("expression")
    word = "not " if node.args.get("negate") else ""
    if isinstance(what, exp.Null):
        return Typed(f"({value.sql} is {word}null)", BOOLEAN, value.position)
    if isinstance(what, exp.Boolean):
        truth = operators.truth(value, "IS TRUE")
        return Typed(f"({truth} is {word}{'true' if what.this else 'false'})", BOOLEAN, value.position)
    raise scope.refusal(node)


def _in(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expressions", "negate")
    if not node.expressions:
        raise scope.refusal(node)
    values = [scope.argument(node), *(scope.bind(item) for item in node.expressions)]
    kind = operators.comparable(values, "IN")
    shown = f"(not {listed(values, kind)})" if node.args.get("negate") else listed(values, kind)
    return Typed(shown, BOOLEAN, values[0].position)


def _between(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "low", "high", "negate")
    values = [scope.argument(node), scope.argument(node, "low"), scope.argument(node, "high")]
    kind = operators.comparable(values, "BETWEEN")
    value, low, high = values
    shown = f"{compared('>=', value, low, kind)} and {compared('<=', value, high, kind)}"
    return Typed(f"({'not ' if node.args.get('negate') else ''}({shown}))", BOOLEAN, value.position)


def _like(scope: Scope, node: exp.Expr, escape: str = "\\") -> Typed:
    scope.reads(node, "this", "expression", "negate")
    value, pattern = scope.argument(node), scope.argument(node, "expression")
    shown = like(value, pattern, escape, folded=isinstance(node, exp.ILike))
    return Typed(f"(not {shown})" if node.args.get("negate") else shown, BOOLEAN, value.position)


def _escape(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression")
    character = node.args.get("expression")
    if not isinstance(node.this, exp.Like | exp.ILike) or not isinstance(character, exp.Literal):
        raise scope.refusal(node)
    if not character.is_string or len(str(character.this)) > 1:
        raise Invalid("invalid escape string: it is empty or one character", position=scope.tree.position(character))
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
            when = operators.binary(exp.EQ, subject, condition, condition.position).sql
        branches.append((when, scope.argument(branch, "true")))
    otherwise = [scope.argument(node, "default")] if node.args.get("default") else []
    kind = common([*(value for _, value in branches), *otherwise], "CASE")
    shown = " ".join(f"when {when} then {coerced(value, kind).sql}" for when, value in branches)
    rest = f" else {coerced(otherwise[0], kind).sql}" if otherwise else ""
    return Typed(f"(case {shown}{rest} end)", kind, scope.tree.position(node))


def _cast(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "to")
    place = scope.tree.position(node)
    try:
        kind = ColumnType.declared(node.args["to"].sql("postgres"))
    except ValueError as error:
        raise Invalid(str(error), position=place) from None
    value = scope.argument(node)
    if kind == INTERVAL and value.literal is not None:
        return Typed("NULL", INTERVAL, place, span=parse_span(value.literal, place))
    return cast(value, kind, place)


def _function(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expressions")
    place = scope.tree.position(node)
    name = identifier(node.this) if isinstance(node.this, exp.Identifier) else fold(str(node.this))
    bind = binder(name, len(node.expressions), place)
    return bind(name, [scope.bind(argument) for argument in node.expressions], place)


def _extract(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression")
    return extract(node.this.name.lower(), scope.argument(node, "expression"), scope.tree.position(node))


def _substring(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "start", "length")
    start = node.args.get("start")
    first = scope.bind(start) if start is not None else number("1", scope.tree.position(node))
    length = [scope.argument(node, "length")] if node.args.get("length") else []
    if first.type is None and all(one.type is None for one in length):
        raise Invalid(
            "substring(.., a pattern) is a regular expression in Postgres, which a view has not: give a number",
            position=first.position,
        )
    return call("substring", [scope.argument(node), first, *length], scope.tree.position(node))


def _trim(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expression", "position")
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "btrim")
    characters = [scope.argument(node, "expression")] if node.args.get("expression") else []
    return call(name, [scope.argument(node), *characters], scope.tree.position(node))


def _position(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "substr")
    given = [scope.argument(node), scope.argument(node, "substr")]
    return call("strpos", given, scope.tree.position(node))


def _subscript(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "expressions")
    array = scope.argument(node)
    if len(node.expressions) != 1:
        raise Invalid(f"cannot subscript type {array.shown}", position=array.position)
    return subscript(array, scope.bind(node.expressions[0]), array.position)


def _array(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "expressions")
    place = scope.tree.position(node)
    if not node.expressions:
        raise Invalid("cannot determine type of empty array", position=place)
    return array_of([scope.bind(item) for item in node.expressions], place)


def _json(scope: Scope, node: exp.Expr) -> Typed:
    message = "Spark reads JSON numbers as floats and prints objects differently"
    raise Invalid(message, position=scope.tree.position(node))


def _at_time_zone(scope: Scope, node: exp.Expr) -> Typed:
    scope.reads(node, "this", "zone")
    zone, value = scope.argument(node, "zone"), scope.argument(node)
    if zone.literal is None or zone.literal.strip().upper() not in ("UTC", "ETC/UTC"):
        raise Invalid("AT TIME ZONE takes 'UTC' only in a view", position=zone.position)
    if value.name not in (TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ):
        raise Invalid(f"AT TIME ZONE is not supported for type {value.shown} in a view", position=value.position)
    return cast(value, TIMESTAMPTZ if value.name is TypeName.TIMESTAMP else TIMESTAMP, value.position)


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
    exp.Null: lambda scope, node: Typed("NULL", None, scope.tree.position(node)),
    exp.Paren: _paren,
    exp.Pow: _power,
    exp.StrPosition: _position,
    exp.Substring: _substring,
    exp.Trim: _trim,
}
