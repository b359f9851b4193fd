"""An epoch in which nothing travels needs no Spark: the worker has the store copy, on a thread for each actor."""

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, cast

import pytest

from service.protocol.ids import Epoch
from service.protocol.plan import PositionState, Pushdown
from service.protocol.table_format import POSTGRES
from tests.support.key_shapes import SHAPES
from workers.backfill.actors import ActorTask
from workers.backfill.positions import Block, PageSize
from workers.backfill.reading import interleaved
from workers.engines.port import EpochTask, ScanTask
from workers.engines.store import StoreEngine, copied_in_store
from workers.state_store.port import ArrowPage, PageReader, VersionedStore

pytestmark = pytest.mark.timeout(30)

UPSTREAM = SHAPES[0].relation
QUERY = Pushdown(columns=("id", "v"))
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

    @contextmanager
    def copying(self, *_: object, at: Epoch, epoch: Epoch) -> Generator[PageReader]:
        assert at == epoch == Epoch(2)
        vnodes: list[int] = []

        def copy(block: Block, _size: PageSize) -> ArrowPage:
            vnodes.extend(span.vnode for span in block)
            if self.held.intersection(vnodes):
                self.reached.set()
                self.release.wait()
            if self.broken.intersection(vnodes):
                raise ConnectionError("the store is away")
            rows = dict.fromkeys((span.vnode for span in block), LEFT)
            return ArrowPage((), rows, dict.fromkeys(rows), sum(rows.values()) - 1)

        yield copy
        self.committed += vnodes


def job_of(store: Copied, *, at_once: int = 2) -> StoreEngine:
    scan = ScanTask(cast("VersionedStore", store), UPSTREAM, UPSTREAM, 2, QUERY)
    return StoreEngine(scan, at_once=at_once)


def task_of() -> EpochTask:
    return EpochTask(
        curr=Epoch(2),
        reading=interleaved(since=Epoch(2), curr=Epoch(2)),
        actors=tuple(ActorTask(runs=(run,), positions=(), permits=None) for run in ((0, 2), (3, 3))),
        slice_seconds=9,
        page_rows=100,
    )


@pytest.mark.parametrize(
    ("query", "since", "finished", "copied"),
    [
        (None, 2, False, False),
        (None, 1, True, False),
        (QUERY, 2, False, True),
        (QUERY, 2, True, True),
        # What changed beside history that is yet to be read has to be marked (I1).
        (QUERY, 1, False, False),
        (QUERY, 1, True, True),
    ],
)
def test_nothing_travels_where_the_store_answers_and_nothing_has_to_be_marked(
    query: Pushdown | None, since: int, *, finished: bool, copied: bool
) -> None:
    reading = interleaved(since=Epoch(since), curr=Epoch(2))
    assert copied_in_store(query, reading, finished=finished) is copied


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
