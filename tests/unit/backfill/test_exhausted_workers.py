"""A worker tells which job took all its memory, and of a kill it tells nothing (I3, I13)."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, JobId, WorkerId
from tests.support.state_store import relation
from workers.bootstrap import _failure as failure_of  # pyright: ignore[reportPrivateUsage]
from workers.runners.failure import JobFailedError
from workers.spark.session import Session

BARRIER = Barrier(
    graph=DATABASE_GRAPH, generation=Generation(1), prev=Epoch(1), curr=Epoch(2), kind=BarrierKind.CHECKPOINT
)


@pytest.mark.parametrize(("code", "exhausted"), [(52, True), (-9, False), (143, False), (0, False)])
def test_only_a_jvm_that_says_so_had_no_memory_left(code: int, *, exhausted: bool) -> None:
    gateway = SimpleNamespace(returncode=code, wait=lambda: code)
    session = Session(cast("Any", None), Path(), cast("Any", gateway))
    assert session.ended.wait(10)
    assert session.out_of_memory is exhausted


@pytest.mark.parametrize("stopped", [True, False])
def test_a_session_is_lost_when_the_cluster_has_ended_it_though_its_jvm_lives(*, stopped: bool) -> None:
    alive = threading.Event()
    gateway = SimpleNamespace(returncode=None, wait=lambda: alive.wait(60))
    java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
    session = Session(
        cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))), Path(), cast("Any", gateway)
    )
    assert session.lost(0) is stopped
    alive.set()
    assert session.lost(10)


@pytest.mark.parametrize("computing", [True, False])
def test_an_exhausted_worker_suspects_the_job_that_it_computed_and_no_other(*, computing: bool) -> None:
    of, by = relation(1, "orders"), relation(2, "m")
    error = JobFailedError(JobId(7), ValueError("gone"), target=by, upstream=of, computing=computing)
    told = failure_of(WorkerId("w"), BARRIER, error, exhausted=True)
    assert (told is not None) is computing
    if told is not None:
        assert (told.job, told.exhausted, told.deterministic) == (JobId(7), True, False)
        assert "more memory than a worker has" in told.error
    assert failure_of(WorkerId("w"), BARRIER, ValueError("gone"), exhausted=True) is None


def test_a_worker_tells_of_every_job_that_failed_in_the_epoch() -> None:
    """I13: jobs that are told of together cost one recovery."""
    of, by = relation(1, "orders"), relation(2, "m")
    first, *others = (JobFailedError(JobId(n), ValueError(f"no {n}"), target=by, upstream=of) for n in (7, 8, 9))
    first.others = tuple(others)
    told = failure_of(WorkerId("w"), BARRIER, first)
    assert told is not None
    assert (told.job, told.error) == (7, first.reason)
    assert [(one.job, one.error) for one in told.others] == [(8, others[0].reason), (9, others[1].reason)]
