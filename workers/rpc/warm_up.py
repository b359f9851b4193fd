"""Warm up a Spark session: run a scan of a few rows, whose result is discarded, when the worker starts.

The first job of a session pays for code generation, Arrow, forks and imports. The warm-up pays for them instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from typing_extensions import override

from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.ids import Epoch, RelationId, Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Condition, Input, Join, JoinKind, Stage, Value
from service.protocol.table_format import Capabilities
from service.protocol.vnodes import Runs
from workers.backfill.actors import ActorTask
from workers.backfill.positions import Block, PageSize
from workers.backfill.stages import BoundStage, Window
from workers.engines.port import ScanTask, StageTask
from workers.engines.spark import SparkProjection
from workers.state_store.port import CLOSE, LIVE, ArrowPage, VersionedStore, Written
from workers.state_store.wire import read_schema

_KINDS: Final = {
    "k": ColumnType(TypeName.BIGINT),
    "i": ColumnType(TypeName.INTEGER),
    "n": ColumnType(TypeName.NUMERIC, 12, 2),
    "t": ColumnType(TypeName.TEXT),
    "z": ColumnType(TypeName.TIMESTAMPTZ),
}
_RELATION: Final = Relation(
    id=RelationId(0),
    name="warming",
    kind=RelationKind.TABLE,
    columns=tuple(Column(name=name, type=kind, nullable=name != "k") for name, kind in _KINDS.items()),
    key=(KeyColumn(name="k"),),
)
_VALUES: Final = {"k": "i__k", "i": "i__i + 1", "n": "i__n", "t": "upper(i__t)", "z": "i__z"}
_STAGE: Final = Stage(
    joins=(Join(kind=JoinKind.INNER, inputs=(Input(alias="i", relation=_RELATION.id),)),),
    where=(Condition(sql="i > 0", spark="i__i > 0", inputs=("i",)),),
    rows=tuple(Value(name=name, sql=name, spark=spark) for name, spark in _VALUES.items()),
)
_BOUND: Final = BoundStage(_STAGE, _RELATION, {_RELATION.id: _RELATION})
_ROW: Final[Mapping[str, Any]] = {"_vnode": 0, "k": 1, "i": 2, "n": "1.25", "t": "text", "z": 0}
_VNODE: Final = VnodePosition(vnode=Vnode(0), state=PositionState.IN_PROGRESS, key=("1",), rows=1)
_TURNS: Final = 2


@dataclass(frozen=True, slots=True)
class _Handful(VersionedStore):
    """A store with two changes and a page of one row, which discards all writes."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    @override
    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        return ArrowPage((_row(relation),), {0: 1}, {0: ("1",)})

    @override
    def has_rows(self, relation: Relation, count: int, *, at: Epoch) -> bool:
        return True

    @override
    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        return True

    @override
    def read_changes(
        self, relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        for operation in (CLOSE, LIVE):
            yield operation, _row(relation)

    @override
    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        return Written(sum(batch.num_rows for batch in rows), 0)


def warm(spark: SparkSession, parallelism: int) -> None:
    """Run epochs of a scan with `parallelism` partitions."""
    engine = SparkProjection(spark, ScanTask(_Handful(), _BOUND, _RELATION))
    actor = ActorTask(runs=((0, 0),), positions=(_VNODE,), permits=None)
    for turn in range(1, _TURNS + 1):
        engine.run(
            StageTask(
                curr=Epoch(turn + 1),
                windows={_RELATION.id: Window(Epoch(turn), Epoch(turn + 1))},
                changed=frozenset({_RELATION.id}),
                at={_RELATION.id: Epoch(turn + 1)},
                actors=(actor,) * parallelism,
                slice_seconds=0,
                page_rows=1,
            )
        )


def _row(relation: Relation) -> pa.RecordBatch:
    schema = read_schema(relation)
    return pa.RecordBatch.from_arrays(
        [pa.array([_ROW[field.name]]).cast(field.type) for field in schema], schema=schema
    )
