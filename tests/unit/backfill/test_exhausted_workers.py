"""A worker tells which job took all its memory, and of a kill it tells nothing (I3, I13)."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, JobId, RelationId, RequestId, WorkerId
from service.protocol.request import Verify, VerifyStage
from service.protocol.stage import Stage
from tests.support.meta_stages import joined, newest
from tests.support.projections import projection
from tests.support.state_store import relation
from workers.bootstrap import _failure as failure_of  # pyright: ignore[reportPrivateUsage]
from workers.bootstrap import is_computed_apart
from workers.runners.failure import JobFailedError
from workers.spark.session import Session

BARRIER = Barrier(
    graph=DATABASE_GRAPH, generation=Generation(1), prev=Epoch(1), curr=Epoch(2), kind=BarrierKind.CHECKPOINT
)


def spark_of(is_stopped: Callable[[], bool]) -> Any:
    """Return a session of Spark that says whether it is stopped."""
    java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=is_stopped))
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))


@pytest.mark.parametrize(("code", "exhausted"), [(52, True), (-9, False), (143, False), (0, False)])
def test_only_a_jvm_that_says_so_had_no_memory_left(code: int, *, exhausted: bool) -> None:
    gateway = SimpleNamespace(returncode=code, wait=lambda: code)
    session = Session(cast("Any", None), Path(), cast("Any", gateway), local=True)
    assert session.ended.wait(10)
    assert session.out_of_memory is exhausted


def test_i13_a_jvm_that_has_stopped_its_session_is_given_time_to_say_why_it_exits() -> None:
    """Its hooks take a moment. A job that took all memory was not told then, and ended the next worker."""
    leaves = threading.Event()
    gateway = SimpleNamespace(returncode=None, wait=lambda: leaves.wait(60))

    def stopped() -> bool:
        gateway.returncode = 52
        threading.Timer(0.2, leaves.set).start()
        return True

    session = Session(spark_of(stopped), Path(), cast("Any", gateway), local=True)
    assert session.lost(0)
    assert session.ended.is_set()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_session_is_lost_when_the_cluster_has_ended_it_though_its_jvm_lives(*, stopped: bool) -> None:
    alive = threading.Event()
    gateway = SimpleNamespace(returncode=None, wait=lambda: alive.wait(60))
    session = Session(spark_of(lambda: stopped), Path(), cast("Any", gateway), local=False)
    assert session.lost(0) is stopped
    alive.set()
    assert session.lost(10)


@pytest.mark.parametrize(
    ("stage", "local", "apart"),
    [
        (joined(RelationId(1), RelationId(2)), True, True),
        (newest(RelationId(1)), True, True),
        (projection(relation(1, "orders"), relation(3, "m")), True, False),
        (joined(RelationId(1), RelationId(2)), False, False),
    ],
)
def test_i13_what_gathers_rows_is_verified_in_a_process_of_its_own(stage: Stage, *, local: bool, apart: bool) -> None:
    """A large `string_agg` ended four workers, one after the other."""
    target = relation(3, "m")
    question = Verify(
        id=RequestId(1),
        graph=DATABASE_GRAPH,
        epoch=Epoch(1),
        relation_epoch=Epoch(1),
        relation=target,
        stages=(VerifyStage(stage=stage, target=target, relations=()),),
    )
    assert is_computed_apart(question, local=local) is apart


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


def test_i13_a_worker_that_several_jobs_exhausted_tells_all_of_them_and_suspects_none() -> None:
    of, by = relation(1, "orders"), relation(2, "m")
    error = JobFailedError(JobId(7), ValueError("gone"), target=by, upstream=of, computing=False)
    error.beside = (JobId(7), JobId(9))
    told = failure_of(WorkerId("w"), BARRIER, error, exhausted=True)
    assert told is not None
    assert (told.beside, told.exhausted, told.deterministic) == ((7, 9), False, False)
    assert "computed beside it: the worker had no memory left" in told.error
    # The connection to the state store may end for any of them, and takes no memory.
    away = failure_of(WorkerId("w"), BARRIER, error)
    assert away is not None
    assert away.beside == ()


def test_a_worker_tells_of_every_job_that_failed_in_the_epoch() -> None:
    """I13: jobs that are told of together cost one recovery."""
    of, by = relation(1, "orders"), relation(2, "m")
    first, *others = (JobFailedError(JobId(n), ValueError(f"no {n}"), target=by, upstream=of) for n in (7, 8, 9))
    first.others = tuple(others)
    told = failure_of(WorkerId("w"), BARRIER, first)
    assert told is not None
    assert (told.job, told.error) == (7, first.reason)
    assert [(one.job, one.error) for one in told.others] == [(8, others[0].reason), (9, others[1].reason)]
