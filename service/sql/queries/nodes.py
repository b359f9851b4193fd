"""Read and rewrite expressions of a query, as sqlglot's nodes.

After its names are resolved, an expression consists of columns `"alias"."column"` of stage inputs, and every
expression that replaced a column stands in parentheses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from sqlglot import exp

from service.sql.text.tree import Dialect

COMPARISONS: Final = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Like, exp.ILike, exp.SimilarTo, exp.RegexpLike,
    exp.RegexpILike,
)  # fmt: skip
_STRICT: Final = (
    *COMPARISONS, exp.Paren, exp.Neg, exp.Not, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Cast,
    exp.Extract, exp.Substring, exp.Between,
)  # fmt: skip
"""Nodes that are NULL if the first of their operands (or any operand of a binary operator) is."""
_BARE: Final = (exp.Column, exp.Paren, exp.Anonymous, exp.Boolean, exp.Null, exp.Cast, exp.Case)


def column(alias: str, name: str) -> exp.Column:
    """Return the column `"alias"."name"`."""
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))


def printed(node: exp.Expr) -> str:
    """Print a node in Postgres's SQL."""
    return node.sql(dialect=Dialect, comments=False, normalize_functions=False)


def operand(node: exp.Expr) -> exp.Expr:
    """Return the node in parentheses where an operator could follow."""
    if isinstance(node, _BARE) or (isinstance(node, exp.Literal) and not node.name.startswith("-")):
        return node
    return exp.Paren(this=node)


def own_column(name: str) -> exp.Column:
    """Return the column `"name"`, without the input that has it."""
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def built(template: str, *values: exp.Expr) -> exp.Expr:
    """Return an expression that the planner itself has written: `{0}`, `{1}`, ... in its template are `values`.

    A value stands in parentheses where an operator could follow.
    """

    def replaced(node: exp.Expr) -> exp.Expr | None:
        place = node.name if isinstance(node, exp.Column) and not node.table else ""
        return operand(values[int(place)]) if place.isdigit() else None

    return rewritten(_template(template.format(*(f'"{at}"' for at in range(len(values))))), replaced)


@lru_cache(maxsize=1024)
def _template(text: str) -> exp.Expr:
    found = Dialect().parse(text if text.startswith("SELECT ") else f"SELECT {text}")[0]
    assert isinstance(found, exp.Select)
    return found if text.startswith("SELECT ") else found.expressions[0]


def selected(query: exp.Expr, values: Iterable[tuple[str, exp.Expr]]) -> exp.Expr:
    """Return a SELECT with other values, by their names."""
    shown = [exp.Alias(this=value, alias=exp.to_identifier(name, quoted=True)) for name, value in values]
    return type(query)(**{**query.args, "expressions": shown})


def within(
    query: exp.Expr, alias: str, values: Iterable[tuple[str, exp.Expr]], conditions: Sequence[exp.Expr] = ()
) -> exp.Expr:
    """Return a SELECT of values over the rows of a query."""
    source = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    where = exp.Where(this=conjunction(conditions)) if conditions else None
    return selected(exp.Select(from_=exp.From(this=source), where=where), values)


def conjunction(conditions: Sequence[exp.Expr]) -> exp.Expr:
    """Return whether all of some conditions hold."""
    found, *others = map(operand, conditions)
    for one in others:
        found = exp.And(this=found, expression=one)
    return found


def rewritten(node: exp.Expr, replace: Callable[[exp.Expr], exp.Expr | None]) -> exp.Expr:
    """Return a copy in which `replace` has replaced nodes, the outermost first. The node itself does not change."""
    # An item of an ORDER BY prints as its value does, and is none.
    found = None if isinstance(node, exp.Ordered) else replace(node)
    if found is not None:
        return found
    arguments: dict[str, object] = {}
    for name, value in node.args.items():
        if isinstance(value, exp.Expr):
            arguments[name] = rewritten(value, replace)
        elif isinstance(value, list):
            arguments[name] = [rewritten(one, replace) if isinstance(one, exp.Expr) else one for one in value]
        else:
            arguments[name] = value
    return type(node)(**arguments)


def substituted(node: exp.Expr, values: Mapping[tuple[str, str], exp.Expr]) -> exp.Expr:
    """Return the expression with columns replaced, by (alias, name)."""

    def replace(part: exp.Expr) -> exp.Expr | None:
        found = values.get(named(part)) if isinstance(part, exp.Column) else None
        return None if found is None else operand(found.copy())

    return rewritten(node, replace)


def realiased(node: exp.Expr, aliases: Mapping[str, str]) -> exp.Expr:
    """Return the expression over inputs of other aliases."""

    def replace(part: exp.Expr) -> exp.Expr | None:
        if not isinstance(part, exp.Column):
            return None
        alias, name = named(part)
        return column(aliases[alias], name) if alias in aliases else None

    return rewritten(node, replace)


def named(node: exp.Column) -> tuple[str, str]:
    """Return the alias and the name of a resolved column. One of a result has no alias."""
    return node.table, node.name


def columns_of(node: exp.Expr) -> Iterator[tuple[str, str]]:
    """Yield the resolved columns that an expression reads."""
    for found in node.find_all(exp.Column):
        yield named(found)


def aliases_of(node: exp.Expr) -> frozenset[str]:
    """Return the inputs that an expression reads."""
    return frozenset(alias for alias, _ in columns_of(node))


def bare(node: exp.Expr) -> exp.Expr:
    """Return the node without parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the conditions that all have to hold. An equality of rows becomes one of each pair."""
    inner = bare(node)
    if isinstance(inner, exp.And):
        yield from conjuncts(inner.this)
        yield from conjuncts(inner.expression)
    elif isinstance(inner, exp.EQ) and _pairs(inner):
        for left, right in zip(inner.this.expressions, inner.expression.expressions, strict=True):
            yield exp.EQ(this=operand(left.copy()), expression=operand(right.copy()))
    else:
        yield inner


def _pairs(node: exp.EQ) -> bool:
    left, right = node.this, node.expression
    return (
        isinstance(left, exp.Tuple) and isinstance(right, exp.Tuple) and len(left.expressions) == len(right.expressions)
    )


def common_conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """Return the conditions that hold in every branch of an OR."""
    inner = bare(node)
    if not isinstance(inner, exp.Or):
        return []
    sides = [_implied(side) for side in (inner.this, inner.expression)]
    return [one for text, one in sides[0].items() if text in sides[1]]


def _implied(node: exp.Expr) -> dict[str, exp.Expr]:
    inner = bare(node)
    found = common_conjuncts(inner) if isinstance(inner, exp.Or) else list(conjuncts(inner))
    return {printed(one): one for one in found}


def is_quantified(node: object) -> bool:
    """Whether a side of a comparison is ANY or ALL of several values."""
    while isinstance(node, exp.Paren):
        node = node.this
    called = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    return isinstance(node, exp.Any | exp.All) or called in {"all", "any", "some"}


def is_null_with(node: exp.Expr, aliases: frozenset[str]) -> bool:
    """Whether an expression is surely NULL in a row that has only NULLs in the columns of `aliases`."""
    if isinstance(node, exp.Column):
        return named(node)[0] in aliases
    if isinstance(node, exp.In):
        return is_null_with(node.this, aliases) and bool(node.expressions)
    if not isinstance(node, _STRICT) or is_quantified(node.args.get("expression")):
        # A comparison with all elements of an empty array is true even for NULL.
        return False
    sides = [node.args.get(name) for name in ("this", "expression")]
    return any(is_null_with(side, aliases) for side in sides if isinstance(side, exp.Expr))


def rejects_nulls(node: exp.Expr, aliases: frozenset[str]) -> bool:
    """Whether a condition surely does not hold in a row that has only NULLs in the columns of `aliases`."""
    match node:
        case exp.Paren():
            return rejects_nulls(node.this, aliases)
        case exp.And():
            return rejects_nulls(node.this, aliases) or rejects_nulls(node.expression, aliases)
        case exp.Or():
            return rejects_nulls(node.this, aliases) and rejects_nulls(node.expression, aliases)
        case exp.Not() if isinstance(tested := bare(node.this), exp.Is) and isinstance(tested.expression, exp.Null):
            return is_null_with(tested.this, aliases)
        case exp.Is() if isinstance(node.expression, exp.Boolean):
            return is_null_with(node.this, aliases)
        case _:
            return is_null_with(node, aliases)
