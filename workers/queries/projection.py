"""Print a projection, a stage that computes each row from one row of its driver, as the Spark SQL of a job.

There are three selects. Each starts with the schema it needs and ends with the schema it promises: rows in wire types
-> marked and filtered rows in Spark's types -> projected rows -> rows of the target in wire types. The text is the same
in every epoch, because epochs, positions and limits travel in the rows and in the tasks' closures.
"""

from dataclasses import dataclass, replace

from service.protocol.relation import Relation
from service.protocol.stage_spark import spark_column
from workers.backfill.order import POSITION_STATE, key_of, marked_spark, position_column
from workers.backfill.stages import BoundStage
from workers.queries.stage_spark import StageSelect, all_of, named_columns, written_columns
from workers.state_store.port import OPERATION, VNODE
from workers.state_store.wire import ticked


@dataclass(frozen=True, slots=True)
class ProjectionPlan:
    """The selects of a projection's job, in order. `kept` is the condition between the first and the second."""

    typed: tuple[str, ...]
    kept: str
    projected: tuple[str, ...]
    vnode: str
    """The vnode of a projected row."""
    written: tuple[str, ...]


def projection_plan(bound: BoundStage, upstream: Relation, *, wire: bool = True) -> ProjectionPlan:
    """Return the selects over the columns of `upstream` that the stage reads.

    Rows pass `kept` if they are marked and satisfy the query. Without `wire` they are written in their Spark types.
    """
    stage, target = bound.stage, bound.target
    assert stage.is_projection
    alias = stage.driver.alias
    positions = [ticked(position_column(index)) for index in range(len(upstream.key))]
    carried = (ticked(OPERATION), ticked(VNODE))
    key = [replace(part, name=spark_column(alias, part.name)) for part in key_of(upstream)]
    values = {one.name: str(one.spark) for one in stage.rows}
    vnode = StageSelect(bound).placing(wire=wire)
    return ProjectionPlan(
        typed=(*carried, ticked(POSITION_STATE), *positions, *named_columns(alias, upstream, typed=False)),
        kept=f"{marked_spark(key)} and {all_of(stage.conditions)}",
        projected=(
            *carried,
            *(f"cast({values[one.name]} as {one.type.spark}) as {ticked(one.name)}" for one in target.columns),
        ),
        vnode=vnode,
        written=(ticked(OPERATION), vnode, *written_columns(target, wire=wire)),
    )
