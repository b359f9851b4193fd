"""How much a scan of an external system reads in one epoch, whatever is due (I8, I13)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, cast

import pytest
from typing_extensions import override

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.connector import Connector
from service.protocol.constant import of_rows
from service.protocol.ids import DATABASE_GRAPH, ActorId, Epoch, FragmentId, Generation, JobId
from service.protocol.plan import ActorPlan, PositionState, SplitScanPlan
from service.protocol.report import ActorReport
from tests.support.state_store import relation
from workers.backfill.scan import ScanState
from workers.cdc.fold import Key, Values
from workers.connectors.constant import Constants
from workers.connectors.port import Part, SplitReader
from workers.runners.port import RunningEpoch
from workers.runners.split_scan import TEXT_MAX, SplitScan

SPLITS = 4
SECOND = 1000 << 16
"""In epochs."""
nothing = cast("Any", None)


@dataclass
class Huge:
    """A system that has many rows a millisecond for each split; every row takes its time."""

    whole: ClassVar[bool] = False
    columns: int
    seconds_per_row: float = 0.0
    text: str = "x"
    due_per_ms: int = 1000
    now: float = 0.0

    def due(self, split: int, since_ms: int, upto_ms: int) -> int:
        del split
        return (upto_ms - since_ms) * self.due_per_ms

    def read(self, split: int, after: str | None, most: int) -> Part:
        self.now += most * self.seconds_per_row
        first = int(after or 0)
        rows = [(f"{split}:{place}", *(self.text,) * (self.columns - 1)) for place in range(first, first + most)]
        return Part(rows, str(first + most), over=False)


@dataclass(kw_only=True)
class Watched(SplitScan):
    """A scan whose rows are written nowhere."""

    written: list[Mapping[Key, Values]] = field(default_factory=list[Mapping[Key, Values]])

    @override
    def _write(self, epoch: RunningEpoch, rows: Mapping[Key, Values]) -> None:
        self.written.append(rows)


def scan_of(reader: SplitReader) -> Watched:
    actors = (ActorPlan(id=ActorId(1), vnodes=((0, SPLITS - 1),)),)
    plan = SplitScanPlan(id=FragmentId(1), actors=actors, connector=Connector(name="huge", options={}))
    return Watched(JobId(1), relation(1, "t"), ScanState.of(plan, now=0.0), reader=reader)


def splits_read(scan: Watched, reader: Huge, number: int) -> Sequence[int]:
    """Run epoch `number`, each of a second; return whose rows it read."""
    prev, curr = Epoch(number * SECOND), Epoch((number + 1) * SECOND)
    barrier = Barrier(graph=DATABASE_GRAPH, generation=Generation(1), prev=prev, curr=curr, kind=BarrierKind.CHECKPOINT)
    epoch = RunningEpoch(barrier, nothing, False, reader.now, lambda: reader.now, nullcontext, readers=1)
    (report,) = scan.run(epoch)
    assert isinstance(report, ActorReport)
    return [position.vnode for position in report.positions]


@pytest.mark.parametrize("seconds_per_row", [0.0001, 0.01, 10.0])
def test_reading_ends_with_its_share_of_the_interval_and_every_split_has_its_turn(seconds_per_row: float) -> None:
    reader = Huge(columns=len(relation(1, "t").columns), seconds_per_row=seconds_per_row)
    scan, seen = scan_of(reader), set[int]()
    for number in range(1, SPLITS + 1):
        began = reader.now
        seen.update(splits_read(scan, reader, number))
        # A page takes at most as long as those before it, or is a single row.
        assert reader.now - began <= max(2.0, seconds_per_row)
    assert seen == set(range(SPLITS))
    assert len(scan.written) == SPLITS


def test_a21_scans_of_many_tables_take_turns_in_time() -> None:
    """I13: each takes a transaction, and all of them in each epoch held up everybody's statements for a minute."""
    reader = Huge(columns=len(relation(1, "t").columns), due_per_ms=1, seconds_per_row=0.00001)
    scans, ran = [scan_of(reader) for _ in range(150)], Counter[int]()
    for number in range(1, 61):
        began, prev = reader.now, Epoch(number * SECOND)
        barrier = Barrier(
            graph=DATABASE_GRAPH,
            generation=Generation(1),
            prev=prev,
            curr=Epoch(prev + SECOND),
            kind=BarrierKind.CHECKPOINT,
        )
        epoch = RunningEpoch(barrier, nothing, False, began, lambda: reader.now, nullcontext, readers=150)
        for place, scan in enumerate(scans):
            written = len(scan.written)
            scan.run(epoch)
            if len(scan.written) > written:
                ran[place] += 1
                reader.now += 0.1
        assert reader.now - began < 6 * barrier.interval_ms / 1000
    assert len(ran) == 150


def test_an_epoch_holds_only_so_much_text_even_if_it_comes_at_once() -> None:
    reader = Huge(columns=len(relation(1, "t").columns), text="x" * 10_000, due_per_ms=5)
    scan = scan_of(reader)
    splits_read(scan, reader, 1)
    (rows,) = scan.written
    assert 0 < sum(len(piece or b"") for row in rows.values() for piece in row) <= 2 * TEXT_MAX


def test_u11_constants_are_written_whole_in_the_first_epoch_also_while_paused_and_late() -> None:
    shape = relation(1, "t")
    rows = tuple((f"{number}", *(None for _ in shape.columns[1:])) for number in range(1000))
    scan, late = scan_of(Constants.of(of_rows(rows).options, shape)), count(step=10.0)
    barrier = Barrier(
        graph=DATABASE_GRAPH, generation=Generation(1), prev=Epoch(0), curr=Epoch(1), kind=BarrierKind.CHECKPOINT
    )
    epoch = RunningEpoch(barrier, nothing, True, 0.0, lambda: next(late), nullcontext, readers=1)
    (report,) = scan.run(epoch)
    assert isinstance(report, ActorReport)
    assert [len(one) for one in scan.written] == [1000]
    assert report.positions[0].state is PositionState.COMPLETED
