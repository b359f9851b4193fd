"""Print a projection, a stage that computes each row from one row of its driver, as the Spark SQL of a job.

There are three selects. Each starts with the schema it needs and ends with the schema it promises: rows in wire types
-> marked and filtered rows in Spark's types -> projected rows -> rows of the target in wire types. The text is the same
in every epoch, because epochs, positions and limits travel in the rows and in the tasks' closures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.protocol.relation import TRAVEL_PREFIX, Relation
from service.protocol.stage import Condition, Stage
from service.protocol.stage_spark import spark_column
from service.protocol.vnodes import vnode_spark
from workers.backfill.order import POSITION_STATE, key_of, marked_spark, position_column
from workers.backfill.stages import BoundStage
from workers.state_store.port import CONTROL, OPERATION, VNODE
from workers.state_store.wire import from_wire, ticked, to_wire, writes_binary

REPORT: Final = f"{TRAVEL_PREFIX}report"
"""The column of the control row that ends an actor's rows: the reader's report, as JSON."""
_CONTROLS: Final = f"{ticked(OPERATION)} = {CONTROL}"


@dataclass(frozen=True, slots=True)
class ProjectionPlan:
    """The selects of a projection's job, in order. `kept` is the condition between the first and the second."""

    typed: tuple[str, ...]
    kept: str
    projected: tuple[str, ...]
    vnode: str
    """The vnode of a projected row."""
    written: tuple[str, ...]


def projection_plan(bound: BoundStage, upstream: Relation) -> ProjectionPlan:
    """Return the selects over the columns of `upstream` that the stage reads.

    Rows pass `kept` if they are marked and satisfy the query; the control row always passes.
    """
    stage, target = bound.stage, bound.target
    assert stage.is_projection
    alias, binary = stage.driver.alias, writes_binary(target)
    positions = [ticked(position_column(index)) for index in range(len(upstream.key))]
    carried = (ticked(OPERATION), ticked(VNODE), ticked(REPORT))
    key = [replace(part, name=spark_column(alias, part.name)) for part in key_of(upstream)]
    values = {one.name: str(one.spark) for one in stage.rows}
    return ProjectionPlan(
        typed=(
            *carried,
            ticked(POSITION_STATE),
            *positions,
            *(
                f"{from_wire(column.name, column.type)} as {ticked(spark_column(alias, column.name))}"
                for column in upstream.columns
            ),
        ),
        kept=f"{_CONTROLS} or ({marked_spark(key)} and coalesce({_all_of(stage.conditions)}, false))",
        projected=(
            *carried,
            *(
                f"{_past_control(f'cast({values[column.name]} as {column.type.spark})')} as {ticked(column.name)}"
                for column in target.columns
            ),
        ),
        vnode=(vnode := _vnode(stage, target)),
        written=(
            ticked(OPERATION),
            vnode,
            ticked(REPORT),
            *(
                f"{to_wire(column.name, column.type, binary=binary)} as {ticked(column.name)}"
                for column in target.columns
            ),
        ),
    )


def _vnode(stage: Stage, target: Relation) -> str:
    """Print the vnode of a row of the target: that of its driver's row, or one computed from the columns that decide.

    A control row has none.
    """
    if not stage.distribution:
        return ticked(VNODE)
    columns = [(ticked(name), target.column(name).type) for name in stage.distribution]
    return f"{_past_control(vnode_spark(columns, target.vnode_count))} as {ticked(VNODE)}"


def _all_of(conditions: Sequence[Condition]) -> str:
    return " and ".join(["true", *(f"({one.spark})" for one in conditions)])


def _past_control(expression: str) -> str:
    """Skip the expression for the control row, whose columns are NULL: some expressions fail on NULLs."""
    return f"case when {_CONTROLS} then null else {expression} end"
