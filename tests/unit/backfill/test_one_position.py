"""What a task of a NoShuffle scan asks of the store: one vnode at a time, from where the actor stands."""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import pytest

from service.protocol.ids import Epoch, Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.table_format import POSTGRES
from tests.support.key_shapes import SHAPES
from tests.support.projections import bound_projection
from workers.backfill.actors import ActorTask
from workers.backfill.positions import BLOCK_VNODES, ONE_VNODE, Block, PageSize
from workers.backfill.stages import Window
from workers.engines.port import ScanTask, StageTask
from workers.engines.spark import read_rows
from workers.state_store.port import ArrowPage, VersionedStore

UPSTREAM = SHAPES[0].relation
BOUND = bound_projection(UPSTREAM, UPSTREAM)
ROWS = 5
"""So many of each vnode are left."""


@dataclass
class Counted:
    """A store whose pages are only counted."""

    capabilities: ClassVar = POSTGRES

    blocks: list[list[int]] = field(default_factory=list[list[int]])
    left: dict[int, int] = field(default_factory=dict[int, int])

    def read_page(self, _relation: object, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        assert at == Epoch(2)
        self.blocks.append([span.vnode for span in block])
        rows = dict.fromkeys((span.vnode for span in block), 0)
        for vnode in rows:
            left = self.left.get(vnode, ROWS)
            rows[vnode] = min(left, size.rows - sum(rows.values()))
            self.left[vnode] = left - rows[vnode]
        end = None if sum(rows.values()) < size.rows else (str(len(self.blocks)),)
        return ArrowPage((), rows, dict.fromkeys(rows, end))


@pytest.mark.parametrize(
    ("block_vnodes", "blocks", "in_progress"),
    [(ONE_VNODE, [[1], [1], [2]], [2]), (BLOCK_VNODES, [[1, 2, 7], [1, 2, 7]], [1, 2, 7])],
)
def test_an_actor_reads_on_from_its_one_position(
    block_vnodes: int, blocks: list[list[int]], in_progress: list[int]
) -> None:
    """A page of 4 rows, then what is left of 9 permits: of one vnode after the other, or of all of a block."""
    store = Counted()
    scan = ScanTask(cast("VersionedStore", store), BOUND, UPSTREAM, block_vnodes)
    standing = VnodePosition(vnode=Vnode(0), state=PositionState.COMPLETED, rows=9)
    actor = ActorTask(runs=((0, 2), (7, 7)), positions=(standing,), permits=9)
    task = StageTask(
        curr=Epoch(2),
        windows={UPSTREAM.id: Window(Epoch(2), Epoch(2))},
        changed=frozenset(),
        at={UPSTREAM.id: Epoch(2)},
        actors=(actor,),
        slice_seconds=9,
        page_rows=4,
    )
    reading = read_rows(scan, task, 0)
    with pytest.raises(StopIteration) as over:
        next(reading)
    told: dict[str, Any] = json.loads(over.value.value)
    assert store.blocks == blocks
    assert [one["vnode"] for one in told["positions"] if one["key"] is not None] == in_progress
