"""What all scans that read history have in common: what a mutation changes, what their actors may read in an epoch,
and what is reported of them.
"""

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
    """What one actor did in an epoch. `page_rows` is how large its next page may be; seconds are from its start."""

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
    """One scan fragment as it runs."""

    job: JobId
    target: Relation
    state: ScanState
    page_rows: int = PAGE_ROWS_FIRST
    told_finished: bool = False
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])
    """The last epoch's job: how long it ran, its slice, and how long its slowest reader read."""

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Let a mutation act, if it is about this fragment."""
        fragment = self.state.id
        match mutation:
            case Throttle(fragments=limits) if fragment in limits:
                self.state.throttle(limits[fragment], now=now)
            case StartFragmentBackfill(fragments=released) if fragment in released:
                self.state.waiting = False
            case Update(fragments=actors) if fragment in actors:
                self.state.rescale(actors[fragment], now=now)
                # Its job has a partition for each actor; and the new ones have reported nothing yet.
                self.told_finished = False
                self.replan()
            case _:
                pass

    def replan(self) -> None:
        """Forget how the present actors' part of an epoch is computed."""
        raise NotImplementedError

    def may_read(self, *, paused: bool) -> bool:
        """Whether history may be read in an epoch of a graph that is paused or not."""
        return self.state.may_read(paused=paused)

    def permits(self, epoch: RunningEpoch) -> list[int | None]:
        """Return how many rows each actor may read now; None is any number."""
        interval = epoch.barrier.interval_ms / 1000
        for actor in self.state.actors:
            actor.budget = actor.budget.refilled(epoch.clock(), interval_seconds=interval)
        may_read = self.may_read(paused=epoch.paused)
        return [actor.budget.permits if may_read else 0 for actor in self.state.actors]

    def actor_tasks(self, permits: Sequence[int | None]) -> tuple[ActorTask, ...]:
        """Return what each actor may do."""
        return tuple(
            ActorTask(runs=actor.positions.runs, positions=tuple(actor.positions.by_vnode.values()), permits=allowed)
            for actor, allowed in zip(self.state.actors, permits, strict=True)
        )

    def measure(self, outcomes: Sequence[Outcome], pace: Pace, *, slice_seconds: float, job_seconds: float) -> Pace:
        """Learn from a job how large pages and how long slices may be; return the new pace."""
        reading = max(outcome.reading_seconds for outcome in outcomes)
        self.timings_ms = {"job": job_seconds * 1000, "slice": slice_seconds * 1000, "reading": reading * 1000}
        self.page_rows = min(outcome.page_rows for outcome in outcomes)
        if any(outcome.used_slice for outcome in outcomes):
            return pace.measured(job_seconds=job_seconds, slice_seconds=slice_seconds)
        return pace

    def advance(self, outcomes: Sequence[Outcome]) -> None:
        """Take over how far the actors came."""
        for outcome in outcomes:
            actor = self.state.actors[outcome.actor]
            for position in outcome.positions:
                actor.positions.by_vnode[position.vnode] = position
            actor.budget = actor.budget.spent(outcome.snapshot_rows)

    def reports(
        self, outcomes: Mapping[int, Outcome], *, finishing: bool, forwarded: Callable[[int], int]
    ) -> Sequence[ActorReport]:
        """Return a report of each actor; `forwarded` gives the live changes that one of them forwarded.

        A scan that has told its finish once in this generation and forwards nothing has nothing more to tell.
        """
        told, self.told_finished = self.told_finished, finishing
        if told and finishing and not outcomes and not any(map(forwarded, range(len(self.state.actors)))):
            return ()
        reports: list[ActorReport] = []
        for index, actor in enumerate(self.state.actors):
            outcome = outcomes.get(index)
            reports.append(
                report(
                    self.state,
                    actor,
                    changed=() if outcome is None else outcome.positions,
                    finished=finishing,
                    snapshot_rows=0 if outcome is None else outcome.snapshot_rows,
                    upstream_rows=forwarded(index),
                )
            )
        return reports
