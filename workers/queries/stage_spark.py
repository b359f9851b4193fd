"""Print a stage in Spark SQL: what rows of its driver give, with the whole of its other inputs. Pure.

The driver's rows come with control rows, which carry the reports of their readers in the column `REPORT` and must reach
the writers. They have NULLs in all other columns, and pass every join and every condition: an inner join is therefore
an outer one whose padded rows are dropped by the marker of the other side, and rows with and without a match are found
by a subquery in a condition. A group of control rows has their report as a further key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, zip_longest
from typing import Final

from service.protocol.columns import NUMERIC_PRECISION_MAX
from service.protocol.relation import TRAVEL_PREFIX, Relation
from service.protocol.stage import Aggregate, Condition, Join, JoinKind, Stage, Value, part_order
from service.protocol.stage_spark import MEASURE_DIGITS_MAX, in_order, spark_column
from service.protocol.vnodes import vnode_spark
from workers.backfill.stages import BoundStage
from workers.state_store.port import OPERATION, PAGE, VNODE
from workers.state_store.wire import from_wire, ticked, to_wire, writes_binary

REPORT: Final = f"{TRAVEL_PREFIX}report"
"""The column of the control row that ends an actor's rows: the reader's report, as JSON."""
_PASSES: Final = f"{ticked(REPORT)} is not null"


def used_columns(bound: BoundStage, aliases: Sequence[str]) -> Relation:
    """Return the relation of some inputs, all of one, with its key and the columns that the stage reads of them."""
    stage, relation = bound.stage, bound.of[aliases[0]]
    parts = () if stage.partition is None else (stage.partition,)
    texts = [one.spark or "" for one in (*stage.conditions, *stage.rows, *parts)]
    keys = {part.name for part in relation.key}
    for one in parts:
        keys |= {*one.columns, *part_order(relation, one)}
    columns = [
        column
        for column in relation.columns
        if column.name in keys
        or any(ticked(spark_column(alias, column.name)) in text for alias in aliases for text in texts)
    ]
    return relation.model_copy(update={"columns": tuple(columns)})


def driver_columns(bound: BoundStage, relation: Relation) -> list[str]:
    """Return the select of a reader's rows in wire types: report, vnode, and the driver's columns by their names."""
    return [ticked(REPORT), ticked(VNODE), *named_columns(bound.stage.driver.alias, relation, typed=False)]


def loaded_columns(relation: Relation) -> list[str]:
    """Return the select of the rows of a whole relation in wire types: vnode, and the columns in their Spark types."""
    columns = [f"{from_wire(column.name, column.type)} as {ticked(column.name)}" for column in relation.columns]
    return [ticked(VNODE), *columns]


def whole_driver_columns(alias: str, relation: Relation) -> list[str]:
    """Return the select of a driver from loaded rows: no report, vnode, and its columns by their names."""
    return [f"cast(null as string) as {ticked(REPORT)}", ticked(VNODE), *named_columns(alias, relation, typed=True)]


def input_columns(alias: str, relation: Relation) -> list[str]:
    """Return the select of an input from loaded rows: its columns by their names, and its marker."""
    return [*named_columns(alias, relation, typed=True), f"true as {_marker(alias)}"]


def named_columns(alias: str, relation: Relation, *, typed: bool) -> list[str]:
    """Return the select of an input's columns by their names among those of all inputs, from rows that are typed or in
    wire types.
    """
    return [
        f"{ticked(column.name) if typed else from_wire(column.name, column.type)}"
        f" as {ticked(spark_column(alias, column.name))}"
        for column in relation.columns
    ]


def written_columns(target: Relation) -> list[str]:
    """Return the select of a target's columns in the types in which they are written."""
    binary = writes_binary(target)
    return [f"{to_wire(one.name, one.type, binary=binary)} as {ticked(one.name)}" for one in target.columns]


def page_operation() -> str:
    """Print the operation of a row of history."""
    return f"cast({PAGE} as tinyint) as {ticked(OPERATION)}"


def _marker(alias: str) -> str:
    return ticked(f"{TRAVEL_PREFIX}met_{alias}")


@dataclass(frozen=True, slots=True)
class StageSelect:
    """The selects of a stage. Each input is a view that is named by its alias."""

    bound: BoundStage

    @property
    def stage(self) -> Stage:
        return self.bound.stage

    def written(self) -> str:
        """Print the rows of the target as a writer takes them, and the control rows."""
        columns = [page_operation(), ticked(VNODE), ticked(REPORT), *written_columns(self.bound.target)]
        return f"select {', '.join(columns)} from ({self.placed()})"

    def placed(self) -> str:
        """Print the rows of the target with their vnodes, and the control rows."""
        if not self.stage.distribution:
            return self.rows()
        vnode = self.vnode()
        columns = [ticked(one.name) for one in self.bound.target.columns]
        return f"select {ticked(REPORT)}, {vnode} as {ticked(VNODE)}, {', '.join(columns)} from ({self.rows()})"

    def vnode(self) -> str:
        """Print the vnode of a row of the target, from the columns that decide it."""
        target = self.bound.target
        columns = [(ticked(name), target.column(name).type) for name in self.stage.distribution]
        return vnode_spark(columns, target.vnode_count)

    def summed(self, rows: str | None = None) -> str:
        """Print the sums of the measures by group, each in its parts, and the control rows as groups.

        `rows` is a query of keys and measures in place of that of the stage.
        """
        sums = ", ".join(f"sum({part.value}) as {ticked(part.name)}" for part in chain.from_iterable(self._parts()))
        return self._grouped(sums, rows or self.rows())

    def sums_written(self, contributions: str | None = None) -> str:
        """Print the sums as they travel to the store, which adds the rows of a group: one for each part of a measure.

        Keys are texts where the store reads texts. See `summed` for `contributions`.
        """
        keys = [
            f"{to_wire(one, self.bound.target.column(one).type, binary=False)} as {ticked(one)}"
            for one in self._aggregate.keys
        ]
        measures = self._parts()
        texts = zip_longest(*(map(_shown, parts) for parts in measures), fillvalue="'0'")
        rows = [f"struct({', '.join(row)})" for row in texts]
        names = ", ".join(map(ticked, self._aggregate.measures))
        every = f"inline(if({_PASSES}, array({rows[0]}), array({', '.join(rows)}))) as ({names})"
        return f"select {', '.join([ticked(REPORT), *keys, every])} from ({self.summed(contributions)})"

    def held(self) -> str:
        """Print all rows that the target should hold, with their vnodes. The driver comes without control rows."""
        if self.stage.aggregate is None:
            return self.placed()
        aggregate = self._aggregate
        groups, first = self.summed(), ticked(aggregate.measures[0])
        groups = self._with_always(groups) if aggregate.always else f"select * from ({groups}) where {first} > 0"
        results = {one.name: one.spark for one in aggregate.results}
        columns = [
            f"cast({results.get(one.name) or ticked(one.name)} as {one.type.spark}) as {ticked(one.name)}"
            for one in self.bound.target.columns
        ]
        keys = ", ".join(map(ticked, (REPORT, *aggregate.keys)))
        totals = ", ".join(f"{_total(parts)} as {ticked(parts[0].name)}" for parts in self._parts())
        whole = f"select {keys}, {totals} from ({groups})"
        if aggregate.looks:
            looks = {one.name: one.spark for one in aggregate.looks}
            shown = [
                f"{looks.get(one) or ticked(one)} as {ticked(one)}" for one in (*aggregate.keys, *aggregate.measures)
            ]
            whole = f"select {', '.join([ticked(REPORT), *shown])} from ({whole})"
        named = f"select {', '.join([ticked(REPORT), *columns])} from ({whole})"
        return f"select *, {self.vnode()} as {ticked(VNODE)} from ({named})"

    def _with_always(self, groups: str) -> str:
        constants = {one.name: one.spark for one in self.stage.rows}
        values = [f"{constants[key]}" for key in self._aggregate.keys]
        names = [part.name for part in chain.from_iterable(self._parts())]
        sums = ", ".join(f"sum({ticked(one)}) as {ticked(one)}" for one in names)
        zeros = ["0"] * len(names)
        return self._grouped(sums, f"{groups} union all select {', '.join(['null', *values, *zeros])}")

    def _grouped(self, sums: str, rows: str) -> str:
        keys = ", ".join(map(ticked, (REPORT, *self._aggregate.keys)))
        return f"select {keys}, {sums} from ({rows}) group by {keys}"

    @property
    def _aggregate(self) -> Aggregate:
        assert self.stage.aggregate is not None
        return self.stage.aggregate

    def _parts(self) -> "list[tuple[_Part, ...]]":
        """Return the parts of each measure."""
        values = {one.name: one for one in self.stage.rows}
        return [_parts(values[one]) for one in self._aggregate.measures]

    def rows(self) -> str:
        """Print the values of all combinations, by the names of `rows`, and the control rows."""
        driver = [] if self.stage.distribution or self.stage.aggregate else [ticked(VNODE)]
        values = [f"{_unless_control(one.spark)} as {ticked(one.name)}" for one in self.stage.rows]
        where = self.stage.where
        kept = f" where {_PASSES} or ({all_of(where)})" if where else ""
        return f"select {', '.join([ticked(REPORT), *driver, *values])} from ({self._joined()}){kept}"

    def _joined(self) -> str:
        core, *attached = self.stage.joins
        text = ""
        for alias, on in in_order(core, ()):
            if not text:
                own = f" where {_PASSES} or ({all_of(on)})" if on else ""
                text = f"select * from {ticked(alias)}{own}"
            else:
                met = f"where {_PASSES} or {_marker(alias)}"
                text = f"select * from ({text}) left join {ticked(alias)} on {_no_control(on)} {met}"
        for join in attached:
            text = self._attached(text, join)
        return text

    def _attached(self, text: str, join: Join) -> str:
        inside = {one.alias for one in join.inputs}
        on = [one for one in join.on if not inside.issuperset(one.inputs)]
        group = self._group(join)
        match join.kind:
            case JoinKind.LEFT:
                return f"select * from ({text}) left join ({group}) on {_no_control(on)}"
            case JoinKind.INNER:
                met = f"where {_PASSES} or {_marker(join.inputs[0].alias)}"
                return f"select * from ({text}) left join ({group}) on {_no_control(on)} {met}"
            case JoinKind.SEMI:
                return f"select * from ({text}) where {_PASSES} or exists (select 1 from ({group}) where {all_of(on)})"
            case JoinKind.ANTI:
                meets = f"exists (select 1 from ({group}) where {all_of(on)})"
                return f"select * from ({text}) where {_PASSES} or not {meets}"

    def _group(self, join: Join) -> str:
        """Print the inputs of a group, joined with each other."""
        before = {one.alias for each in self.stage.joins[: self.stage.joins.index(join)] for one in each.inputs}
        text = ""
        for alias, on in in_order(join, before):
            if text:
                text = f"select * from ({text}) join {ticked(alias)} on {all_of(on)}"
            else:
                text = f"select * from {ticked(alias)}{f' where {all_of(on)}' if on else ''}"
        return text


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


def _no_control(conditions: Sequence[Condition]) -> str:
    return f"{ticked(REPORT)} is null and {all_of(conditions)}"


def _unless_control(expression: str | None) -> str:
    """Skip an expression for control rows: some fail on NULLs."""
    return f"case when {_PASSES} then null else {expression} end"
