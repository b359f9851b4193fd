"""What a CDC scan is while it runs: its pages as a Spark job, its place in an epoch, and what is told of it. Next:
`workers.executors.cdc`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from service.protocol.barrier import Barrier
from service.protocol.cdc import CdcScan, CdcTableReport, SourceReport
from service.protocol.ids import Epoch, FragmentId, JobId, RelationId, SourceId
from service.protocol.plan import VnodePosition
from service.protocol.relation import Relation
from service.protocol.report import ActorReport
from workers.backfill.pace import Pace, share_of
from workers.backfill.scan import ScanState, report
from workers.cdc.backoff import Backoff
from workers.cdc.external import Session
from workers.cdc.following import Followed, TableEpoch
from workers.cdc.keys import ExternalTable, stretches
from workers.cdc.pages import Copied, PagesActor, PagesOutcome, PagesTask, copy_pages
from workers.cdc.pgoutput import lsn_text
from workers.cdc.snapshots import Snapshot
from workers.executors.rows import actor_indexes
from workers.state_store.postgres import PostgresStore

PROPERTY = "tidefill.cdc"


class PagesJob:
    """The Spark job that copies pages of one table, planned once per generation; see `arrangement.ScanJob`."""

    def __init__(self, spark: SparkSession, copied: Copied) -> None:
        self._frame = spark.range(0, copied.actors, 1, copied.actors).mapInArrow(
            partial(_copy_actors, copied), "outcome string"
        )
        self._context = spark.sparkContext

    def run(self, task: PagesTask) -> list[PagesOutcome]:
        """Run one epoch; what its actors wrote is durable when it returns. Raises Spark's errors."""
        self._context.setLocalProperty(PROPERTY, task.model_dump_json())
        outcomes = [PagesOutcome.model_validate_json(row[0]) for row in self._frame.collect()]
        assert sorted(outcome.actor for outcome in outcomes) == list(range(len(task.actors))), outcomes
        return sorted(outcomes, key=lambda outcome: outcome.actor)


def _copy_actors(copied: Copied, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    stated = context.getLocalProperty(PROPERTY)
    assert stated is not None, "a task without an epoch"
    task = PagesTask.model_validate_json(stated)
    for batch in batches:
        for actor in actor_indexes(batch):
            outcome = copy_pages(copied, task, actor)
            yield pa.RecordBatch.from_arrays([pa.array([outcome.model_dump_json()])], names=["outcome"])


@dataclass
class FollowedTable:
    """One CDC scan as it runs."""

    job: JobId
    fragment: FragmentId
    relation: Relation
    scan: CdcScan
    state: ScanState
    page_rows: int
    broken: str | None = None
    waiting: str | None = None
    table: ExternalTable | None = None
    """As it is in the catalog there; None until it was looked at with the present sessions."""
    partitions: set[str] = field(default_factory=set[str])
    """Those that came to it while it was followed."""
    pace: Pace = field(default_factory=Pace)
    planned: PagesJob | None = None
    told_finished: bool = False
    outcomes: list[PagesOutcome] = field(default_factory=list[PagesOutcome])
    """What this epoch's pages did, until it is known whether it counts."""
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def positions(self) -> dict[int, VnodePosition]:
        """Where each split stands, over all actors."""
        return {number: at for actor in self.state.actors for number, at in actor.positions.by_vnode.items()}


@dataclass
class Source:
    """One external database. `committed` is the newest offset that a commit is known to hold."""

    id: SourceId
    slot: str
    publication: str
    offset: int
    committed: int
    undecided: tuple[int, ...]
    tables: dict[FragmentId, FollowedTable] = field(default_factory=dict[FragmentId, FollowedTable])
    session: Session | None = None
    conninfo: str = field(default="", repr=False)
    backoff: Backoff = field(default_factory=Backoff)

    def close(self) -> None:
        """End the sessions; what was learnt with them is learnt anew."""
        if self.session is not None:
            self.session.close()
        self.session = None
        for table in self.tables.values():
            table.table = table.planned = None


@dataclass(frozen=True, slots=True)
class CdcTurn:
    """What an epoch gives the sources: the graph's pause, its store, how its Spark jobs take their turn, since when it
    runs, and how many other scans read history in it.
    """

    barrier: Barrier
    store: PostgresStore
    paused: bool
    spark_turn: Callable[[Epoch], AbstractContextManager[None]]
    began: float
    scans: int

    def available_seconds(self, now: float, jobs: int) -> float:
        """Return what is left of the interval for one of `jobs` jobs."""
        elapsed = self.barrier.overhead_ms / 1000 + now - self.began
        return share_of(self.barrier.interval_ms / 1000, elapsed_seconds=elapsed, jobs=jobs)


@dataclass
class CdcEpoch:
    """What an epoch did for all sources."""

    actors: list[ActorReport] = field(default_factory=list[ActorReport])
    sources: list[SourceReport] = field(default_factory=list[SourceReport])
    changed: set[RelationId] = field(default_factory=set[RelationId])
    deltas: dict[RelationId, int] = field(default_factory=dict[RelationId, int])
    inserted: dict[RelationId, int] = field(default_factory=dict[RelationId, int])
    timings_ms: dict[str, float] = field(default_factory=dict[str, float])


def task_of(table: FollowedTable, source: Source, turn: CdcTurn, *, slice_seconds: float) -> PagesTask:
    """Return what the actors of a table may do in this epoch."""
    return PagesTask(
        curr=turn.barrier.curr,
        actors=tuple(
            PagesActor(
                runs=actor.positions.runs,
                positions=tuple(actor.positions.by_vnode.values()),
                permits=actor.budget.permits,
            )
            for actor in table.state.actors
        ),
        slice_seconds=slice_seconds,
        page_rows=table.page_rows,
        undecided=source.undecided,
    )


def epoch_of(table: FollowedTable) -> TableEpoch:
    """Return a table as the log is to be folded over it, after its pages were read."""
    assert table.table is not None
    splits, read = table.scan.splits, [outcome for outcome in table.outcomes if outcome.snapshot is not None]
    return TableEpoch(
        fragment=table.fragment,
        table=table.table,
        settled=stretches(splits, table.positions),
        complete=table.state.finished,
        fresh={o.actor: stretches(splits, {at.vnode: at for at in o.positions}) for o in read},
        snapshots={o.actor: Snapshot.parse(o.snapshot) for o in read if o.snapshot is not None},
        paged=sum(outcome.snapshot_rows for outcome in read),
        broken=table.broken,
        partitions=table.partitions,
    )


def tell(table: FollowedTable, epoch: TableEpoch | None, done: CdcEpoch, *, finishing: bool) -> None:
    """Take over what an epoch did with a table, unless it was taken back, and report it."""
    counts = epoch is not None and epoch.broken is None
    outcomes = {outcome.actor: outcome for outcome in table.outcomes if counts}
    if epoch is not None and counts and (epoch.paged or epoch.made or epoch.ended):
        done.changed.add(table.relation.id)
        done.deltas[table.relation.id] = epoch.delta
        done.inserted[table.relation.id] = epoch.paged + epoch.made
    done.timings_ms |= {f"{name}_{table.fragment}": took for name, took in table.timings_ms.items()}
    changes = epoch.changes if epoch is not None and counts else 0
    if not outcomes and not changes and table.told_finished:
        return
    for index, actor in enumerate(table.state.actors):
        outcome = outcomes.get(index)
        if outcome is not None:
            actor.positions.by_vnode.update({at.vnode: at for at in outcome.positions})
            actor.budget = actor.budget.spent(outcome.snapshot_rows)
    for index, actor in enumerate(table.state.actors):
        outcome = outcomes.get(index)
        told = report(
            table.state,
            actor,
            changed=() if outcome is None else outcome.positions,
            finished=finishing,
            snapshot_rows=0 if outcome is None else outcome.snapshot_rows,
            # The log is read once, not by actors: the first one tells of it.
            upstream_rows=0 if index else changes,
        )
        done.actors.append(told)
    table.told_finished = finishing


def waiting(source: Source, reason: str) -> SourceReport:
    """Tell that nothing of a source was read."""
    return SourceReport(
        source=source.id,
        offset=lsn_text(source.offset),
        undecided=source.undecided,
        waiting=reason,
        tables=_tables_told(source),
    )


def followed(source: Source, epoch: Followed) -> SourceReport:
    """Tell where a source stands."""
    return SourceReport(
        source=source.id,
        offset=lsn_text(source.offset),
        undecided=source.undecided,
        lag_bytes=max(epoch.inserted - source.offset, 0),
        retained_bytes=None if epoch.restart is None else max(epoch.inserted - epoch.restart, 0),
        changes=epoch.changes,
        commit_lag_ms=epoch.commit_lag_ms,
        tables=_tables_told(source),
    )


def _tables_told(source: Source) -> tuple[CdcTableReport, ...]:
    return tuple(
        CdcTableReport(fragment=table.fragment, broken=table.broken, waiting=table.waiting)
        for table in source.tables.values()
        if table.broken is not None or table.waiting is not None
    )
