"""One graph on one worker: what its jobs are, and how one epoch of all of them runs.

The order inside an epoch: the mutation acts first (I4); DML writes the tables; then scans run, upstream before
downstream, each at most one Spark job; what nothing changed and what has no history to read costs nothing. Next:
`workers.executors.arrangement`.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.dml import Unfinished
from service.protocol.ids import DATABASE_GRAPH, Epoch, FragmentId, Generation, GraphId, JobId, RelationId, WorkerId
from service.protocol.mutation import Add, Pause, Resume, StartFragmentBackfill, Stop, Throttle, Update
from service.protocol.plan import ActorPlan, FragmentKind, JobPlan
from service.protocol.report import ActorReport, Collected, RelationReport
from workers.backfill.pace import epoch_seconds, share_of
from workers.backfill.reading import Reading, Replay
from workers.executors.arrangement import ActorOutcome, EpochTask, ScanJob, ScanTask, copied_in_store
from workers.executors.cdc import CdcGraph
from workers.executors.cdc_tables import CdcEpoch, CdcTurn
from workers.executors.culprit import find_culprit
from workers.executors.failure import JobFailedError
from workers.executors.scans import Scan, advance, reading_of, reports_of, scan_of, task_of
from workers.state_store.dml import DmlOutcome, DmlStore
from workers.state_store.postgres import PostgresStore
from workers.state_store.upkeep import Upkeep


@dataclass
class Stores:
    """How the worker reaches the state store in one generation."""

    versioned: PostgresStore
    dml: DmlStore


@dataclass
class GraphExecutor:
    """Runs a graph's epochs. A new generation is a fresh start from the plan of its initial barrier.

    `turn` is held while a Spark job runs: the graphs of snapshot jobs share one, so that however many there are, they
    leave the database graph as many task slots as it uses (I10).
    """

    worker: WorkerId
    spark: SparkSession
    connect: Callable[[Barrier], Stores]
    upkeep: Upkeep | None = None
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext[None])
    pool: str = "default"
    """Spark shares its task slots out evenly between the jobs of different pools."""
    generation: Generation | None = None
    stores: Stores | None = None
    paused: bool = False
    scans: dict[FragmentId, Scan] = field(default_factory=dict)
    replays: dict[JobId, Replay] = field(default_factory=dict)
    """Of the jobs that do not interleave: those of a graph of their own."""
    over: bool = False
    """Whether nobody waits for its epochs any more."""
    cdc: CdcGraph | None = None
    """The external databases that it follows: those of the database graph."""

    def run(self, barrier: Barrier) -> Collected:
        """Run one epoch; when it returns, everything it wrote is durable. Raises JobFailedError where one job is to
        blame.
        """
        began = _monotonic()
        if barrier.kind is BarrierKind.INITIAL:
            self.scans, self.replays = {}, {}
            self.generation, self.stores = barrier.generation, self.connect(barrier)
        assert barrier.generation == self.generation, "a barrier of another generation"
        assert self.stores is not None
        self._mutate(barrier)
        dml = self.stores.dml.run(barrier.statements, barrier.curr, barrier.dml) if barrier.statements else None
        dml_ended = _monotonic()
        external = self._follow(barrier, began)
        changed = external.changed | (set() if dml is None else set(dml.changed))
        deltas = external.deltas | ({} if dml is None else dml.key_count_deltas)
        scans = self._ordered()
        reports, consumed = self._run_scans(scans, barrier, changed, deltas, began)
        self._keep_up(dml, scans, external)
        return Collected(
            worker=self.worker,
            graph=barrier.graph,
            generation=barrier.generation,
            epoch=barrier.curr,
            actors=(*external.actors, *reports),
            sources=tuple(external.sources),
            relations=tuple(
                RelationReport(relation=relation, key_count_delta=delta) for relation, delta in deltas.items() if delta
            ),
            statements=() if dml is None else dml.results,
            unfinished=Unfinished() if dml is None else dml.unfinished,
            timings_ms={
                "dml": (dml_ended - began) * 1000,
                "epoch": (_monotonic() - began) * 1000,
                **external.timings_ms,
                **{f"{name}_{scan.state.id}": took for scan in scans for name, took in scan.timings_ms.items()},
            },
            consumed=consumed,
        )

    def interrupt(self) -> None:
        """End this executor: no Spark job of it begins from now on, and one that runs is cancelled, so that its turn is
        another's. Called from another thread than the one that hangs.
        """
        self.over = True
        for scan in list(self.scans.values()):
            if scan.planned is not None:
                scan.planned.give_up()
        self.spark.sparkContext.cancelJobGroup(self._group)

    def _check_present(self) -> None:
        if self.over:
            raise InterruptedError(f"generation {self.generation} is over")

    @property
    def _group(self) -> str:
        """What Spark calls the jobs of this generation."""
        return f"{self.pool}-{self.generation}"

    def _run_scans(
        self,
        scans: Sequence[Scan],
        barrier: Barrier,
        changed: set[RelationId],
        deltas: dict[RelationId, int],
        began: float,
    ) -> tuple[list[ActorReport], Epoch | None]:
        """Run each scan once, in what is left of the interval; return what they tell, and how far a replay came."""
        reports: list[ActorReport] = []
        overhead = barrier.overhead_ms / 1000
        interval = epoch_seconds(barrier.interval_ms / 1000, alone=barrier.graph != DATABASE_GRAPH)
        before = self._replay_upto(barrier)
        readings = {job: replay.reading(before) for job, replay in self.replays.items()}
        backfilling = sum(self._may_read(scan) for scan in scans)
        for scan in scans:
            reading = self._looked_at(scan, readings.get(scan.job) or reading_of(scan, barrier, changed))
            available = partial(_available, interval, began - overhead, backfilling)
            backfilling -= self._may_read(scan)
            reports += self._run_scan(scan, barrier, reading, changed, deltas, available)
        # Looked at again: a snapshot may have been read to its end in this epoch.
        upto = self._replay_upto(barrier)
        if upto is None:
            return reports, None
        for job, reading in readings.items():
            self.replays[job].replayed(reading, upto)
        return reports, max((reading.upto for reading in readings.values()), default=None)

    def _replay_upto(self, barrier: Barrier) -> Epoch | None:
        """Return how far the change log may be replayed now: only once the snapshot is read, and not while a pause or
        a limit of 0 holds the job.
        """
        scans = [scan.state for scan in self.scans.values()]
        held = self.paused or any(scan.held or not scan.finished for scan in scans)
        return None if held else barrier.replay_upto

    def _follow(self, barrier: Barrier, began: float) -> CdcEpoch:
        """Follow the external databases, before the scans that read their tables."""
        if self.cdc is None:
            return CdcEpoch()
        assert self.stores is not None
        waiting = sum(map(self._may_read, self.scans.values()))
        turn = CdcTurn(barrier, self.stores.versioned, self.paused, self._spark_turn, began, waiting)
        return self.cdc.run(turn)

    def _looked_at(self, scan: Scan, reading: Reading) -> Reading:
        """Return what there is to read. A job that follows the change log mostly finds it empty, and looking costs less
        than a Spark job: all the more in the database graph's barrier at which it merges.
        """
        assert self.stores is not None
        if not reading.changes or (scan.job not in self.replays and scan.consumed is None):
            return reading
        if self.stores.versioned.changed(scan.upstream, after=reading.after, upto=reading.upto):
            return reading
        scan.consumed = None
        return replace(reading, after=reading.upto)

    def _keep_up(self, dml: DmlOutcome | None, scans: Iterable[Scan], external: CdcEpoch) -> None:
        if self.upkeep is None:
            return
        for relation, rows in external.inserted.items():
            self.upkeep.wrote(relation, rows)
        for result, relation in () if dml is None else zip(dml.results, dml.relations, strict=True):
            self.upkeep.wrote(relation, result.affected)
        for scan in scans:
            self.upkeep.wrote(scan.target.id, scan.inserted)
        self.upkeep.look()

    def _mutate(self, barrier: Barrier) -> None:
        now = _monotonic()
        match barrier.mutation:
            case Pause() | Resume():
                self.paused = isinstance(barrier.mutation, Pause)
            case Throttle(fragments=limits):
                self._throttle(limits, now)
            case StartFragmentBackfill(fragments=fragments):
                self._release(fragments)
            case Add(jobs=jobs, paused=paused):
                self.paused = paused if barrier.kind is BarrierKind.INITIAL else self.paused
                self._add(jobs, barrier.graph, now)
            case Stop(jobs=jobs):
                self.scans = {id_: scan for id_, scan in self.scans.items() if scan.job not in jobs}
            case Update(fragments=fragments):
                self._rescale(fragments, now)
            case None:
                pass

    def _throttle(self, limits: Mapping[FragmentId, int | None], now: float) -> None:
        for scan in self._named(limits):
            scan.state.throttle(limits[scan.state.id], now=now)

    def _release(self, fragments: Iterable[FragmentId]) -> None:
        for scan in self._named(fragments):
            scan.state.waiting = False

    def _rescale(self, fragments: Mapping[FragmentId, Sequence[ActorPlan]], now: float) -> None:
        for scan in self._named(fragments):
            scan.state.rescale(fragments[scan.state.id], now=now)
            # Its job has a partition for each actor; and the new ones have told nothing yet.
            scan.planned, scan.told_finished = None, False

    def _named(self, fragments: Iterable[FragmentId]) -> list[Scan]:
        """Return the scans among `fragments` that this graph has: a job may have been stopped meanwhile."""
        return [self.scans[fragment] for fragment in fragments if fragment in self.scans]

    def _add(self, jobs: Iterable[JobPlan], graph: GraphId, now: float) -> None:
        for job in jobs:
            if job.snapshot is not None and graph != DATABASE_GRAPH:
                self.replays[job.id] = Replay(job.snapshot.epoch, job.snapshot.consumed)
            for fragment in job.fragments:
                if fragment.kind is FragmentKind.STREAM_SCAN:
                    self.scans[fragment.id] = scan_of(job, fragment, now)

    def _ordered(self) -> list[Scan]:
        """Upstream before downstream: a relation is created after everything it reads."""
        return sorted(self.scans.values(), key=lambda scan: scan.target.id)

    def _may_read(self, scan: Scan) -> bool:
        return scan.state.may_read(paused=self.paused)

    def _run_scan(
        self,
        scan: Scan,
        barrier: Barrier,
        reading: Reading,
        changed: set[RelationId],
        deltas: dict[RelationId, int],
        available: Callable[[], float],
    ) -> list[ActorReport]:
        finished, may_read = scan.state.finished, self._may_read(scan)
        for actor in scan.state.actors:
            actor.budget = actor.budget.refilled(_monotonic(), interval_seconds=barrier.interval_ms / 1000)
        permits = [actor.budget.permits if may_read else 0 for actor in scan.state.actors]
        outcomes: list[ActorOutcome] | None = None
        scan.inserted, scan.timings_ms = 0, {}
        if reading.changes or any(allowed != 0 for allowed in permits):
            outcomes = self._run_job(scan, task_of(scan, barrier.curr, reading, permits), available)
            scan.consumed = None
            scan.inserted = sum(outcome.inserted for outcome in outcomes)
            closed = sum(outcome.closed for outcome in outcomes)
            if scan.inserted or closed:
                changed.add(scan.target.id)
                deltas[scan.target.id] = deltas.get(scan.target.id, 0) + scan.inserted - closed
        # Where nothing interleaves there is no change left that its last page might have missed.
        finishing = scan.state.finished if scan.job in self.replays else finished
        return reports_of(scan, outcomes, finishing=finishing)

    def _job(self, scan: Scan) -> ScanJob:
        """Plan the scan's job when it first runs: an idle view costs nothing."""
        if scan.planned is None:
            scan.planned = ScanJob(self.spark, self._scan_task(scan), scan.query)
        return scan.planned

    def _scan_task(self, scan: Scan) -> ScanTask:
        assert self.stores is not None
        state, store = scan.state, self.stores.versioned
        return ScanTask(store, scan.upstream, scan.target, len(state.actors), scan.pushdown, state.block_vnodes)

    @contextmanager
    def _spark_turn(self, epoch: Epoch) -> Generator[None]:
        """Hold the turn of a Spark job of this generation."""
        with self.turn:
            self._check_present()
            self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pool)
            self.spark.sparkContext.setJobGroup(self._group, f"epoch {epoch}")
            yield

    def _run_job(self, scan: Scan, task: EpochTask, available: Callable[[], float]) -> list[ActorOutcome]:
        try:
            with self._spark_turn(task.curr):
                # Only now: who waited long for the turn makes up for it.
                began, copies = _monotonic(), copied_in_store(scan.pushdown, task.reading, finished=scan.state.finished)
                task = task.model_copy(update={"slice_seconds": scan.paces[copies].slice_seconds(available())})
                job = self._job(scan)
                # Once more: who interrupts after this finds the job.
                self._check_present()
                outcomes = job.run(task, in_store=copies)
        except Exception as error:
            raise JobFailedError(
                scan.job,
                error,
                target=scan.target,
                upstream=scan.upstream,
                find_key=partial(find_culprit, self.spark, self._scan_task(scan), scan.query, task),
            ) from error
        job_seconds = _monotonic() - began
        if any(outcome.used_slice for outcome in outcomes):
            pace = scan.paces[copies].measured(job_seconds=job_seconds, slice_seconds=task.slice_seconds)
            scan.paces[copies] = pace
        reading_seconds = max(outcome.reading_seconds for outcome in outcomes)
        scan.timings_ms = {
            "job": job_seconds * 1000,
            "slice": task.slice_seconds * 1000,
            "reading": reading_seconds * 1000,
        }
        scan.page_rows = min(outcome.page_rows for outcome in outcomes)
        for actor, outcome in zip(scan.state.actors, sorted(outcomes, key=lambda o: o.actor), strict=True):
            advance(actor, outcome)
        return outcomes


def _available(interval: float, began: float, jobs: int) -> float:
    return share_of(interval, elapsed_seconds=_monotonic() - began, jobs=jobs)


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - the executor owns the worker's clock
