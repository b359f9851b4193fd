"""Run the CDC scan of one followed table: its pages as a Spark job, its part of an epoch, and its report. Next:
`workers.runners.source_scan`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from service.protocol.cdc import CdcScan, CdcTableReport, Sweep
from service.protocol.ids import Epoch, Generation
from service.protocol.mutation import Mutation, Reload
from service.protocol.plan import VnodePosition
from service.protocol.relation import versions_of
from service.protocol.report import ActorReport
from workers.backfill.pace import Pace
from workers.cdc.keys import ExternalTable, stretches
from workers.cdc.pages import Copied, PagesOutcome, PagesTask, copy_pages
from workers.cdc.publication import Watch
from workers.cdc.snapshots import Snapshot
from workers.cdc.sweeping import Swept
from workers.cdc.table_epoch import TableEpoch, remedy
from workers.connectors.in_place import version_at, version_row
from workers.connectors.port import Carried
from workers.engines.rows import actor_indexes
from workers.runners.carrier import Carrier
from workers.runners.history import HistoryScan
from workers.runners.port import RunningEpoch
from workers.spark.frames import OUTCOME, outcome, run_frame, task_of


class PagesJob:
    """The Spark job that copies pages of one table. It is planned once and reused; see `SparkEngine`."""

    def __init__(self, spark: SparkSession, copied: Copied) -> None:
        self._frame = spark.range(0, copied.actors, 1, copied.actors).mapInArrow(
            partial(_copy_actors, copied), f"{OUTCOME} string"
        )

    def run(self, task: PagesTask) -> list[PagesOutcome]:
        """Run one epoch. The rows that its actors wrote are durable when it returns. Raises Spark's errors."""
        outcomes = [PagesOutcome.model_validate_json(text) for text in run_frame(self._frame, task)]
        assert sorted(outcome.actor for outcome in outcomes) == list(range(len(task.actors))), outcomes
        return sorted(outcomes, key=lambda outcome: outcome.actor)


def _copy_actors(copied: Copied, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    task = task_of(PagesTask)
    for batch in batches:
        for actor in actor_indexes(batch):
            yield outcome(copy_pages(copied, task, actor).model_dump_json())


@dataclass(kw_only=True)
class FollowedTable(HistoryScan):
    """One CDC scan while it runs."""

    scan: CdcScan
    broken: str | None = None
    waiting: str | None = None
    table: ExternalTable | None = None
    """The table as the external catalog has it. None until the present sessions have looked it up."""
    watch: Watch = field(default_factory=lambda: Watch(None))
    """How the table was published, as accepted so far."""
    pace: Pace = field(default_factory=Pace)
    sweep: Sweep | None = None
    """How far a reload has compared the stored keys."""
    swept: Swept | None = None
    """The result of this epoch's comparison. It counts only after the log was read."""
    nulled: int = 0
    """How many values were stored as NULL since the history began."""
    planned: PagesJob | None = None
    outcomes: list[PagesOutcome] = field(default_factory=list[PagesOutcome])
    """The results of this epoch's pages. They count only after the log was read."""
    carried: Callable[[Generation], Carried] | None = None
    """Makes the table in a lake that has the rows. None if the state store has them."""
    carrier: Carrier | None = None
    """What carries the rows there, from the first epoch on."""
    read_at: Epoch | None = None
    """The epoch up to which the table in the lake has to come before the history is over."""
    rows: int | None = None
    """How many rows the table in the lake had when they were last counted."""

    @property
    def positions(self) -> dict[int, VnodePosition]:
        """The positions of the splits of all actors."""
        return {number: at for actor in self.state.actors for number, at in actor.positions.by_vnode.items()}

    def replan(self) -> None:
        """Discard the Spark job, because it has one partition per actor."""
        self.planned = None

    def mutate(self, mutation: Mutation, now: float) -> None:
        """Apply a mutation if it names this fragment."""
        super().mutate(mutation, now)
        if isinstance(mutation, Reload) and self.state.id in mutation.fragments:
            self.target = mutation.relations.get(self.state.id, self.target)
            self._reload(mutation.fragments[self.state.id])

    def _reload(self, scan: CdcScan) -> None:
        """Begin the history anew, over the stored rows."""
        for actor in self.state.actors:
            actor.positions = replace(actor.positions, by_vnode={}, changed=set())
        self.scan, self.watch, self.sweep, self.nulled = scan, Watch(scan.published), scan.sweep, scan.nulled
        self.broken, self.told_finished = None, False
        self.forget()

    def forget(self) -> None:
        """Discard the external table and the Spark job, because their sessions have ended."""
        self.table = self.planned = None

    def may_read(self, *, paused: bool) -> bool:
        """Return whether history may be read in an epoch. `paused`: whether the graph is paused."""
        full = self.carrier is not None and self.carrier.full
        return self.broken is None and not full and super().may_read(paused=paused)

    def begin(self, epoch: RunningEpoch, spark: SparkSession, *, committed: bool) -> None:
        """Begin an epoch, before which the last one was `committed` or not."""
        self.outcomes, self.swept, self.waiting, self.timings_ms = [], None, None, {}
        if self.carried is None:
            return
        if self.carrier is None:
            make = partial(self.carried, epoch.barrier.generation)
            caller = epoch.stores.costs.caller(self.job)
            self.carrier = Carrier(spark, epoch.stores.by_sql, self.target, make, caller)
            self.carrier.start()
        if committed:
            self.carrier.committed(epoch.barrier.prev)
        if self.carrier.broken is not None and self.broken is None and (self.sweep is None or self.sweep.over):
            self.broken = f"{self.carrier.broken}: {remedy(self.target.name)}"
        if self.carrier.away is not None:
            self.waiting = f"its rows wait for its Delta table: {self.carrier.away}"
        elif self.carrier.full:
            self.waiting = f"{self.carrier.backlog} rows wait to be written to its Delta table"

    def over(self, prev: Epoch) -> bool:
        """Whether the history was over at the epoch before this one, also in a lake."""
        if not self.state.finished:
            self.read_at = None
            return False
        if self.carrier is None:
            return True
        self.read_at = prev if self.read_at is None else self.read_at
        return self.carrier.has(self.read_at)

    def emptied(self, epoch: Epoch) -> None:
        """Take note that a reload empties the table in the lake at an epoch."""
        if self.carrier is not None:
            self.carrier.emptied(epoch)

    def end(self) -> None:
        """Carry no more."""
        if self.carrier is not None:
            self.carrier.end()

    def _store_version(self, carrier: Carrier, epoch: RunningEpoch) -> None:
        """Store the version that the table in the lake has from this epoch on."""
        had, store = carrier.had, epoch.stores.versioned
        before = None if had is None else version_at(store, self.target, epoch.barrier.prev)
        if had is None or had.version == before:
            return
        store.write(versions_of(self.target), epoch.barrier.curr, version_row(had.version, before))
        known = 0 if before is None else had.rows if self.rows is None else self.rows
        self.rows = had.rows
        # Besides the rows, as many as are known, the version itself has changed.
        epoch.wrote(self.target.id, inserted=1 + max(had.rows - known, 0), ended=1 + max(known - had.rows, 0))

    def pages_task(self, curr: Epoch, permits: Sequence[int | None], undecided: tuple[int, ...]) -> PagesTask:
        """Return the task of its actors for an epoch, without their time slice."""
        return PagesTask(curr=curr, actors=self.actor_tasks(permits), page_rows=self.page_rows, undecided=undecided)

    def measured(self, *, slice_seconds: float, job_seconds: float) -> None:
        """Adapt page size and pace to the Spark job that returned `outcomes`."""
        self.pace = self.measure(self.outcomes, self.pace, slice_seconds=slice_seconds, job_seconds=job_seconds)

    def epoch(self, described: ExternalTable | None = None) -> TableEpoch:
        """Return the table's epoch for the fold of the log. Call it after the pages were read.

        `described` is the external table where its lookup has failed.
        """
        table = self.table or described
        assert table is not None
        splits, read = self.scan.splits, [outcome for outcome in self.outcomes if outcome.snapshot is not None]
        return TableEpoch(
            fragment=self.state.id,
            table=table,
            settled=stretches(splits, self.positions),
            complete=self.state.finished,
            fresh={o.actor: stretches(splits, {at.vnode: at for at in o.positions}) for o in read},
            snapshots={o.actor: Snapshot.parse(o.snapshot) for o in read if o.snapshot is not None},
            paged=sum(o.snapshot_rows if o.made is None else o.made for o in read),
            ended=sum(outcome.ended for outcome in read) + (0 if self.swept is None else self.swept.ended),
            nulled=sum(outcome.nulled for outcome in read),
            broken=self.broken,
            watch=self.watch,
        )

    def take(self, done: TableEpoch | None, epoch: RunningEpoch, *, finishing: bool) -> Sequence[ActorReport]:
        """Record what an epoch did with the table, unless that was undone, and return the actors' reports."""
        counts = done is not None and done.broken is None
        outcomes = {outcome.actor: outcome for outcome in self.outcomes if counts}
        if counts and self.swept is not None:
            self.sweep = self.swept.sweep
        if self.carrier is not None:
            self._store_version(self.carrier, epoch)
            self.carrier.backlog += 0 if done is None or not counts else done.paged + done.changes
        elif done is not None and counts:
            epoch.wrote(self.target.id, inserted=done.paged + done.made, ended=done.ended)
        if done is not None and counts:
            self.nulled += done.nulled
        epoch.timings_ms |= {f"{name}_{self.state.id}": took for name, took in self.timings_ms.items()}
        changes = done.changes if done is not None and counts else 0
        self.advance(list(outcomes.values()))
        # The log is read once, not by the actors, so the first actor reports its changes.
        held_up = self.carrier is not None and not finishing
        forwarded = (changes, *(0 for _ in self.state.actors))
        return self.reports(outcomes, finishing=finishing, held_up=held_up, forwarded=forwarded.__getitem__)

    def told(self) -> CdcTableReport | None:
        """Return why the table is broken or has to wait, and how it is published. None where nothing is to report."""
        published = self.watch.at_offset
        if published is None or published == self.scan.published:
            published = None
        else:
            self.scan = self.scan.model_copy(update={"published": published})
        sweep = None if self.sweep == self.scan.sweep else self.sweep
        if sweep is not None:
            self.scan = self.scan.model_copy(update={"sweep": sweep})
        nulled = None if self.nulled == self.scan.nulled else self.nulled
        if nulled is not None:
            self.scan = self.scan.model_copy(update={"nulled": nulled})
        told = {
            "broken": self.broken,
            "waiting": self.waiting,
            "published": published,
            "sweep": sweep,
            "nulled": nulled,
        }
        if all(one is None for one in told.values()):
            return None
        return CdcTableReport.model_validate({"fragment": self.state.id, **told})
