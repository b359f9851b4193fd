"""Give the expressions of a finished stage their Spark SQL, where Spark means exactly the same (I12).

The store's text is parsed again and bound as an expression of a view over one relation is, with the columns of all
inputs. An expression that the binder refuses has no Spark text, and keeps the reason. A value has exactly the type of
its column.

A numeric without a precision is a text in Spark. It must have Postgres's digits, so only sums and products of plain
columns and numbers become one: there all rows have as many digits behind the point. It is compared part by part, and
computed with as a decimal. A measure is an exact number, whose sums are exact however long it is.

Spark fails where a number does not fit (I12). It never rounds one.

The text columns of relations are COLLATE "C", for which Postgres changes the case of ASCII letters alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Final, TypeVar

from sqlglot import exp
from sqlglot.errors import SqlglotError

from service.domain.errors import Invalid, NotFound
from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Aggregate, Expression, Join, Stage, Value
from service.protocol.stage_spark import MEASURE_DIGITS_MAX, spark_column
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
    numeric,
    quoted_name,
)
from service.sql.queries.measures import MINUS_ZERO
from service.sql.queries.nodes import bare, parsed
from service.sql.queries.relations import ONE
from service.sql.text.tree import Tree, identifier

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
_MINUS_ZERO: Final = parsed(MINUS_ZERO.format("0"))
_SPECIAL: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_Name = tuple[str | None, str]
E = TypeVar("E", bound=Expression)


@dataclass(frozen=True, slots=True)
class _Scope(Scope):
    """The columns of all inputs, by alias and name."""

    values: Mapping[_Name, Typed] = field(default_factory=dict[_Name, Typed])

    def resolved(self, qualifier: exp.Expr | None, name: str, place: int) -> Typed | None:
        found = self.values.get((None if qualifier is None else identifier(qualifier), name))
        return None if found is None else replace(found, position=place)

    def bind(self, node: exp.Expr) -> Typed:
        value = self._unbounded(node)
        if value is not None:
            return value if _takes_text(node) else _as_decimal(value)
        if isinstance(node, exp.Cast) and _type_of(node).unbounded and not _type_of(node).array:
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
        found = self.resolved(inner.args.get("table"), identifier(inner.this), 0)
        return found if found is not None and found.type is not None and found.type.unbounded else None

    def _finite(self, node: exp.Case) -> Typed:
        """Bind the value of a sum that may be NaN or infinite in Postgres. No decimal of Spark is, so it fails."""
        branches: list[exp.If] = node.args["ifs"]
        special = [truth(self.argument(one), "CASE/WHEN") for one in branches if _is_special(one)]
        value = self.bind(_without_special(node))
        if not _is_exact(value):
            raise Invalid("Spark's sum of floats is another one", position=value.position)
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

    def computed_by_store(self, expression: str, kind: ColumnType, position: int) -> Typed:  # noqa: ARG002 - see the base
        raise Invalid(f"only the state store computes {expression} as Postgres does", position=position)


def with_spark(stage: Stage, relations: Mapping[RelationId, Relation], target: Relation) -> Stage:
    """Return the stage with the Spark texts of its expressions. `target` is the relation that it writes.

    It is idempotent. `service.protocol.stage_spark.spark_reason` tells whether all are there.
    """
    columns: dict[_Name, Typed] = {
        (one.alias, column.name): Typed(
            quoted_name(spark_column(one.alias, column.name), 0), column.type, 0, column=column
        )
        for one in stage.inputs
        for column in relations[one.relation].columns
        if "${" not in column.name
    }
    binder = _Binder(relations[stage.driver.relation], columns)
    aggregate = stage.aggregate
    measures = () if aggregate is None else aggregate.measures
    rows = [
        binder.measure(one, target.column(one.name).type)
        if one.name in measures
        else binder.expression(one, target.column(one.name).type)
        for one in stage.rows
    ]
    return stage.model_copy(
        update={
            "joins": tuple(_joined(join, binder, relations) for join in stage.joins),
            "where": tuple(binder.condition(one) for one in stage.where),
            "rows": tuple(rows),
            "aggregate": None if aggregate is None else _with_results(aggregate, binder, target),
        }
    )


def _joined(join: Join, binder: "_Binder", relations: Mapping[RelationId, Relation]) -> Join:
    inputs = tuple(
        one.model_copy(update={"single": [part.name for part in relations[one.relation].key] == [ONE]})
        for one in join.inputs
    )
    return join.model_copy(update={"inputs": inputs, "on": tuple(binder.condition(one) for one in join.on)})


def _with_results(aggregate: Aggregate, binder: "_Binder", target: Relation) -> Aggregate:
    """Bind the results over keys and sums, which are columns by their names."""
    values: dict[_Name, Typed] = {}
    for name in (*aggregate.keys, *aggregate.measures):
        kind, sql = target.column(name).type, quoted_name(name, 0)
        if kind.unbounded and name in aggregate.measures:
            scale = binder.scales.get(name)
            if scale is None:
                continue
            kind = ColumnType(TypeName.NUMERIC, NUMERIC_PRECISION_MAX - 1, scale)
        values[None, name] = Typed(sql, kind, 0)
    over = _Binder(binder.relation, values)
    results = tuple(over.expression(one, target.column(one.name).type) for one in aggregate.results)
    looks = tuple(over.expression(one, target.column(one.name).type) for one in aggregate.looks)
    return aggregate.model_copy(update={"results": results, "looks": looks})


@dataclass
class _Binder:
    relation: Relation
    values: Mapping[_Name, Typed]
    scales: dict[str, int] = field(default_factory=dict[str, int])
    """The digits behind the point of each measure whose column has no precision."""

    def condition(self, one: E) -> E:
        return self._with(one, lambda scope, node: truth(scope.bind(node), "WHERE"))

    def expression(self, one: E, kind: ColumnType) -> E:
        return self._with(one, lambda scope, node: _value(scope.bind(node), node, kind))

    def measure(self, one: Value, kind: ColumnType) -> Value:
        """Give a measure its Spark text: a decimal, which is summed in two parts if it is long."""
        bound: list[ColumnType] = []

        def read(scope: Scope, node: exp.Expr) -> str:
            exact = _measure(scope.bind(node), kind)
            bound.append(exact.type or kind)
            return exact.sql

        found = self._with(one, read)
        if not bound:
            return found
        whole, scale = digits(bound[0])
        if kind.unbounded:
            self.scales[one.name] = scale
        return found.model_copy(update={"long_scale": scale if whole + scale > MEASURE_DIGITS_MAX else None})

    def _with(self, one: E, read: Callable[[Scope, exp.Expr], str]) -> E:
        text = f"select {one.sql}"
        tree = Tree(text, 0, len(text))
        try:
            (node,) = tree.root.expressions
            spark = read(_Scope(tree, self.relation, frozenset(), values=self.values), node)
        except (Invalid, NotFound) as error:
            return one.model_copy(update={"spark": None, "refusal": str(error)})
        except (SqlglotError, RecursionError, ValueError):
            return one.model_copy(update={"spark": None, "refusal": "Spark's planner does not read it"})
        return one.model_copy(update={"spark": spark, "refusal": None})


def _value(value: Typed, node: exp.Expr, to: ColumnType) -> str:
    """Return a value in exactly the type of its column. Raises Invalid."""
    if value.type is None:
        value = coerced(value, to)
    if value.type == to:
        return value.sql
    if to.unbounded and not to.array and _is_exact(value) and _uniform(_taken(node)):
        exact = coerced(value, NUMERIC)
        if exact.type is not None and digits(exact.type)[0] + digits(exact.type)[1] < NUMERIC_PRECISION_MAX:
            return f"cast({exact.sql} as string)"
    if _widens(value, to):
        return f"cast({value.sql} as {to.spark})"
    raise Invalid(f"Spark's value has type {value.type}, and the column {to}", position=value.position)


def _measure(value: Typed, to: ColumnType) -> Typed:
    """Return what a row contributes, as a decimal. Raises Invalid.

    A product may have more digits than a decimal. Spark fails if one has.
    """
    if not _is_exact(value):
        raise Invalid(f"Spark cannot sum a value of type {value.shown} exactly", position=value.position)
    exact = coerced(value, NUMERIC)
    assert exact.type is not None
    whole, scale = digits(exact.type)
    if scale > MEASURE_DIGITS_MAX:
        raise Invalid(
            f"Spark sums at most {MEASURE_DIGITS_MAX} digits behind the point exactly, and this number has {scale}",
            position=value.position,
        )
    if not (to.unbounded or _widens(value, to) or _widens(exact, to)):
        raise Invalid(f"Spark's value has type {value.type}, and the column {to}", position=value.position)
    kind = numeric(whole, scale)
    return replace(exact, sql=f"cast({exact.sql} as {kind.spark})", type=kind)


def _takes_text(node: exp.Expr) -> bool:
    """Whether an expression is passed on or compared."""
    while isinstance(node.parent, exp.Paren):
        node = node.parent
    return passed_on(node) or isinstance(node.parent, _COMPARING)


def _as_decimal(value: Typed) -> Typed:
    """Return a numeric without a precision as a decimal. Spark would round the digits that do not fit, so it fails."""
    return replace(value, sql=_DECIMAL.format(value.sql), type=_COMPUTED, column=None)


def _type_of(node: exp.Cast) -> ColumnType:
    try:
        return ColumnType.parse(node.args["to"].sql("postgres"))
    except ValueError as error:
        raise Invalid(str(error)) from None


def _is_exact(value: Typed) -> bool:
    return value.name in INTEGERS or (
        value.name is TypeName.NUMERIC and value.type is not None and not value.type.unbounded
    )


def _widens(value: Typed, to: ColumnType) -> bool:
    """Whether every value of an exact number is one of the column's type."""
    if to.array or to.unbounded or value.type is None or not _is_exact(value):
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


def _uniform(node: exp.Expr) -> bool:
    return all(isinstance(part, _UNIFORM) for part in node.walk())


def _taken(node: exp.Expr) -> exp.Expr:
    """Return the only value of `case when .. then value end` that is not NULL."""
    while True:
        if isinstance(node, exp.Paren) or (isinstance(node, exp.Cast) and _type_of(node).unbounded):
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
