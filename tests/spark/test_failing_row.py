"""N7a: the row that a query cannot transform is found among those of an epoch, and everybody waits for that (I13)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from service.protocol.ids import Epoch, RelationId, Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import RelationKind
from service.protocol.table_format import Capabilities
from tests.support.projections import bound_projection
from tests.support.sampling import sampled
from tests.support.state_store import relation
from workers.backfill.actors import ActorTask
from workers.backfill.stages import Window
from workers.engines import failing_row
from workers.engines.failing_row import find_failing_row
from workers.engines.port import ScanTask, StageTask
from workers.spark.frames import run_frame
from workers.state_store.port import CLOSE, LIVE, VNODE
from workers.state_store.wire import read_schema

pytestmark = pytest.mark.spark

UPSTREAM = relation(1, "t", {"id": "integer", "v": "integer"})
VIEW = UPSTREAM.model_copy(update={"id": RelationId(2), "name": "m", "kind": RelationKind.MATERIALIZED_VIEW})
COMPLETED = VnodePosition(vnode=Vnode(0), state=PositionState.COMPLETED, rows=2000)
ROWS = 2000


@dataclass(frozen=True)
class Changed:
    """A store in which every row was set to `values`."""

    values: tuple[int, ...]
    capabilities = Capabilities()

    def read_changes(self, *_: object, **_more: object) -> Iterator[tuple[int, pa.RecordBatch]]:
        for operation, values in ((CLOSE, [1] * ROWS), (LIVE, self.values)):
            rows = [{VNODE: 0, "id": key, "v": value} for key, value in enumerate(values)]
            yield operation, pa.RecordBatch.from_pylist(rows, schema=read_schema(UPSTREAM))


@pytest.mark.parametrize("bad", sampled([{0}, {1234}, {7, 8}, set[int](), {ROWS - 1}], share=5))
def test_n7a_the_row_is_found_with_one_plan_and_a_job_for_each_half(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, bad: set[int]
) -> None:
    frames: list[object] = []

    def counted(frame: Any, task: Any) -> list[str]:
        frames.append(frame)
        return run_frame(frame, task)

    monkeypatch.setattr(failing_row, "run_frame", counted)
    bound = bound_projection(UPSTREAM, VIEW, ("{id}", "10 div {v}"))
    store = Changed(tuple(0 if key in bad else 2 for key in range(ROWS)))
    actor = ActorTask(runs=((0, UPSTREAM.vnode_count - 1),), positions=(COMPLETED,), permits=0)
    task = StageTask(
        curr=Epoch(9),
        windows={UPSTREAM.id: Window(Epoch(8), Epoch(9))},
        changed=frozenset({UPSTREAM.id}),
        at={UPSTREAM.id: Epoch(9)},
        actors=(actor,),
        page_rows=10,
    )
    scan = ScanTask(cast("Any", store), bound, UPSTREAM)
    found = find_failing_row(spark, scan, task, 120.0)
    assert found in ({f"(id) = ({key})" for key in bad} or {None})
    assert len(set(map(id, frames))) == 1
    assert len(frames) <= 1 + ROWS.bit_length()
