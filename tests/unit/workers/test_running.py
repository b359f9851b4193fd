"""The runners of one epoch: who runs, and what is told of those that fail (I13)."""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, cast

import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs
from typing_extensions import override

from service.protocol.barrier import Barrier as Epochs
from service.protocol.barrier import BarrierKind, ScanLimits
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    Epoch,
    FragmentId,
    Generation,
    JobId,
    RelationId,
    WorkerId,
)
from service.protocol.mutation import Add
from service.protocol.report import WORK_MAX, ActorReport, FragmentReport
from tests.support.idle_spark import idle_spark
from tests.support.state_store import relation
from workers.bootstrap import _failure as failure_of  # pyright: ignore[reportPrivateUsage]
from workers.graph import EPOCHS_ALONE, SEARCH_REST_SECONDS, GraphExecutor
from workers.runners.failure import JobFailedError
from workers.runners.port import FragmentRunner, Phase, Place, RunningEpoch, Stores
from workers.runners.running import run_all, waves

ROW = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
AWAY = "the connection was lost"
OUT_OF_MEMORY = "java.lang.OutOfMemoryError: Java heap space"
nothing = cast("Any", None)


@dataclass
class Scan:
    """A scan of one relation into another, whose epoch fails with `error`."""

    target: int
    upstream: int
    error: str | None = None
    history: int = 0
    brief: bool = True
    number: int = 0
    ran: list[int] = field(default_factory=list[int])

    @property
    def place(self) -> Place:
        return Phase.SCAN, self.target, self.number

    settled = True

    def end(self) -> None:
        pass

    @property
    def reads(self) -> Collection[RelationId]:
        return (RelationId(self.upstream),)

    def readers(self, *, paused: bool) -> int:
        return 0 if paused else self.history

    def is_brief(self, epoch: RunningEpoch) -> bool:
        del epoch
        return self.brief and not self.history

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        self.ran.append(epoch.readers)
        if self.error is not None:
            of, by = relation(self.upstream, "t"), relation(self.target, "v")
            raise JobFailedError(JobId(self.target), ValueError(self.error), target=by, upstream=of)
        epoch.wrote(RelationId(self.target), inserted=1, ended=0)
        return (ActorReport(actor=ActorId(self.target), fragment=FragmentId(self.number), rows=0),)


@dataclass
class Waiting(Scan):
    """A scan whose epoch ends when another one's does."""

    both: Barrier = field(default_factory=lambda: Barrier(1))

    @override
    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        self.both.wait(30)
        return super().run(epoch)


def an_epoch(*scans: Scan) -> RunningEpoch:
    readers = sum(scan.history for scan in scans)
    return RunningEpoch(nothing, nothing, False, 0.0, nothing, nothing, readers)


def runners(*scans: Scan) -> Mapping[Place, FragmentRunner]:
    return {scan.place: cast("FragmentRunner", scan) for scan in scans}


def failed(*scans: Scan) -> JobFailedError:
    with pytest.raises(JobFailedError) as caught:
        run_all(runners(*scans), an_epoch(*scans))
    return caught.value


def test_all_jobs_that_fail_by_their_own_fault_are_told_of_together() -> None:
    sound = Scan(3, 1)
    error = failed(Scan(2, 1, ROW), sound, Scan(4, 1, ROW), Scan(5, 1, ROW))
    assert [error.job, *(other.job for other in error.others)] == [2, 4, 5]
    assert all(one.deterministic for one in (error, *error.others))
    assert len(sound.ran) == 1


def test_what_reads_a_failed_relation_does_not_run_over_a_part_of_its_changes() -> None:
    reader, second, branch = Scan(4, 2, ROW), Scan(5, 4, ROW), Scan(2, 1, ROW, history=1, number=1)
    error = failed(Scan(2, 1, ROW), branch, Scan(3, 1), reader, second)
    assert error.others == ()
    assert reader.ran == second.ran == branch.ran == []


def test_a_failure_of_the_environment_ends_the_epoch_at_once_and_keeps_what_failed_before() -> None:
    late = Scan(4, 1)
    error = failed(Scan(2, 1, ROW), Scan(3, 1, AWAY), late)
    assert (error.job, error.deterministic, error.computing) == (3, False, True)
    assert [other.job for other in error.others] == [2]
    assert late.ran == []


def test_two_branches_of_one_view_that_fail_are_one_failure() -> None:
    error = failed(Scan(2, 1, ROW), Scan(2, 1, ROW, number=1), Scan(3, 1, ROW))
    assert [error.job, *(other.job for other in error.others)] == [2, 3]


def test_a_scan_comes_after_all_that_write_what_it_reads_and_history_comes_after_changes() -> None:
    scans = [Scan(2, 1, history=1), Scan(3, 1), Scan(4, 2), Scan(4, 1, number=1), Scan(5, 4), Scan(6, 1, brief=False)]
    assert [[place[1:] for place in wave] for wave in waves(runners(*scans))] == [
        [(2, 0), (3, 0), (4, 1), (6, 0)],
        [(4, 0)],
        [(5, 0)],
    ]
    reports = run_all(runners(*scans), an_epoch(*scans))
    assert [cast("ActorReport", report).actor for report in reports] == [3, 4, 6, 2, 4, 5]


def test_a_scan_of_history_counts_as_a_reader_until_it_has_run() -> None:
    scans = [Scan(2, 1, history=1), Scan(3, 1), Scan(4, 1, history=1)]
    run_all(runners(*scans), an_epoch(*scans))
    assert [scan.ran for scan in scans] == [[2], [2], [1]]


def test_scans_that_only_forward_a_few_changes_run_beside_each_other() -> None:
    """Each waits for the other, so neither would end if they ran one by one."""
    both = Barrier(2)
    scans = [Waiting(2, 1, both=both), Waiting(3, 1, both=both)]
    with ThreadPoolExecutor(2) as threads:
        reports = run_all(runners(*scans), an_epoch(*scans), threads.map)
    assert [cast("ActorReport", report).actor for report in reports] == [2, 3]


def test_of_scans_that_ran_beside_each_other_none_is_suspected_to_take_all_memory() -> None:
    """I13: the memory that one misses may be another one's."""
    scans = [Scan(2, 1, OUT_OF_MEMORY), Scan(3, 1)]
    assert failed(*scans).suspect
    with pytest.raises(JobFailedError) as caught, ThreadPoolExecutor(1) as threads:
        run_all(runners(*scans), an_epoch(*scans), threads.map)
    assert (caught.value.suspect, caught.value.computing) == (False, False)


def test_i13_all_scans_that_fail_beside_each_other_are_told() -> None:
    """Six views of one caller took all memory together, again and again, and nobody was blamed."""
    scans = [Scan(2, 1, ROW), Scan(3, 1, OUT_OF_MEMORY), Scan(4, 1), Scan(5, 1, AWAY), Scan(6, 1, ROW)]
    with pytest.raises(JobFailedError) as caught, ThreadPoolExecutor(1) as threads:
        run_all(runners(*scans), an_epoch(*scans), threads.map)
    assert (caught.value.job, caught.value.beside, caught.value.exhausted) == (3, (3, 5), True)
    assert [other.job for other in caught.value.others] == [2, 6]
    assert failed(*scans).beside == ()


class Told(Executor):
    """Counts the waves that run beside each other."""

    def __init__(self) -> None:
        self.waves = 0

    @override
    def map(self, fn: Any, *iterables: Any, timeout: float | None = None, chunksize: int = 1) -> Any:
        self.waves += 1
        return map(fn, *iterables)


def a_barrier(generation: int, epoch: int, *, initial: bool, **fields: Any) -> Epochs:
    """Return a barrier of the database graph. An initial one begins a generation without jobs."""
    return Epochs(
        graph=DATABASE_GRAPH,
        generation=Generation(generation),
        prev=Epoch(epoch - 1),
        curr=Epoch(epoch),
        kind=BarrierKind.INITIAL if initial else BarrierKind.CHECKPOINT,
        mutation=Add(jobs=(), paused=False) if initial else None,
        **fields,
    )


def beside_in(epochs: Mapping[int, str | None]) -> list[int]:
    """Run some epochs, in which the second of two scans may fail. Return those in which both ran beside each other.

    After a failure a new generation begins, as it does in the tenth epoch.
    """
    threads, found, generation = Told(), list[int](), 0
    executor = GraphExecutor(WorkerId("w"), idle_spark(), lambda _: Stores(nothing, nothing), {}, threads=threads)
    for epoch, error in epochs.items():
        initial = epoch in {1, 10} or epochs[epoch - 1] is not None
        generation += initial
        if not initial:
            executor.runners |= runners(Scan(2, 1), Scan(3, 1, error))
        before = threads.waves
        with nullcontext() if error is None else pytest.raises(JobFailedError):
            executor.run(a_barrier(generation, epoch, initial=initial))
        found += [epoch] * (threads.waves - before)
    return found


def test_a_generation_runs_its_scans_one_by_one_at_first() -> None:
    """I13: where the one before ended for want of memory, it has to be told which job takes it."""
    first, second = range(2 + EPOCHS_ALONE, 10), range(11 + EPOCHS_ALONE, 20)
    assert beside_in(dict.fromkeys(range(1, 20))) == [*first, *second]


def test_n7a_after_a_wrong_value_all_scans_run_beside_each_other_at_once() -> None:
    """I13: the reason is known, and everybody waits for the first epochs of the next generation."""
    epochs = dict[int, str | None].fromkeys(range(1, 10))
    said = range(2 + EPOCHS_ALONE, 7)
    assert beside_in(epochs | {6: ROW}) == [*said, 8, 9]
    assert beside_in(epochs | {6: AWAY}) == list(said)


def found(_seconds: float) -> str:
    """Stand for a search that finds a row."""
    return "(id) = (1)"


@dataclass
class Sought(Scan):
    """A scan that fails over a row, which is found when it is searched for."""

    @override
    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        of, by = relation(self.upstream, "t"), relation(self.target, "v")
        raise JobFailedError(JobId(self.target), ValueError(ROW), target=by, upstream=of, find_key=found)


def test_i13_the_rows_that_fail_views_of_one_caller_are_searched_for_once_in_a_while() -> None:
    """The search takes three quarters of the time that a failed view costs everybody."""
    now, told = [0.0], list[bool]()
    executor = GraphExecutor(WorkerId("w"), idle_spark(), lambda _: Stores(nothing, nothing), {}, clock=lambda: now[0])
    for generation, (caller, seconds) in enumerate([("a", 0), ("a", 1), ("b", 1), ("a", SEARCH_REST_SECONDS)], 1):
        now[0] += seconds
        executor.run(a_barrier(generation, 2 * generation, initial=True))
        assert executor.stores is not None
        executor.stores.costs.callers |= {JobId(2): caller, JobId(3): caller}
        executor.runners |= runners(Sought(2, 1), Sought(3, 1))
        with pytest.raises(JobFailedError) as caught:
            executor.run(a_barrier(generation, 2 * generation + 1, initial=False))
        error = caught.value
        told += [" at (id) = (1)" in one.reason for one in (error, *error.others)]
    assert told == [True, True, False, False, True, True, True, True]


@dataclass
class Long(Scan):
    """A scan whose changes take 20 s of the 30 s that an epoch may take."""

    @override
    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        epoch.stores.took(JobId(self.target), 20)
        return super().run(epoch)


@pytest.mark.parametrize(("error", "further"), [(ROW, [2]), (AWAY, [])])
def test_i13_a_view_that_has_no_time_left_leaves_with_the_one_that_failed(error: str, further: list[int]) -> None:
    """It cost a second recovery. An error of the moment says nothing of the time that another epoch takes."""
    executor = GraphExecutor(WorkerId("w"), idle_spark(), lambda _: Stores(nothing, nothing, None, 30_000), {})
    executor.run(a_barrier(1, 2, initial=True))
    executor.runners |= runners(Long(2, 1), Scan(3, 1, error))
    barrier = a_barrier(1, 3, initial=False, scans=ScanLimits(timeout_ms=30_000))
    with pytest.raises(JobFailedError) as caught:
        executor.run(barrier)
    told = failure_of(WorkerId("w"), barrier, caught.value)
    assert told is not None
    assert (told.job, [one.job for one in told.others], sorted(told.slow)) == (3, further, further)


def test_i13_a_generation_computes_jobs_of_the_callers_one_by_one_that_its_first_barrier_names() -> None:
    executor = GraphExecutor(WorkerId("w"), nothing, lambda _: Stores(nothing, nothing), {})
    executor.run(a_barrier(1, 2, initial=True, scans=ScanLimits(apart=("a",))))
    assert executor.stores is not None
    executor.stores.costs.callers |= {JobId(2): "a", JobId(3): "b"}
    assert [executor.stores.costs.is_apart(JobId(job)) for job in (2, 3)] == [True, False]


@pytest.mark.parametrize("beside", [False, True])
def test_the_log_line_of_a_scan_that_fails_has_its_job_and_epoch(*, beside: bool) -> None:
    """Also on another thread than the one that runs the epoch."""
    scans = [Scan(2, 1, ROW, number=7), Scan(3, 1, number=8)]
    with (
        bound_contextvars(epoch=5),
        capture_logs(processors=[merge_contextvars]) as logs,
        ThreadPoolExecutor(2) as threads,
        pytest.raises(JobFailedError),
    ):
        run_all(runners(*scans), an_epoch(*scans), threads.map if beside else None)
    (line,) = logs
    assert (line["event"], line["what"], line["job"], line["epoch"]) == ("scan.failed", "scan 7", 2, 5)
    assert "BY_ZERO" not in str(line)


def test_the_work_of_an_epoch_is_told_only_if_the_barrier_has_a_context() -> None:
    clock = iter(range(10_000))
    executor = GraphExecutor(WorkerId("w"), nothing, lambda _: Stores(nothing, nothing), {}, clock=lambda: next(clock))
    told: list[list[str]] = []
    for epoch, traceparent in ((1, None), (2, f"00-{'a' * 32}-{'b' * 16}-00"), (3, None)):
        answer = executor.run(a_barrier(1, epoch, initial=epoch == 1, traceparent=traceparent))
        executor.runners |= runners(*(Scan(number, 1, number=number) for number in range(2, 2 + 2 * WORK_MAX)))
        told.append([one.name for one in answer.work])
    first, second, third = told
    assert first == third == []
    assert len(second) == WORK_MAX
    assert second[:2] == ["scan 2", "scan 3"]
