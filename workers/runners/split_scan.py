"""Run a scan of an external system by splits: its connector reads rows, and the scan writes them to the job's table.

The worker's own process reads and writes, without Spark. One transaction writes an epoch's rows of all splits. A row
replaces an older row with the same key. Next: `workers.connectors.port`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.protocol.ids import JobId, RelationId
from service.protocol.plan import FragmentPlan, JobPlan, PositionState, SplitScanPlan, VnodePosition
from service.protocol.relation import Relation
from service.protocol.vnodes import vnodes_of
from workers.backfill.scan import ScanState
from workers.cdc.apply import applying
from workers.cdc.fold import Folded, Key, Values
from workers.cdc.pgoutput import piece_of
from workers.connectors.kinds import SOURCES
from workers.connectors.port import SplitReader
from workers.runners.failure import JobFailedError
from workers.runners.history import HistoryScan
from workers.runners.port import FragmentReport, FragmentRunner, Phase, Place, RunningEpoch

INTERVAL_MAX_MS: Final = 10_000
"""After a longer gap between two epochs, only the rows of this time are due, because the epoch would be huge."""
PAGE_ROWS_MAX: Final = 10_000
"""The page size that an outcome reports. A scan reads all due rows of a split at once, whatever their number."""


@dataclass
class SplitOutcome:
    """The result of one actor in an epoch: an `Outcome`."""

    actor: int
    by_split: dict[int, VnodePosition] = field(default_factory=dict[int, VnodePosition])
    snapshot_rows: int = 0
    page_rows: int = PAGE_ROWS_MAX
    reading_seconds: float = 0.0
    used_slice: bool = False

    @property
    def positions(self) -> tuple[VnodePosition, ...]:
        """The positions that changed."""
        return tuple(self.by_split.values())


@dataclass(kw_only=True)
class SplitScan(HistoryScan):
    """One scan while it runs: a `FragmentRunner`."""

    reader: SplitReader
    settled: bool = True
    """Its table belongs to the database graph, which replays no change log."""

    @classmethod
    def join(
        cls, _runners: Mapping[Place, FragmentRunner], job: JobPlan, fragment: FragmentPlan, now: float
    ) -> "SplitScan":
        """Build a scan from its plan."""
        assert isinstance(fragment, SplitScanPlan)
        reader = SOURCES[fragment.connector.name](fragment.connector.options, job.relation)
        return cls(job.id, job.relation, ScanState.of(fragment, now=now), reader=reader)

    @property
    def place(self) -> Place:
        """Its place in the epoch: before all scans, by table."""
        return Phase.SOURCE, self.target.id, self.state.id

    @property
    def reads(self) -> Collection[RelationId]:
        """It reads no relation of the graph."""
        return ()

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Return False. It runs before all scans that read its table."""
        del epoch
        return False

    def replan(self) -> None:
        """Do nothing, because it has no Spark plan that depends on the actors."""

    def readers(self, *, paused: bool) -> int:
        """Return 1 if the scan may read, otherwise 0."""
        return int(self.may_read(paused=paused))

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Return whether its job is among `jobs`."""
        return self.job in jobs

    def end(self) -> None:
        """Do nothing, because it keeps no connection between epochs."""

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Read the due rows, write them, and return the actors' reports. Raises JobFailedError."""
        finished, outcomes = self.state.finished, dict[int, SplitOutcome]()
        permits = self.permits(epoch)
        if any(allowed != 0 for allowed in permits):
            rows: dict[Key, Values] = {}
            for index, allowed in enumerate(permits):
                outcome = self._read(epoch, index, allowed, rows)
                if outcome.by_split:
                    outcomes[index] = outcome
            if rows:
                self._write(epoch, rows)
            self.advance(list(outcomes.values()))
        return self.reports(outcomes, finishing=finished, forwarded=lambda _: 0)

    def _read(self, epoch: RunningEpoch, index: int, permits: int | None, rows: dict[Key, Values]) -> SplitOutcome:
        """Read the due rows of an actor's splits into `rows`, within its permits."""
        outcome, positions = SplitOutcome(index), self.state.actors[index].positions
        for split in vnodes_of(positions.runs):
            at = positions.by_vnode.get(split)
            if at is not None and at.state is PositionState.COMPLETED:
                continue
            due = self.reader.due(split, *_time_of(epoch))
            left = due if permits is None else min(due, permits - outcome.snapshot_rows)
            part = self.reader.read(split, None if at is None or at.key is None else at.key[0], max(left, 0))
            for row in part.rows:
                rows[_key(self.target, row)] = tuple(map(piece_of, row))
            outcome.snapshot_rows += len(part.rows)
            read = len(part.rows) + (0 if at is None else at.rows)
            if part.over and left > 0:
                at = VnodePosition(vnode=split, state=PositionState.COMPLETED, rows=read)
            elif part.rows:
                at = VnodePosition(vnode=split, state=PositionState.IN_PROGRESS, key=(part.position,), rows=read)
            else:
                continue
            outcome.by_split[split] = at
        return outcome

    def _write(self, epoch: RunningEpoch, rows: Mapping[Key, Values]) -> None:
        try:
            with applying(epoch.stores.by_sql) as writer:
                writer.load(self.target, Folded(made=dict(rows)))
                writer.begin(self.target, epoch.barrier.curr)
                written = writer.written()
        except Exception as error:
            raise JobFailedError(self.job, error, target=self.target, upstream=self.target, computing=False) from error
        epoch.wrote(self.target.id, inserted=written.made, ended=written.ended)


def _time_of(epoch: RunningEpoch) -> tuple[int, int]:
    """Return start and end of an epoch's interval as Unix times in milliseconds, `INTERVAL_MAX_MS` apart at most."""
    upto = epoch.barrier.curr >> 16
    return max(epoch.barrier.prev >> 16, upto - INTERVAL_MAX_MS), upto


def _key(relation: Relation, row: Sequence[str | None]) -> Key:
    places = {column.name: place for place, column in enumerate(relation.columns)}
    return tuple(piece_of(row[places[part.name]]) for part in relation.key)
