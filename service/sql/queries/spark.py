"""Give the expressions of a finished stage their Spark SQL, where Spark means exactly the same (I12).

The tree of an expression is bound with the columns of all inputs. An expression that the binder refuses has no Spark
text, and keeps the reason. A value has exactly the type of its column.

A measure is an exact number, whose sums are exact however long it is. For other numbers see
`service.sql.queries.spark_scope`.

Spark fails where a number does not fit (I12). It never rounds one.

The text columns of relations are COLLATE "C", for which Postgres changes the case of ASCII letters alone.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.columns import NUMERIC_PRECISION_MAX, ColumnType, TypeName
from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Aggregate, Expression, Join, Partition, Stage, Value
from service.protocol.stage_spark import MEASURE_DIGITS_MAX, spark_column
from service.sql.expressions.operators import truth
from service.sql.expressions.scalar import Name, Scope
from service.sql.expressions.typed import (
    NUMERIC,
    Typed,
    coerced,
    digits,
    numeric,
    quoted_name,
)
from service.sql.queries.audit import audit
from service.sql.queries.drafts import Trees
from service.sql.queries.nodes import columns_of
from service.sql.queries.relations import ONE
from service.sql.queries.spark_parts import with_part_query
from service.sql.queries.spark_scope import StoreScope, is_exact, value_text, widens

E = TypeVar("E", bound=Expression)


def with_spark(stage: Stage, trees: Trees, relations: Mapping[RelationId, Relation], target: Relation) -> Stage:
    """Return the stage with the Spark texts of its expressions. `target` is the relation that it writes.

    It is idempotent. `service.protocol.stage_spark.spark_reason` tells whether all are there.
    """
    columns: dict[Name, Typed] = {
        (one.alias, column.name): Typed(quoted_name(spark_column(one.alias, column.name)), column.type, column=column)
        for one in stage.inputs
        for column in relations[one.relation].columns
        if "${" not in column.name
    }
    binder = _Binder(trees, columns)
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
            "partition": _with_part(stage, trees, relations, target),
        }
    )


def _with_part(
    stage: Stage, trees: Trees, relations: Mapping[RelationId, Relation], target: Relation
) -> Partition | None:
    partition, driver = stage.partition, stage.driver
    if partition is None:
        return None
    return with_part_query(partition, trees[partition.sql].copy(), driver.alias, relations[driver.relation], target)


def _joined(join: Join, binder: "_Binder", relations: Mapping[RelationId, Relation]) -> Join:
    inputs = tuple(
        one.model_copy(update={"single": [part.name for part in relations[one.relation].key] == [ONE]})
        for one in join.inputs
    )
    return join.model_copy(update={"inputs": inputs, "on": tuple(binder.condition(one) for one in join.on)})


def _with_results(aggregate: Aggregate, binder: "_Binder", target: Relation) -> Aggregate:
    """Bind the results over keys and sums, which are columns by their names."""
    values: dict[Name, Typed] = {}
    for name in (*aggregate.keys, *aggregate.measures):
        kind, sql = target.column(name).type, quoted_name(name)
        if kind.unbounded and name in aggregate.measures:
            scale = binder.scales.get(name)
            if scale is None:
                continue
            kind = ColumnType(TypeName.NUMERIC, NUMERIC_PRECISION_MAX - 1, scale)
        values[None, name] = Typed(sql, kind)
    over = _Binder(binder.trees, values)
    results = tuple(over.expression(one, target.column(one.name).type) for one in aggregate.results)
    looks = tuple(over.expression(one, target.column(one.name).type) for one in aggregate.looks)
    return aggregate.model_copy(update={"results": results, "looks": looks})


@dataclass
class _Binder:
    trees: Trees
    values: Mapping[Name, Typed]
    scales: dict[str, int] = field(default_factory=dict[str, int])
    """The digits behind the point of each measure whose column has no precision."""

    @cached_property
    def names(self) -> Collection[str]:
        """The columns that a text may name."""
        return {name if alias is None else spark_column(alias, name) for alias, name in self.values}

    def condition(self, one: E) -> E:
        return self._with(one, lambda scope, node: truth(scope.bind(node), "WHERE"))

    def expression(self, one: E, kind: ColumnType) -> E:
        return self._with(one, lambda scope, node: value_text(scope.bind(node), node, kind))

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
        node = standing(self.trees[one.sql])
        reads = tuple(dict.fromkeys(columns_of(node)))
        try:
            spark = read(StoreScope(self.values), node)
        except (Invalid, NotFound) as error:
            return one.model_copy(update={"spark": None, "refusal": str(error), "reads": reads})
        except (RecursionError, ValueError):
            return one.model_copy(update={"spark": None, "refusal": "Spark's planner does not read it", "reads": reads})
        audit(spark, self.names)
        return one.model_copy(update={"spark": spark, "refusal": None, "reads": reads})


def standing(node: exp.Expr) -> exp.Expr:
    """Return a copy of an expression that stands as a value of a SELECT, which some rules ask of its node."""
    return exp.Select(expressions=[node.copy()]).expressions[0]


def _measure(value: Typed, to: ColumnType) -> Typed:
    """Return what a row contributes, as a decimal. Raises Invalid.

    A product may have more digits than a decimal. Spark fails if one has.
    """
    if not is_exact(value):
        raise Invalid(f"Spark cannot sum a value of type {value.shown} exactly")
    exact = coerced(value, NUMERIC)
    assert exact.type is not None
    whole, scale = digits(exact.type)
    if scale > MEASURE_DIGITS_MAX:
        raise Invalid(
            f"Spark sums at most {MEASURE_DIGITS_MAX} digits behind the point exactly, and this number has {scale}",
        )
    if not (to.unbounded or widens(value, to) or widens(exact, to)):
        raise Invalid(f"Spark's value has type {value.type}, and the column {to}")
    kind = numeric(whole, scale)
    return replace(exact, sql=f"cast({exact.sql} as {kind.spark})", type=kind)
