"""Print the parts of a stage in Spark SQL: its columns, vnodes, sums of groups and results. Pure.

Joins, conditions and values are frames (`workers.engines.stage_joins`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, product, zip_longest

from service.protocol.columns import NUMERIC_PRECISION_MAX
from service.protocol.relation import Relation
from service.protocol.stage import Aggregate, Condition, Value, part_order
from service.protocol.stage_spark import MEASURE_DIGITS_MAX, spark_column
from service.protocol.vnodes import vnode_spark
from workers.backfill.stages import BoundStage
from workers.state_store.port import OPERATION, PAGE, VNODE
from workers.state_store.wire import from_wire, ticked, to_wire, writes_binary


def used_columns(bound: BoundStage, aliases: Sequence[str]) -> Relation:
    """Return the relation of some inputs, all of one, with its key and the columns that the stage reads of them."""
    stage, relation = bound.stage, bound.of[aliases[0]]
    parts = () if stage.partition is None else (stage.partition,)
    names = {part.name for part in relation.key}
    for one in parts:
        names |= {*one.columns, *part_order(relation, one)}
    for one in (*stage.conditions, *stage.rows, *parts):
        # A stage that was planned before its reads were recorded may read every column.
        reads = product(aliases, [column.name for column in relation.columns]) if one.reads is None else one.reads
        names |= {name for alias, name in reads if alias in aliases}
    columns = tuple(column for column in relation.columns if column.name in names)
    return relation.model_copy(update={"columns": columns})


def loaded_columns(relation: Relation) -> list[str]:
    """Return the select of the rows of a whole relation in wire types: vnode, and the columns in their Spark types."""
    columns = [f"{from_wire(column.name, column.type)} as {ticked(column.name)}" for column in relation.columns]
    return [ticked(VNODE), *columns]


def named_columns(alias: str, relation: Relation, *, typed: bool) -> list[str]:
    """Return the select of an input's columns by their names among those of all inputs, from rows that are typed or in
    wire types.
    """
    return [
        f"{ticked(column.name) if typed else from_wire(column.name, column.type)}"
        f" as {ticked(spark_column(alias, column.name))}"
        for column in relation.columns
    ]


def written_columns(target: Relation, *, wire: bool = True) -> list[str]:
    """Return the select of a target's columns in the types in which they are written: without `wire` Spark's own."""
    if not wire:
        return [ticked(one.name) for one in target.columns]
    binary = writes_binary(target)
    return [f"{to_wire(one.name, one.type, binary=binary)} as {ticked(one.name)}" for one in target.columns]


def page_operation() -> str:
    """Print the operation of a row of history."""
    return f"cast({PAGE} as tinyint) as {ticked(OPERATION)}"


@dataclass(frozen=True, slots=True)
class StageSelect:
    """The selects of a stage over its rows, which are a query or a view."""

    bound: BoundStage

    def vnode(self) -> str:
        """Print the vnode of a row of the target, from the columns that decide it."""
        target = self.bound.target
        columns = [(ticked(name), target.column(name).type) for name in self.bound.stage.distribution]
        return vnode_spark(columns, target.vnode_count)

    def placed(self) -> list[str]:
        """Return the select of the target's columns, with the vnode of each row."""
        return [self.placing(), *(ticked(one.name) for one in self.bound.target.columns)]

    def placing(self, *, wire: bool = True) -> str:
        """Print the vnode of each row as `VNODE`. Without `wire` a sink takes the rows, and has no vnodes: to compute
        them takes as long as a join.
        """
        if not wire:
            return f"cast(0 as smallint) as {ticked(VNODE)}"
        return f"{self.vnode()} as {ticked(VNODE)}" if self.bound.stage.distribution else ticked(VNODE)

    def summed(self, rows: str) -> str:
        """Print the sums of the measures by group, each in its parts."""
        sums = ", ".join(f"sum({part.value}) as {ticked(part.name)}" for part in chain.from_iterable(self._parts()))
        return self._grouped(sums, rows)

    def sums_written(self, rows: str) -> str:
        """Print the sums as they travel to the store, which adds the rows of a group: one for each part of a measure.

        Keys are texts where the store reads texts.
        """
        keys = [
            f"{to_wire(one, self.bound.target.column(one).type, binary=False)} as {ticked(one)}"
            for one in self._aggregate.keys
        ]
        texts = zip_longest(*(map(_shown, parts) for parts in self._parts()), fillvalue="'0'")
        each = ", ".join(f"struct({', '.join(row)})" for row in texts)
        names = ", ".join(map(ticked, self._aggregate.measures))
        return f"select {', '.join([*keys, f'inline(array({each})) as ({names})'])} from ({self.summed(rows)})"

    def totals(self, rows: str) -> str:
        """Print the sum of each measure by group. The group that is always there is among them."""
        groups = self.summed(rows)
        if self._aggregate.always:
            groups = self._with_always(groups)
        keys = ", ".join(map(ticked, self._aggregate.keys))
        sums = ", ".join(f"{_total(parts)} as {ticked(parts[0].name)}" for parts in self._parts())
        return f"select {keys}, {sums} from ({groups})"

    def results(self, totals: str) -> str:
        """Print the rows of the target from its groups: those that have a row."""
        aggregate = self._aggregate
        groups = totals if aggregate.always else f"select * from ({totals}) where {ticked(aggregate.measures[0])} > 0"
        results = {one.name: one.spark for one in aggregate.results}
        columns = [
            f"cast({results.get(one.name) or ticked(one.name)} as {one.type.spark}) as {ticked(one.name)}"
            for one in self.bound.target.columns
        ]
        if aggregate.looks:
            looks = {one.name: one.spark for one in aggregate.looks}
            shown = [f"{looks.get(one) or ticked(one)} as {ticked(one)}" for one in aggregate.state]
            groups = f"select {', '.join(shown)} from ({groups})"
        return f"select {', '.join(columns)} from ({groups})"

    def _with_always(self, groups: str) -> str:
        constants = {one.name: one.spark for one in self.bound.stage.rows}
        values = [f"{constants[key]}" for key in self._aggregate.keys]
        names = [part.name for part in chain.from_iterable(self._parts())]
        sums = ", ".join(f"sum({ticked(one)}) as {ticked(one)}" for one in names)
        zeros = ["0"] * len(names)
        return self._grouped(sums, f"{groups} union all select {', '.join([*values, *zeros])}")

    def _grouped(self, sums: str, rows: str) -> str:
        keys = ", ".join(map(ticked, self._aggregate.keys))
        return f"select {keys}, {sums} from ({rows}) group by {keys}"

    @property
    def _aggregate(self) -> Aggregate:
        assert self.bound.stage.aggregate is not None
        return self.bound.stage.aggregate

    def _parts(self) -> "list[tuple[_Part, ...]]":
        """Return the parts of each measure."""
        values = {one.name: one for one in self.bound.stage.rows}
        return [_parts(values[one]) for one in self._aggregate.measures]


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the sums in Spark that make up a measure: the sum of `value`, times a power of ten."""

    name: str
    value: str
    exponent: int


def _parts(measure: Value) -> tuple[_Part, ...]:
    """Return the parts of a measure. A long one has its last digits in one part and the others in a second one."""
    column, scale = ticked(measure.name), measure.long_scale
    if scale is None:
        return (_Part(measure.name, column, 0),)
    exponent = MEASURE_DIGITS_MAX - scale
    last = f"({column} % {_ten(exponent)})"
    return (
        _Part(measure.name, f"cast({last} as decimal({MEASURE_DIGITS_MAX},{scale}))", 0),
        _Part(
            f"{measure.name}_high",
            f"cast(({column} - {last}) * {_ten(-exponent)} as decimal({NUMERIC_PRECISION_MAX - MEASURE_DIGITS_MAX},0))",
            exponent,
        ),
    )


def _shown(part: _Part) -> str:
    """Print the text of a sum, which Postgres reads."""
    text = f"cast({ticked(part.name)} as string)"
    return text if part.exponent == 0 else f"concat({text}, 'e{part.exponent}')"


def _total(parts: tuple[_Part, ...]) -> str:
    """Print the sum of all parts. Spark fails if it is too long for a decimal."""
    return " + ".join(
        ticked(part.name) if part.exponent == 0 else f"{ticked(part.name)} * {_ten(part.exponent)}" for part in parts
    )


def _ten(exponent: int) -> str:
    return f"{Decimal(1).scaleb(exponent):f}BD"


def all_of(conditions: Sequence[Condition]) -> str:
    """Print the condition that all of some conditions hold."""
    # Spark takes `where (x)` behind a table for an alias with a list of columns.
    return " and ".join(["true", *(f"({one.spark})" for one in conditions)])
