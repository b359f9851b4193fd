"""Print a stage in Spark SQL: what rows of its driver give, with the whole of its other inputs. Pure.

The driver's rows come with control rows, which carry the reports of their readers in the column `REPORT` and must reach
the writers. They have NULLs in all other columns, and pass every join and every condition: an inner join is therefore
an outer one whose padded rows are dropped by the marker of the other side, and rows with and without a match are found
by a subquery in a condition. A group of control rows has their report as a further key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.relation import TRAVEL_PREFIX, Relation
from service.protocol.stage import Condition, Join, JoinKind, Stage
from service.protocol.stage_spark import in_order, spark_column
from service.protocol.vnodes import vnode_spark
from workers.backfill.stages import BoundStage
from workers.queries.stateless import REPORT
from workers.state_store.port import OPERATION, PAGE, VNODE
from workers.state_store.wire import from_wire, ticked, to_wire, writes_binary

_PASSES: Final = f"{ticked(REPORT)} is not null"


def used_columns(bound: BoundStage, aliases: Sequence[str]) -> Relation:
    """Return the relation of some inputs, all of one, with its key and the columns that the stage reads of them."""
    stage, relation = bound.stage, bound.of[aliases[0]]
    texts = [one.spark or "" for one in (*stage.conditions, *stage.rows)]
    keys = {part.name for part in relation.key}
    columns = [
        column
        for column in relation.columns
        if column.name in keys
        or any(ticked(spark_column(alias, column.name)) in text for alias in aliases for text in texts)
    ]
    return relation.model_copy(update={"columns": tuple(columns)})


def driver_columns(bound: BoundStage, relation: Relation) -> list[str]:
    """Return the select of a reader's rows in wire types: report, vnode, and the driver's columns by their names."""
    return [ticked(REPORT), ticked(VNODE), *_named(bound.stage.driver.alias, relation, typed=False)]


def loaded_columns(relation: Relation) -> list[str]:
    """Return the select of the rows of a whole relation in wire types: vnode, and the columns in their Spark types."""
    columns = [f"{from_wire(column.name, column.type)} as {ticked(column.name)}" for column in relation.columns]
    return [ticked(VNODE), *columns]


def whole_driver_columns(alias: str, relation: Relation) -> list[str]:
    """Return the select of a driver from loaded rows: no report, vnode, and its columns by their names."""
    return [f"cast(null as string) as {ticked(REPORT)}", ticked(VNODE), *_named(alias, relation, typed=True)]


def input_columns(alias: str, relation: Relation) -> list[str]:
    """Return the select of an input from loaded rows: its columns by their names, and its marker."""
    return [*_named(alias, relation, typed=True), f"true as {_marker(alias)}"]


def _named(alias: str, relation: Relation, *, typed: bool) -> list[str]:
    return [
        f"{ticked(column.name) if typed else from_wire(column.name, column.type)}"
        f" as {ticked(spark_column(alias, column.name))}"
        for column in relation.columns
    ]


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
        target, binary = self.bound.target, writes_binary(self.bound.target)
        columns = [f"{to_wire(one.name, one.type, binary=binary)} as {ticked(one.name)}" for one in target.columns]
        operation = f"cast({PAGE} as tinyint) as {ticked(OPERATION)}"
        return f"select {', '.join([operation, ticked(VNODE), ticked(REPORT), *columns])} from ({self.placed()})"

    def placed(self) -> str:
        """Print the rows of the target with their vnodes, and the control rows."""
        if not self.stage.distribution:
            return self.rows()
        vnode = self._vnode()
        columns = [ticked(one.name) for one in self.bound.target.columns]
        return f"select {ticked(REPORT)}, {vnode} as {ticked(VNODE)}, {', '.join(columns)} from ({self.rows()})"

    def _vnode(self) -> str:
        target = self.bound.target
        columns = [(ticked(name), target.column(name).type) for name in self.stage.distribution]
        return vnode_spark(columns, target.vnode_count)

    def summed(self) -> str:
        """Print the sums of the measures by group, and the control rows as groups."""
        aggregate = self.stage.aggregate
        assert aggregate is not None
        keys = ", ".join(map(ticked, aggregate.keys))
        sums = ", ".join(f"sum({ticked(one)}) as {ticked(one)}" for one in aggregate.measures)
        return f"select {ticked(REPORT)}, {keys}, {sums} from ({self.rows()}) group by {ticked(REPORT)}, {keys}"

    def sums_written(self) -> str:
        """Print the sums as they travel to the store: keys as texts where the store reads texts."""
        aggregate, target = self.stage.aggregate, self.bound.target
        assert aggregate is not None
        keys = [f"{to_wire(one, target.column(one).type, binary=False)} as {ticked(one)}" for one in aggregate.keys]
        columns = [ticked(REPORT), *keys, *map(ticked, aggregate.measures)]
        return f"select {', '.join(columns)} from ({self.summed()})"

    def held(self) -> str:
        """Print all rows that the target should hold, with their vnodes. The driver comes without control rows."""
        aggregate, target = self.stage.aggregate, self.bound.target
        if aggregate is None:
            return self.placed()
        groups, first = self.summed(), ticked(aggregate.measures[0])
        groups = self._with_always(groups) if aggregate.always else f"select * from ({groups}) where {first} > 0"
        results = {one.name: one.spark for one in aggregate.results}
        columns = [
            f"cast({results.get(one.name) or ticked(one.name)} as {one.type.spark}) as {ticked(one.name)}"
            for one in target.columns
        ]
        named = f"select {', '.join([ticked(REPORT), *columns])} from ({groups})"
        return f"select *, {self._vnode()} as {ticked(VNODE)} from ({named})"

    def _with_always(self, groups: str) -> str:
        aggregate = self.stage.aggregate
        assert aggregate is not None
        constants = {one.name: one.spark for one in self.stage.rows}
        keys = ", ".join(map(ticked, aggregate.keys))
        values = ", ".join(f"{constants[key]}" for key in aggregate.keys)
        zeros = ", ".join(["0"] * len(aggregate.measures))
        sums = ", ".join(f"sum({ticked(one)}) as {ticked(one)}" for one in aggregate.measures)
        every = f"{groups} union all select null, {values}, {zeros}"
        return f"select {ticked(REPORT)}, {keys}, {sums} from ({every}) group by {ticked(REPORT)}, {keys}"

    def rows(self) -> str:
        """Print the values of all combinations, by the names of `rows`, and the control rows."""
        driver = [] if self.stage.distribution or self.stage.aggregate else [ticked(VNODE)]
        values = [f"{_unless_control(one.spark)} as {ticked(one.name)}" for one in self.stage.rows]
        where = self.stage.where
        kept = f" where {_PASSES} or ({_all(where)})" if where else ""
        return f"select {', '.join([ticked(REPORT), *driver, *values])} from ({self._joined()}){kept}"

    def _joined(self) -> str:
        core, *attached = self.stage.joins
        text = ""
        for alias, on in in_order(core, ()):
            if not text:
                own = f" where {_PASSES} or ({_all(on)})" if on else ""
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
                return f"select * from ({text}) where {_PASSES} or exists (select 1 from ({group}) where {_all(on)})"
            case JoinKind.ANTI:
                meets = f"exists (select 1 from ({group}) where {_all(on)})"
                return f"select * from ({text}) where {_PASSES} or not {meets}"

    def _group(self, join: Join) -> str:
        """Print the inputs of a group, joined with each other."""
        before = {one.alias for each in self.stage.joins[: self.stage.joins.index(join)] for one in each.inputs}
        text = ""
        for alias, on in in_order(join, before):
            if text:
                text = f"select * from ({text}) join {ticked(alias)} on {_all(on)}"
            else:
                text = f"select * from {ticked(alias)}{f' where {_all(on)}' if on else ''}"
        return text


def _all(conditions: Sequence[Condition]) -> str:
    # Spark takes `where (x)` behind a table for an alias with a list of columns.
    return " and ".join(["true", *(f"({one.spark})" for one in conditions)])


def _no_control(conditions: Sequence[Condition]) -> str:
    return f"{ticked(REPORT)} is null and {_all(conditions)}"


def _unless_control(expression: str | None) -> str:
    """Skip an expression for control rows: some fail on NULLs."""
    return f"case when {_PASSES} then null else {expression} end"
