"""Refuse what a view cannot maintain in an expression: anything that does not depend on its columns alone."""

import re
from collections.abc import Mapping
from typing import Final, Never

from sqlglot import exp

from service.domain.errors import Invalid
from service.sql.expressions.allowed import TYPES, USERS, called_name
from service.sql.expressions.functions import AGGREGATES, CALLABLE, Kind, names
from service.sql.text.tokens import fold
from service.sql.text.tree import Tree, called, given

LINEAR: Final = names(Kind.SUMS)
_CLOCK: Final = names(Kind.CLOCK)
_RANDOM: Final = names(Kind.RANDOM)
_SEVERAL_ROWS: Final = names(Kind.ROWS)
_DAY: Final = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_SOUGHT: Final = frozenset(
    {"ltrim", "rtrim", "btrim", "translate", "strpos", "split_part", "replace", "string_to_array"}
)
"""Functions that look for the second argument, or its characters, everywhere in the first one."""
_SOUGHT_MAX: Final = 1_000
_TEXTS: Final = frozenset({exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.CHAR})
_NODES: Final = (
    exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.And, exp.Or, exp.Not, exp.EQ,
    exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.In, exp.Between, exp.Like,
    exp.ILike, exp.SimilarTo, exp.RegexpLike, exp.RegexpILike, exp.Escape, exp.Case, exp.If, exp.Cast, exp.DataType,
    exp.DataTypeParam, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Pow, exp.Sqrt, exp.Cbrt, exp.Abs,
    exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift,
    exp.BitwiseRightShift, exp.Anonymous, exp.Filter, exp.Where, exp.WithinGroup, exp.Order, exp.Ordered, exp.Window,
    exp.WindowSpec, exp.Distinct, exp.Extract, exp.Var, exp.Substring, exp.Trim, exp.Overlay, exp.StrPosition,
    exp.Array, exp.Bracket, exp.Slice, exp.Tuple, exp.JSONExtract, exp.JSONExtractScalar, exp.JSONBExtract,
    exp.JSONBExtractScalar, exp.JSONBContains, exp.JSONBContainsAllTopKeys, exp.JSONBContainsAnyTopKeys,
    exp.JSONBContainsTopKey, exp.JSONBDeleteAtPath, exp.JSONBPathExists, exp.ArrayContainsAll, exp.ArrayContainedBy,
    exp.ArrayOverlaps, exp.StartsWith, exp.AtTimeZone, exp.Collate, exp.Kwarg, exp.ByteString,
    exp.RawString, exp.HexString, exp.BitString, exp.Any, exp.All, exp.Star,
)  # fmt: skip
_INSTEAD: Final[Mapping[type[exp.Expr], str]] = {
    exp.Dot: "a qualified name is not supported in a view here: functions are named without a schema",
    exp.Parameter: "a parameter is not supported",
    exp.Placeholder: "a parameter is not supported",
    exp.SessionParameter: "a parameter is not supported",
    exp.Operator: "OPERATOR(..) is not supported in a view: write the operator itself",
}


def check(tree: Tree, node: exp.Expr) -> None:
    """Raise Invalid unless a node of an expression may stand in a view."""
    match node:
        case exp.Anonymous():
            _check_call(tree, node)
        case exp.Literal() | exp.RawString() | exp.ByteString() | exp.Column():
            check_steady(tree, node)
        case exp.Trim(expression=exp.Expr() as sought):
            _check_sought(tree, sought, "trim")
        case exp.StrPosition():
            _check_sought(tree, node.args["substr"], "position")
        case exp.DataType() if node.this is not exp.DType.ARRAY:
            _check_type(tree, node)
        case exp.Order() if node.args.get("siblings"):
            _refuse(tree, node, "ORDER SIBLINGS BY is not supported in a view")
        case _ if not isinstance(node, _NODES):
            _refuse(tree, node, _INSTEAD.get(type(node), f"{called(node)} is not supported in a view"))
        case _:
            pass


def _is_clock(node: exp.Literal | exp.RawString | exp.ByteString) -> bool:
    """Whether a text can be a date that depends on the clock: any such word that is cast, or the word alone.

    An escape may hide the word.
    """
    if isinstance(node, exp.Literal) and not node.is_string:
        return False
    around, hidden = node.parent, isinstance(node, exp.ByteString) and "\\" in node.name
    if isinstance(around, exp.Cast):
        return around.args["to"].this not in _TEXTS and (hidden or _DAY.search(node.name) is not None)
    return _DAY.fullmatch(node.name.strip()) is not None


def check_steady(tree: Tree, node: exp.Expr) -> None:
    """Raise Invalid if the value of a node changes with the clock, the session or chance."""
    match node:
        case exp.Anonymous():
            name = called_name(node)
            if name in _CLOCK or (name == "age" and len(node.expressions) == 1):
                _refuse(tree, node, f"{name} depends on the time of the statement: {_clock_instead(name)}")
            if name in _RANDOM:
                _refuse(tree, node, f"function {name} gives another value at each call: store its value in a table")
        case exp.Literal() | exp.RawString() | exp.ByteString() if _is_clock(node):
            message = f"'{node.name}' as a date or time changes with the clock: use a constant, or cast a text to text"
            _refuse(tree, node, message)
        case exp.Column():
            _check_name(tree, node)
        case _:
            pass


def _check_call(tree: Tree, node: exp.Anonymous) -> None:
    check_steady(tree, node)
    name = called_name(node)
    if name in _SEVERAL_ROWS:
        message = f"function {name} returns several rows, which is not supported in a view: store the rows in a table"
        _refuse(tree, node, message)
    if name not in CALLABLE:
        _refuse(tree, node, f"function {name} is not supported in a view: docs/sql.md lists the functions")
    if name in _SOUGHT and len(node.expressions) > 1:
        _check_sought(tree, node.expressions[1], name)


def _check_sought(tree: Tree, sought: exp.Expr, name: str) -> None:
    """Refuse what may be long. Over two long texts Postgres and Spark compute for days, and neither
    can be interrupted meanwhile.
    """
    literal = sought.this if isinstance(sought, exp.Cast) else sought
    if not isinstance(literal, exp.Literal) or len(literal.name) > _SOUGHT_MAX:
        _refuse(tree, sought, f"{name} looks for a literal of at most {_SOUGHT_MAX} characters in a view")


def _clock_instead(name: str) -> str:
    if name == "age":
        return "use age with two arguments"
    return "a view changes only when its tables do. Filter by time in the SELECT that reads the view"


def _check_type(tree: Tree, node: exp.DataType) -> None:
    shown = node.sql("postgres", comments=False).lower()
    if shown.partition("(")[0].partition(" ")[0] not in TYPES:
        _refuse(tree, node, f"a cast to {shown} is not supported in a view: docs/sql.md lists the types")


def _check_name(tree: Tree, node: exp.Column) -> None:
    name = node.this
    if not isinstance(name, exp.Identifier) or name.args.get("quoted") or given(node) != frozenset({"this"}):
        return
    if fold(name.name) in USERS:
        _refuse(tree, node, f"{fold(name.name)} depends on the session, and a view does not")
    if fold(name.name) in _CLOCK:
        _refuse(
            tree, node, f"{fold(name.name)} depends on the time of the statement: {_clock_instead(fold(name.name))}"
        )


def _refuse(tree: Tree, node: exp.Expr, message: str) -> Never:
    raise Invalid(message, position=tree.position(node))


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node is a call of an aggregate, with its FILTER or WITHIN GROUP. A window function is none."""
    around = node.parent
    while isinstance(around, exp.Filter | exp.WithinGroup):
        around = around.parent
    if isinstance(around, exp.Window) and node.find_ancestor(exp.Window) is around and _is_function(around, node):
        return False
    return isinstance(node, exp.Filter | exp.WithinGroup) or is_aggregate_call(node)


def _is_function(window: exp.Window, node: exp.Expr) -> bool:
    """Whether a node is the function of a window, perhaps with FILTER, and not in its PARTITION BY or ORDER BY."""
    inner = window.this
    while inner is not node and isinstance(inner, exp.Filter | exp.WithinGroup):
        inner = inner.this
    return inner is node


def is_aggregate_call(node: exp.Expr) -> bool:
    """Whether a node is a call of a function that is an aggregate, perhaps as a window function."""
    return isinstance(node, exp.Anonymous) and called_name(node) in AGGREGATES
