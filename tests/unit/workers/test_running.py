"""The runners of one epoch: who runs, and what is told of those that fail (I13)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from service.protocol.ids import ActorId, FragmentId, JobId, RelationId
from service.protocol.report import ActorReport
from tests.support.state_store import relation
from workers.runners.failure import JobFailedError
from workers.runners.port import FragmentReport, FragmentRunner, Phase, Place, RunningEpoch
from workers.runners.running import run_all

ROW = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
AWAY = "the connection was lost"


@dataclass
class Scan:
    """A scan of one relation into another, whose epoch fails with `error`."""

    target: int
    upstream: int
    error: str | None = None
    history: int = 0
    number: int = 0
    ran: list[int] = field(default_factory=list[int])

    @property
    def place(self) -> Place:
        return Phase.SCAN, self.target, self.number

    @property
    def reads(self) -> Collection[RelationId]:
        return (RelationId(self.upstream),)

    def readers(self, *, paused: bool) -> int:
        return 0 if paused else self.history

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        self.ran.append(epoch.readers)
        if self.error is not None:
            of, by = relation(self.upstream, "t"), relation(self.target, "v")
            raise JobFailedError(JobId(self.target), ValueError(self.error), target=by, upstream=of)
        return (ActorReport(actor=ActorId(self.target), fragment=FragmentId(self.number), rows=0),)


def an_epoch(*scans: Scan) -> RunningEpoch:
    nothing = cast("Any", None)
    readers = sum(scan.history for scan in scans)
    return RunningEpoch(nothing, nothing, False, 0.0, nothing, nothing, 1.0, readers)


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
    reader, second, branch = Scan(4, 2, ROW), Scan(5, 4, ROW), Scan(2, 1, ROW, number=1)
    error = failed(Scan(2, 1, ROW), branch, Scan(3, 1), reader, second)
    assert error.others == ()
    assert reader.ran == second.ran == branch.ran == []


def test_a_failure_of_the_environment_ends_the_epoch_at_once_and_keeps_what_failed_before() -> None:
    late = Scan(4, 1)
    error = failed(Scan(2, 1, ROW), Scan(3, 1, AWAY), late)
    assert (error.job, error.deterministic) == (3, False)
    assert [other.job for other in error.others] == [2]
    assert late.ran == []


def test_a_scan_of_history_counts_as_a_reader_until_it_has_run() -> None:
    scans = [Scan(2, 1, history=1), Scan(3, 1), Scan(4, 1, history=1)]
    reports = run_all(runners(*scans), an_epoch(*scans))
    assert [cast("ActorReport", report).actor for report in reports] == [2, 3, 4]
    assert [scan.ran for scan in scans] == [[2], [1], [1]]
