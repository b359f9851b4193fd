"""What the scan of a table in a lake reports from epoch to epoch: how far it is, and why it waits."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.connector import Connector
from service.protocol.delta import DeltaPlace
from service.protocol.ids import DATABASE_GRAPH, ActorId, Epoch, FragmentId, Generation, JobId
from service.protocol.plan import ActorPlan, SplitScanPlan, VnodePosition
from service.protocol.relation import Relation
from service.protocol.report import ActorReport
from tests.support.state_store import relation
from workers.backfill.scan import ScanState
from workers.connectors.following import Step
from workers.connectors.port import RefusedTableError
from workers.connectors.watching import Watching
from workers.runners.failure import JobFailedError
from workers.runners.lake_scan import LakeScan
from workers.runners.port import RunningEpoch
from workers.state_store.port import VersionedStore

SAID = "/lake/t cannot be read now, and is tried again by itself: away"
PLACE = DeltaPlace(location="/lake/t")
TABLE: Relation = relation(1, "t").model_copy(update={"lake": Connector(name="file", options={"location": "/lake/t"})})


class Storage(Watching):
    """A storage that is away for as long as `away` is set."""

    away: str | None = None

    @override
    def look(self) -> None:
        if self.away is not None:
            raise OSError(self.away)


@dataclass
class Scripted:
    """Takes a step whenever one is due."""

    watching: Storage = field(default_factory=lambda: Storage(PLACE, TABLE))
    due: list[str] = field(default_factory=list[str])

    def step(self, store: VersionedStore, committed: Epoch, known: str | None) -> Step | None:
        del store, committed, known
        if self.watching.broken is not None:
            raise RefusedTableError(self.watching.broken)
        return Step(self.due.pop(0), (), 3) if self.due else None


class Written:
    """A store that is asked to write, and nothing else."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def write(self, _: Relation, epoch: Epoch, __: object) -> None:
        self.epochs.append(epoch)


@dataclass
class Running:
    """A scan in a generation."""

    follower: Scripted
    positions: tuple[VnodePosition, ...] = ()
    number: int = 0
    written: Written = field(default_factory=Written)

    def __post_init__(self) -> None:
        actors = (ActorPlan(id=ActorId(1), vnodes=((0, 0),), positions=self.positions),)
        plan = SplitScanPlan(id=FragmentId(1), actors=actors, connector=Connector(name="file", options={}))
        self.scan = LakeScan(JobId(1), TABLE, ScanState.of(plan, now=0.0), follow=lambda: self.follower)

    def epoch(self) -> tuple[str | None, str | None] | None:
        """Run an epoch. Return the reported position and reason to wait, None if there is nothing to store."""
        self.number += 1
        prev, curr = Epoch(self.number), Epoch(self.number + 1)
        barrier = Barrier(
            graph=DATABASE_GRAPH, generation=Generation(1), prev=prev, curr=curr, kind=BarrierKind.CHECKPOINT
        )
        stores: Any = SimpleNamespace(versioned=self.written)
        (report,) = self.scan.run(RunningEpoch(barrier, stores, False, 0.0, lambda: 0.0, nullcontext))
        assert isinstance(report, ActorReport)
        if not report.positions:
            assert report.waiting is None
            return None
        self.positions = report.positions
        key = report.positions[0].key
        return (None if key is None else key[0]), report.waiting


def test_i5_a_reason_to_wait_is_reported_once_and_so_is_its_end() -> None:
    follower = Scripted(due=["7"])
    running = Running(follower)
    assert running.epoch() == ("7", None)
    assert running.epoch() is None
    follower.watching.away = "away"
    follower.watching.try_to_look()
    assert [running.epoch() for _ in range(3)] == [("7", SAID), None, None]
    follower.watching.away = None
    follower.watching.try_to_look()
    assert [running.epoch() for _ in range(2)] == [("7", None), None]
    follower.due = ["8"]
    assert running.epoch() == ("8", None)
    assert running.written.epochs == [2, 9]


def test_i5_a_generation_that_has_not_looked_yet_ends_no_wait() -> None:
    before = Running(Scripted(due=["7"]))
    before.epoch()
    follower = Scripted()
    running = Running(follower, before.positions)
    assert [running.epoch() for _ in range(2)] == [None, None]
    follower.watching.away = "away"
    follower.watching.try_to_look()
    assert [running.epoch() for _ in range(2)] == [("7", SAID), None]
    follower = Scripted()
    running = Running(follower, before.positions)
    follower.watching.try_to_look()
    # The generation before may have waited.
    assert [running.epoch() for _ in range(2)] == [("7", None), None]


def test_i5_a_table_that_cannot_be_followed_fails_its_job() -> None:
    follower = Scripted(due=["7"])
    running = Running(follower)
    running.epoch()
    follower.watching.broken = 'file "a" is gone'
    with pytest.raises(JobFailedError) as error:
        running.epoch()
    assert error.value.deterministic
    assert 'file "a" is gone' in error.value.reason
    running.scan.end()
    assert follower.watching.over
