"""An epoch in which nothing travels needs no Spark: the worker has the store copy, on a thread for each actor."""

import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import pytest

from service.protocol.ids import Epoch, RelationId, Vnode
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.table_format import POSTGRES
from tests.support.key_shapes import SHAPES
from tests.support.projections import bound_projection
from workers.backfill.actors import ActorTask
from workers.backfill.positions import Block, PageSize
from workers.backfill.stages import BoundStage, Window
from workers.engines.copiers import Copiers
from workers.engines.port import StageTask
from workers.engines.stages import StageEngine
from workers.state_store.port import ArrowPage, CopyingStore

pytestmark = pytest.mark.timeout(30)

UPSTREAM = SHAPES[0].relation
BOUND = bound_projection(UPSTREAM, UPSTREAM)
LEFT = 5
"""So many rows of each vnode."""


@dataclass
class Copied:
    """A store that counts what it copies. A copy of a vnode of `held` waits to be released, one of `broken` fails."""

    capabilities: ClassVar = POSTGRES
    held: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    committed: list[int] = field(default_factory=list[int])
    read: Sequence[int] = ()
    """What one transaction has read."""

    @contextmanager
    def staging(self, bound: BoundStage, epoch: Epoch, *, allowed_seconds: float | None) -> Generator["Copied"]:
        assert (bound, epoch, allowed_seconds) == (BOUND, Epoch(2), None)
        session = replace(self)
        yield session
        self.committed += session.read

    def read_page(self, block: Block, _size: PageSize, at: Mapping[RelationId, Epoch]) -> ArrowPage:
        assert at == {UPSTREAM.id: Epoch(2)}
        self.read = [*self.read, *(span.vnode for span in block)]
        if self.held.intersection(self.read):
            self.reached.set()
            self.release.wait()
        if self.broken.intersection(self.read):
            raise ConnectionError("the store is away")
        rows = dict.fromkeys((span.vnode for span in block), LEFT)
        return ArrowPage((), rows, dict.fromkeys(rows), sum(rows.values()) - 1)

    def end(self, _at: object, *, whole: bool) -> int:
        del whole
        return 0


def job_of(store: Copied, *, at_once: int = 2) -> StageEngine:
    return StageEngine(cast("CopyingStore", store), BOUND, Copiers("test", at_once))


def task_of() -> StageTask:
    return StageTask(
        curr=Epoch(2),
        windows={UPSTREAM.id: Window(Epoch(2), Epoch(2))},
        changed=frozenset(),
        at={UPSTREAM.id: Epoch(2)},
        actors=tuple(ActorTask(runs=(run,), positions=(), permits=None) for run in ((0, 2), (3, 3))),
        slice_seconds=9,
        page_rows=100,
    )


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_each_actor_has_its_pages_copied_and_committed(at_once: int) -> None:
    store = Copied()
    first, second = sorted(job_of(store, at_once=at_once).run(task_of()), key=lambda outcome: outcome.actor)
    assert (first.snapshot_rows, first.inserted, first.closed, first.upstream_rows) == (3 * LEFT, 3 * LEFT - 1, 0, 0)
    assert (second.snapshot_rows, second.inserted) == (LEFT, LEFT - 1)
    assert [position.vnode for position in (*first.positions, *second.positions)] == [0, 1, 2, 3]
    assert {position.state for position in first.positions} == {PositionState.COMPLETED}
    assert sorted(store.committed) == [0, 1, 2, 3]


def test_a_copy_that_fails_fails_the_epoch_and_commits_nothing_of_its_own() -> None:
    store = Copied(broken=frozenset({1}))
    with pytest.raises(ConnectionError):
        job_of(store).run(task_of())
    assert not {0, 1, 2}.intersection(store.committed)


def test_a_copy_that_hangs_holds_nobody_up_who_gives_it_up() -> None:
    """I10: others wait for the turn of an epoch that nobody waits for any more."""
    store = Copied(held=frozenset({3}))
    job = job_of(store)
    with ThreadPoolExecutor(1) as lane:
        running = lane.submit(job.run, task_of())
        assert store.reached.wait(20)
        job.give_up()
        assert isinstance(running.exception(20), InterruptedError)
        store.release.set()
    with pytest.raises(InterruptedError):
        job.run(task_of())


def test_i13_actors_that_come_late_wait_for_the_next_epoch_the_least_advanced_first() -> None:
    """Each of many actors read a page in each epoch, however long it took."""
    store = Copied()
    job = job_of(store, at_once=2)
    behind = VnodePosition(vnode=Vnode(0), state=PositionState.IN_PROGRESS, key=("1",), rows=1)
    ahead = VnodePosition(vnode=Vnode(2), state=PositionState.IN_PROGRESS, key=("1",), rows=9)
    actors = ((0, (behind,)), (1, ()), (2, (ahead,)), (3, ()))
    task = task_of().model_copy(
        update={
            "actors": tuple(ActorTask(runs=((one, one),), positions=at, permits=None) for one, at in actors),
            "slice_seconds": 0,
        }
    )
    outcomes = job.run(task)
    assert [one.actor for one in outcomes] == [0, 1, 2, 3]
    assert [one.snapshot_rows for one in outcomes] == [0, LEFT, 0, LEFT]
    assert {one.vnode for outcome in outcomes for one in outcome.positions} == {1, 3}
    assert sum(one.snapshot_rows for one in job.run(task.model_copy(update={"slice_seconds": 9}))) == 4 * LEFT
