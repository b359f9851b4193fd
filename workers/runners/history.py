"""The common part of all scans that read history: apply mutations, give out permits, and report progress."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.protocol.ids import JobId
from service.protocol.mutation import Mutation, StartFragmentBackfill, Throttle, Update
from service.protocol.plan import VnodePosition
from service.protocol.relation import Relation
from service.protocol.report import ActorReport
from workers.backfill.actors import ActorTask
from workers.backfill.pace import PAGE_ROWS_FIRST, Pace
from workers.backfill.scan import ScanState, report
from workers.runners.port import RunningEpoch


class Outcome(Protocol):
    """The result of one actor in an epoch. `page_rows` is the size of its next page; seconds count from the task's
    start.
    """

    @property
    def actor(self) -> int: ...
    @property
    def positions(self) -> tuple[VnodePosition, ...]: ...
    @property
    def snapshot_rows(self) -> int: ...
    @property
    def page_rows(self) -> int: ...
    @property
    def reading_seconds(self) -> float: ...
    @property
    def used_slice(self) -> bool: ...


@dataclass
class HistoryScan:
    """One scan fragment while it runs."""

    job: JobId
    target: Relation
    state: ScanState
    page_rows: int = PAGE_ROWS_FIRST
    told_finished: bool = False
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])
    """Of the last epoch's job: its duration, its slice, and the reading time of its slowest reader."""

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Apply a mutation if it names this fragment."""
        fragment = self.state.id
        match mutation:
            case Throttle(fragments=limits) if fragment in limits:
                self.state.throttle(limits[fragment], now=now)
            case StartFragmentBackfill(fragments=released) if fragment in released:
                self.state.waiting = False
            case Update(fragments=actors) if fragment in actors:
                self.state.rescale(actors[fragment], now=now)
                # The job has one partition per actor, so it is planned again. The new actors have reported nothing yet.
                self.told_finished = False
                self.replan()
            case _:
                pass

    def replan(self) -> None:
        """Discard the plans for computing an epoch, because the actors have changed."""
        raise NotImplementedError

    def may_read(self, *, paused: bool) -> bool:
        """Whether the scan may read history in an epoch whose graph is `paused` or not."""
        return self.state.may_read(paused=paused)

    def readers(self, *, paused: bool) -> int:
        """Return 1 if the scan may read history, otherwise 0."""
        return int(self.may_read(paused=paused))

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Return whether its job is among `jobs`."""
        return self.job in jobs

    def permits(self, epoch: RunningEpoch) -> list[int | None]:
        """Return how many rows each actor may read now; None is unlimited."""
        interval = epoch.barrier.interval_ms / 1000
        for actor in self.state.actors:
            actor.budget = actor.budget.refilled(epoch.clock(), interval_seconds=interval)
        may_read = self.may_read(paused=epoch.paused)
        return [actor.budget.permits if may_read else 0 for actor in self.state.actors]

    def page_permits(self, epoch: RunningEpoch) -> list[int | None]:
        """Return `permits`, of a scan whose pages the store computes: none if it is not its turn (`PageTurns`)."""
        permits = self.permits(epoch)
        waits = any(allowed != 0 for allowed in permits) and not epoch.stores.may_read(self.state.id, epoch.clock())
        return [0] * len(permits) if waits else permits

    def actor_tasks(self, permits: Sequence[int | None]) -> tuple[ActorTask, ...]:
        """Return the task of each actor."""
        return tuple(
            ActorTask(runs=actor.positions.runs, positions=tuple(actor.positions.by_vnode.values()), permits=allowed)
            for actor, allowed in zip(self.state.actors, permits, strict=True)
        )

    def measure(self, outcomes: Sequence[Outcome], pace: Pace, *, slice_seconds: float, job_seconds: float) -> Pace:
        """Set the next page size from a job's outcomes, and return the pace for the next slice."""
        reading = max(outcome.reading_seconds for outcome in outcomes)
        self.timings_ms = {"job": job_seconds * 1000, "slice": slice_seconds * 1000, "reading": reading * 1000}
        self.page_rows = min(outcome.page_rows for outcome in outcomes)
        if any(outcome.used_slice for outcome in outcomes):
            return pace.measured(job_seconds=job_seconds, slice_seconds=slice_seconds)
        return pace

    def advance(self, outcomes: Sequence[Outcome]) -> None:
        """Record the actors' new positions, and take the rows that they read out of their budgets."""
        for outcome in outcomes:
            actor = self.state.actors[outcome.actor]
            for position in outcome.positions:
                actor.positions.put(position)
            actor.budget = actor.budget.spent(outcome.snapshot_rows)

    def reports(
        self,
        outcomes: Mapping[int, Outcome],
        *,
        finishing: bool,
        forwarded: Callable[[int], int],
        held_up: bool = False,
    ) -> Sequence[ActorReport]:
        """Return a report of each actor. `forwarded` gives the number of live changes that an actor forwarded. If the
        scan is `held_up`, the next barrier does not finish it either.

        A scan that has reported its finish in this generation, and forwards nothing, reports nothing.
        """
        told, self.told_finished = self.told_finished, finishing
        if told and finishing and not outcomes and not any(map(forwarded, range(len(self.state.actors)))):
            return ()
        reports: list[ActorReport] = []
        completed = self.state.finished and not (finishing or held_up)
        for index, actor in enumerate(self.state.actors):
            outcome = outcomes.get(index)
            reports.append(
                report(
                    self.state,
                    actor,
                    changed=() if outcome is None else outcome.positions,
                    completed=completed,
                    finished=finishing,
                    snapshot_rows=0 if outcome is None else outcome.snapshot_rows,
                    upstream_rows=forwarded(index),
                )
            )
        return reports
