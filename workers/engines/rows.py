"""The rows between a reader and Spark: operation, position, then the upstream's row in its wire types."""

from typing import Any

import pyarrow as pa

from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import Relation
from workers.backfill.order import COMPLETED, IN_PROGRESS, NOT_STARTED, POSITION_STATE, position_column
from workers.backfill.positions import Positions
from workers.state_store.port import OPERATION, VNODE
from workers.state_store.wire import read_schema


def input_schema(upstream: Relation) -> pa.Schema:
    """Return the schema of a reader's rows: operation, position, then the upstream's row in its wire types."""
    positions = [pa.field(position_column(index), pa.string()) for index in range(len(upstream.key))]
    return pa.schema(
        [
            pa.field(OPERATION, pa.int8()),
            pa.field(POSITION_STATE, pa.int8()),
            *positions,
            *read_schema(upstream),
        ]
    )


class PositionColumns:
    """Adds to each change the position of its vnode, as columns."""

    def __init__(self, positions: Positions, parts: int) -> None:
        vnodes = range(1 + max(last for _, last in positions.runs))
        known = [positions.by_vnode.get(vnode) for vnode in vnodes]
        self._states = pa.array([_state(position) for position in known], pa.int8())
        self._parts = [
            pa.array([position.key[part] if position and position.key else None for position in known], pa.string())
            for part in range(parts)
        ]

    def of(self, batch: pa.RecordBatch) -> "list[pa.Array[Any]]":
        """Return the columns for the rows of `batch`, in the order of `input_schema`."""
        vnodes = batch.column(VNODE)
        return [self._states.take(vnodes), *(part.take(vnodes) for part in self._parts)]


def _state(position: VnodePosition | None) -> int:
    if position is None:
        return NOT_STARTED
    return COMPLETED if position.state is PositionState.COMPLETED else IN_PROGRESS


def row_batch(
    schema: pa.Schema, operation: int, batch: pa.RecordBatch, beside: "list[pa.Array[Any]] | None"
) -> pa.RecordBatch:
    """Return rows in the schema of a reader. `beside` holds the position columns; None for rows without marking."""
    count = batch.num_rows
    if beside is None:
        # A page row needs no marking, because its own read advances the position past it.
        parts = len(schema) - 2 - batch.num_columns
        beside = [repeated(COMPLETED, count), *(pa.nulls(count, pa.string()) for _ in range(parts))]
    columns = [repeated(operation, count), *beside, *batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def repeated(value: int, count: int) -> "pa.Array[Any]":
    """Return an int8 column that repeats `value`."""
    return pa.repeat(pa.scalar(value, pa.int8()), count)


def actor_indexes(batch: pa.RecordBatch) -> list[int]:
    """Return the actors that a partition of `spark.range` stands for."""
    return [int(index) for index in batch.column(0).to_pylist() if index is not None]
