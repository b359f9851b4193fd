"""Project and filter one upstream, as the Spark SQL of one epoch's job (the strategy *stateless*).

There are three selects. Each starts with the schema it needs and ends with the schema it promises: rows in wire types
-> rows in the upstream's Spark types -> marked, filtered and projected rows -> rows of the target in wire types. The
text is the same in every epoch, because epochs, positions and limits travel in the rows and in the tasks' closures.
"""

from dataclasses import dataclass
from typing import Final

from service.protocol.plan import Stateless
from service.protocol.relation import TRAVEL_PREFIX, Relation
from workers.backfill.order import POSITION_STATE, key_of, marked_spark, position_column
from workers.state_store.port import CONTROL, OPERATION, VNODE
from workers.state_store.wire import from_wire, ticked, to_wire, writes_binary

REPORT: Final = f"{TRAVEL_PREFIX}report"
"""The column of the control row that ends an actor's rows: the reader's report, as JSON."""


@dataclass(frozen=True, slots=True)
class StatelessPlan:
    """The selects of a view's job, in order. `kept` is the condition between the first and the second."""

    typed: tuple[str, ...]
    kept: str
    projected: tuple[str, ...]
    written: tuple[str, ...]


def plan(query: Stateless, upstream: Relation, target: Relation) -> StatelessPlan:
    """Return the selects. Rows pass `kept` if they are marked and satisfy the query; the control row always passes."""
    assert len(query.projection) == len(target.columns), (query, target)
    binary = writes_binary(target)
    predicate = "true" if query.predicate is None else f"coalesce({query.predicate}, false)"
    positions = [ticked(position_column(index)) for index in range(len(upstream.key))]
    carried = (ticked(OPERATION), ticked(VNODE), ticked(REPORT))
    return StatelessPlan(
        typed=(
            *carried,
            ticked(POSITION_STATE),
            *positions,
            *(f"{from_wire(column.name, column.type)} as {ticked(column.name)}" for column in upstream.columns),
        ),
        kept=f"{ticked(OPERATION)} = {CONTROL} or ({marked_spark(key_of(upstream))} and {predicate})",
        projected=(
            *carried,
            *(
                f"{_past_control(f'cast({expression} as {column.type.spark})')} as {ticked(column.name)}"
                for expression, column in zip(query.projection, target.columns, strict=True)
            ),
        ),
        written=(
            *carried,
            *(
                f"{to_wire(column.name, column.type, binary=binary)} as {ticked(column.name)}"
                for column in target.columns
            ),
        ),
    )


def _past_control(expression: str) -> str:
    """Skip the expression for the control row, whose columns are NULL: some expressions fail on NULLs."""
    return f"case when {ticked(OPERATION)} = {CONTROL} then null else {expression} end"
