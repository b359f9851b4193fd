"""Define what an INSERT, UPDATE or DELETE may call and cast to, as an allow-list (`docs/sql.md` shows the same list).

The list is needed because the worker runs these texts inside an epoch, under a login that can reach more functions than
users should. `service.sql.expressions.functions` lists the functions. They are named without a schema.
"""

from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.sql.expressions.functions import CALLABLE, Kind, names
from service.sql.text.tokens import fold
from service.sql.text.tree import Tree, identifier

FORMS: Final = (
    exp.Array, exp.And, exp.Or, exp.Xor, exp.Case, exp.If, exp.Cast, exp.Extract, exp.Overlay, exp.StrPosition,
    exp.Substring, exp.Trim, exp.Exists, exp.Unnest, exp.Pow, exp.Sqrt, exp.Cbrt, exp.Abs, exp.RegexpLike,
    exp.RegexpILike, exp.JSONExtract, exp.JSONExtractScalar, exp.JSONBExtract, exp.JSONBExtractScalar,
    exp.JSONBContains, exp.JSONBContainsAllTopKeys, exp.JSONBContainsAnyTopKeys, exp.JSONBDeleteAtPath,
    exp.ArrayContainsAll, exp.ArrayContainedBy, exp.ArrayOverlaps,
    exp.JSONBContainsTopKey, exp.JSONBPathExists, exp.StartsWith, exp.Collate,
)  # fmt: skip
"""sqlglot's function nodes that stand for operators or for special syntax."""
TYPES: Final = frozenset(
    """bigint bit boolean bytea char character cidr date decimal double float inet int integer interval json jsonb
    jsonpath macaddr name numeric real smallint text time timestamp timestamptz timetz uuid varbit varchar""".split()  # noqa: SIM905 - a list of words reads best as words
)
USERS: Final = names(Kind.SESSION)
SYSTEM_COLUMNS: Final = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
_LIST: Final = 'docs/sql.md, "What a statement that changes rows may call", lists the functions'


def check_allowed(tree: Tree, node: exp.Expr) -> None:
    """Raise Invalid for a call, a cast or an operator that a statement that changes rows may not contain."""
    match node:
        case exp.Anonymous():
            _check_call(tree, node)
        case exp.Operator():
            _refuse(tree, node, "OPERATOR(..) is not allowed here: write the operator itself")
        case exp.ObjectIdentifier() | exp.PseudoType():
            _refuse(tree, node, f"a cast to {node.sql('postgres').lower()} is not allowed here")
        case exp.DataType():
            _check_type(tree, node)
        case exp.Func() if not isinstance(node, FORMS):
            _refuse(tree, node, f"function {node.sql_name().lower()} is not allowed here: {_LIST}")
        case exp.Column():
            _check_name(tree, node)
        case _:
            pass


def _check_call(tree: Tree, node: exp.Anonymous) -> None:
    name, around = called_name(node), node.parent
    qualified = (isinstance(around, exp.Dot) and around.expression is node) or (
        isinstance(around, exp.Table) and around.args.get("db") is not None
    )
    if qualified:
        assert around is not None
        written = around.sql("postgres", comments=False, normalize_functions=False).partition("(")[0]
        _refuse(tree, node, f"function {written} is not allowed here: functions are named without a schema. {_LIST}")
    if name not in CALLABLE:
        _refuse(tree, node, f"function {name} is not allowed here: {_LIST}")


def called_name(node: exp.Anonymous) -> str:
    """Return the name of the function that is called."""
    if isinstance(node.this, exp.Identifier):
        return node.this.name if node.this.args.get("quoted") else fold(node.this.name)
    return fold(str(node.this))


def _check_type(tree: Tree, node: exp.DataType) -> None:
    shown = node.sql("postgres", comments=False)
    if node.this is exp.DType.ARRAY:
        return  # The element type is a separate node.
    if shown.lower().partition("(")[0].partition(" ")[0] not in TYPES:
        _refuse(tree, node, f"a cast to {shown.lower()} is not allowed here: {_LIST.removesuffix('functions')}types")


def _check_name(tree: Tree, node: exp.Column) -> None:
    name = node.this
    if not isinstance(name, exp.Identifier):
        return
    if identifier(name) in SYSTEM_COLUMNS:
        raise NotFound(f'column "{identifier(name)}" does not exist', kind="column", position=tree.position(node))
    if node.args.get("table") is None and not name.args.get("quoted") and fold(name.name) in USERS:
        _refuse(tree, node, f"{fold(name.name)} is not allowed here: {_LIST}")


def _refuse(tree: Tree, node: exp.Expr, message: str) -> None:
    raise Invalid(message, position=tree.position(node))
