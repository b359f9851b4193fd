"""What schedules came to: which faults and which commands met jobs of which strategy in which phase, and how often.

A schedule proves nothing about what it never met. A soak prints the table, and nothing in it may be empty.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from service.domain.graph import GraphStatus
from service.domain.job import CREATING, Job, JobState
from service.protocol.ids import DATABASE_GRAPH, FragmentId, JobId
from service.protocol.mutation import Mutation, Pause, Resume, StartFragmentBackfill, Stop, Throttle, Update
from service.protocol.plan import PositionState, ScanType
from tests.support.fake_meta_tables import BarrierRow, FragmentRow, GraphRow, JobRow, Journal, Tables


class Phase(StrEnum):
    """Where a job is between its CREATE and its end."""

    QUEUED = "queued"
    STARTING = "starting"
    WAITING = "waiting"
    """For its place in the backfill order."""
    READING = "reading"
    FINISHING = "finishing"
    """All history is read; of a snapshot job, its index is to be built, or its first span to be replayed."""
    REPLAYING = "replaying"
    MERGING = "merging"
    CREATED = "created"
    STOPPING = "stopping"


_DECOUPLED: Final = frozenset({Phase.REPLAYING, Phase.MERGING})
"""The phases that only snapshot jobs have."""
_CREATING: Final = frozenset(Phase) - {Phase.CREATED, Phase.STOPPING}
EXPECTED: Final[dict[str, frozenset[Phase]]] = {
    "worker crash": frozenset(Phase),
    "service crash": frozenset(Phase) - {Phase.FINISHING},
    "recovery": frozenset(Phase) - {Phase.FINISHING},
    "pause": frozenset(Phase) - {Phase.FINISHING},
    "resume": frozenset(Phase) - {Phase.FINISHING},
    "throttle": _CREATING - {Phase.FINISHING},
    "cancel": _CREATING,
    "drop": frozenset({Phase.CREATED}),
    "update": frozenset({Phase.WAITING, Phase.READING, Phase.CREATED}),
    "stuck job": _CREATING - {Phase.FINISHING},
}
"""To finish takes a few transactions: what has to be carried there by a barrier seldom comes in time. And a graph that
wants an index has it built before it is recovered.
"""
SELDOM: Final = {Phase.FINISHING: 1, Phase.WAITING: 2, Phase.REPLAYING: 2, Phase.MERGING: 2}
"""Phases that are soon over, or that few jobs have: of every so many jobs one is met there."""
_STATES: Final = {
    JobState.INITIAL: Phase.QUEUED,
    JobState.QUEUED: Phase.QUEUED,
    JobState.CREATED: Phase.CREATED,
    JobState.CANCELLING: Phase.STOPPING,
    JobState.DROPPING: Phase.STOPPING,
}
Met = tuple[str, ScanType, Phase]
"""What met a job: of which strategy, and in which phase."""


def _nobody(_job: JobId, _phase: Phase) -> None:
    return


def _can_meet(what: str, strategy: ScanType, phase: Phase) -> bool:
    if what == "update":
        alone = strategy is ScanType.SNAPSHOT_BACKFILL and phase is Phase.CREATED
        return alone or strategy is ScanType.ARRANGEMENT_BACKFILL
    if what == "throttle" and phase is Phase.STARTING:
        # In a graph of its own a barrier can say something to a job once the first one is committed.
        return strategy is not ScanType.SNAPSHOT_BACKFILL
    return strategy is ScanType.SNAPSHOT_BACKFILL or phase not in _DECOUPLED


@dataclass
class Coverage:
    """Is told of every transaction of the meta store, as the checker is. `entered` hears of each job that comes into
    another phase.
    """

    tables: Tables
    entered: Callable[[JobId, Phase], None] = _nobody
    met: Counter[Met] = field(default_factory=Counter[Met])
    jobs: Counter[tuple[ScanType, JobState]] = field(default_factory=Counter[tuple[ScanType, JobState]])
    commits: Counter[str] = field(default_factory=Counter[str])
    """Of the database graph, and of graphs of snapshot jobs."""
    _strategies: dict[JobId, ScanType] = field(default_factory=dict[JobId, ScanType])
    _phases: dict[JobId, Phase] = field(default_factory=dict[JobId, Phase])

    def transaction(self, journal: Journal) -> None:
        """Look at what a transaction has changed."""
        tables = self.tables
        for table, key, before in journal:
            if table is tables.fragments:
                self._seen(table.get(key))
            elif table is tables.jobs and isinstance(before, JobRow) and key in tables.jobs:
                self._moved(before.job, tables.jobs[key].job)
            elif table is tables.graphs and isinstance(before, GraphRow) and key in tables.graphs:
                self._graph(before, tables.graphs[key])
            elif table is tables.barriers and key in table:
                self._barrier(before, table[key])
        moving = (tables.jobs, tables.scans, tables.snapshots)
        if any(table is one for table, _, _ in journal for one in moving):
            self._look()

    def everybody(self, what: str) -> None:
        """Something has met all jobs at once."""
        self._meet(what, [row.job for row in self.tables.jobs.values()])

    def _look(self) -> None:
        for job in self._strategies:
            phase = self._phase(self.tables.jobs[job].job)
            if phase is not None and phase is not self._phases.get(job):
                self._phases[job] = phase
                self.entered(job, phase)

    def _seen(self, row: FragmentRow | None) -> None:
        if row is not None and row.scan_type is not None and row.job not in self._strategies:
            self._strategies[row.job] = row.scan_type
            self.jobs[row.scan_type, JobState.INITIAL] += 1

    def _moved(self, before: Job, after: Job) -> None:
        if before.state is after.state or before.id not in self._strategies:
            return
        if before.state in CREATING and after.state in {JobState.CANCELLING, JobState.CANCELLED}:
            self._meet("cancel", [before])
        elif before.state is JobState.CREATED and after.state is JobState.DROPPING:
            self._meet("drop", [before])
        self.jobs[self._strategies[before.id], after.state] += 1

    def _graph(self, before: GraphRow, after: GraphRow) -> None:
        if before.committed != after.committed:
            self.commits["database graph" if after.id == DATABASE_GRAPH else "jobs' graphs"] += 1
        if after.status is GraphStatus.RECOVERING and before.status is not GraphStatus.RECOVERING:
            self._meet("recovery", [row.job for row in self.tables.jobs.values() if row.job.graph == after.id])

    def _barrier(self, before: object, row: BarrierRow) -> None:
        if not isinstance(before, BarrierRow) and row.barrier.mutation is not None:
            self._meet(row.barrier.mutation.type, self._concerned(row.barrier.mutation))

    def _concerned(self, mutation: Mutation) -> list[Job]:
        jobs = self.tables.jobs
        match mutation:
            case Throttle(fragments=limits):
                return self._owners(limits)
            case StartFragmentBackfill(fragments=fragments):
                return self._owners(fragments)
            case Update(fragments=layouts):
                return self._owners(layouts)
            case Stop(jobs=stopped):
                return [jobs[one].job for one in stopped]
            case Pause() | Resume():
                return [row.job for row in jobs.values()]
            case _:
                return []

    def _owners(self, fragments: Iterable[FragmentId]) -> list[Job]:
        known = self.tables.fragments
        return [self.tables.jobs[one].job for one in {known[one].job for one in fragments if one in known}]

    def _meet(self, what: str, jobs: Collection[Job]) -> None:
        for job in jobs:
            phase = self._phase(job) if job.id in self._strategies else None
            if phase is not None:
                self.met[what, self._strategies[job.id], phase] += 1

    def _phase(self, job: Job) -> Phase | None:
        if job.state is not JobState.CREATING:
            return _STATES.get(job.state)
        tables = self.tables
        snapshot = next((one for one in tables.snapshots.values() if one.job == job.id), None)
        if snapshot is not None and (snapshot.merged or snapshot.consumed is not None):
            return Phase.MERGING if snapshot.merged else Phase.REPLAYING
        scans = [row for row in tables.of_job(job.id) if row.id in tables.scans]
        if all(self._through(row) for row in scans):
            return Phase.FINISHING
        if any(row.waiting for row in scans):
            return Phase.WAITING
        return Phase.READING if any(tables.scans[row.id].at is not None for row in scans) else Phase.STARTING

    def _through(self, scan: FragmentRow) -> bool:
        assert scan.upstream is not None
        positions = self.tables.positions.get(scan.id, {}).values()
        done = sum(one.state is PositionState.COMPLETED for one in positions)
        return done == self.tables.relations[scan.upstream].relation.vnode_count


class Ran(Protocol):
    """What a schedule tells of itself."""

    @property
    def generations(self) -> int: ...
    @property
    def calm(self) -> float: ...
    @property
    def faults(self) -> Sequence[str]: ...
    @property
    def coverage(self) -> Coverage: ...


@dataclass
class Total:
    """What many schedules came to."""

    schedules: int = 0
    recoveries: int = 0
    calm: float = 0.0
    faults: Counter[str] = field(default_factory=Counter[str])
    commits: Counter[str] = field(default_factory=Counter[str])
    jobs: Counter[tuple[ScanType, JobState]] = field(default_factory=Counter[tuple[ScanType, JobState]])
    met: Counter[Met] = field(default_factory=Counter[Met])

    def add(self, ran: Ran) -> None:
        """Count one more schedule."""
        self.schedules += 1
        self.recoveries += ran.generations
        self.calm += ran.calm
        self.faults.update(fault.partition(" at ")[0] for fault in ran.faults)
        self.commits.update(ran.coverage.commits)
        self.jobs.update(ran.coverage.jobs)
        self.met.update(ran.coverage.met)

    def missed(self) -> list[Met]:
        """Return what no schedule has met, of what each strategy should meet in each of its phases."""
        return [
            (what, strategy, phase)
            for what, phases in EXPECTED.items()
            for strategy in ScanType
            for phase in phases
            if _can_meet(what, strategy, phase) and not self.met[what, strategy, phase]
        ]

    def lines(self) -> list[str]:
        """Return it as text."""
        counted = [f"{count} {what}" for what, count in sorted(self.commits.items())]
        said = [
            f"{self.schedules} schedules, {self.recoveries} recoveries, commits of {', '.join(counted)}",
            f"I10 could be said of {self.calm:.0f} s",
            "faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items())),
        ]
        for strategy in ScanType:
            ends = [f"{self.jobs[strategy, state]} {state}" for state in JobState if self.jobs[strategy, state]]
            said.append(f"{strategy}: {', '.join(ends)}")
            for what in sorted({one for one, _, _ in self.met}):
                phases = [f"{phase} {self.met[what, strategy, phase]}" for phase in Phase]
                said.append(f"    {what:>22}: {', '.join(phases)}")
        return said
