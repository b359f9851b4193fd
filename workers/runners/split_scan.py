"""A scan of an external system by splits: what its connector reads becomes rows of the job's table.

The worker's own process reads and writes; one transaction holds an epoch's rows of all splits. A row replaces the one
at its key. Next: `workers.connectors.port`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from service.protocol.epoch import unix_milliseconds_of
from service.protocol.ids import RelationId, Vnode
from service.protocol.plan import FragmentPlan, JobPlan, PositionState, SplitScanPlan, VnodePosition
from service.protocol.report import FragmentReport
from service.protocol.vnodes import vnodes_of
from workers.backfill.pace import Pace
from workers.backfill.scan import ScanState
from workers.cdc.apply import applying, key_places
from workers.cdc.fold import Folded, Key, Values
from workers.cdc.pgoutput import piece_of
from workers.connectors.kinds import SOURCES
from workers.connectors.port import Part, SplitReader
from workers.runners.failure import JobFailedError
from workers.runners.history import HistoryScan
from workers.runners.port import FragmentRunner, Phase, Place, RunningEpoch

Rows = dict[Key, Values]
INTERVAL_MAX_MS: Final = 10_000
"""After a longer gap between two epochs, only the rows of this time are due. The epoch would be huge otherwise."""
PAGE_ROWS_MAX: Final = 10_000
"""The largest page. The clock is checked after every page."""
TEXT_MAX: Final = 16 * 2**20
"""Reading ends at about this size of a table's rows in an epoch, because the process holds all of them (I8)."""
VALUE_SIZE: Final = 64
"""The memory of a value in addition to its text, in bytes."""
PATIENCE: Final = 8
"""After so many epochs of waiting a scan may begin an interval later."""
SLICE_MIN_SECONDS: Final = 0.001
"""Enough for some hundred rows. It is small, because the minimum slices of many tables add up in an epoch."""


@dataclass
class SplitOutcome:
    """The rows and positions that one actor read in an epoch; an `Outcome`."""

    actor: int
    by_split: dict[int, VnodePosition] = field(default_factory=dict[int, VnodePosition])
    snapshot_rows: int = 0
    page_rows: int = PAGE_ROWS_MAX
    reading_seconds: float = 0.0
    used_slice: bool = False

    @property
    def positions(self) -> tuple[VnodePosition, ...]:
        """The positions that moved."""
        return tuple(self.by_split.values())


@dataclass
class Turn:
    """The time and memory that an epoch has left for reading. Other callers wait for the epoch (I13).

    The first page is one row, and each page is as large as all pages before it. It overshoots twofold at most.
    """

    clock: Callable[[], float]
    ends: float
    size: int = TEXT_MAX
    page: int = 1

    @property
    def over(self) -> bool:
        """Whether the time or the memory is used up."""
        return self.size <= 0 or self.clock() >= self.ends

    def read(self, reader: SplitReader, split: int, after: str | None, most: int) -> Part:
        """Read at most `most` rows, and fewer when the turn ends."""
        rows = list[tuple[str | None, ...]]()
        while True:
            part = reader.read(split, after, min(self.page, most - len(rows)))
            rows += part.rows
            after = part.position
            self.size -= sum(len(value or "") + VALUE_SIZE for row in part.rows for value in row)
            if part.over or not part.rows or len(rows) >= most or self.over:
                return Part(rows, after, part.over)
            self.page = min(self.page * 2, PAGE_ROWS_MAX)


@dataclass(kw_only=True)
class TableFiller(HistoryScan):
    """What scans have in common that fill a table of the database graph, without reading any other relation."""

    settled: bool = True
    """Its table is in the database graph, where no change log is replayed."""

    @property
    def place(self) -> Place:
        """The place of its table among what is written before it is read."""
        return Phase.SOURCE, self.target.id, self.state.id

    @property
    def reads(self) -> Collection[RelationId]:
        """Nothing of the graph."""
        return ()

    def is_brief(self, epoch: RunningEpoch) -> bool:
        """Return False: it runs before all that read its table."""
        del epoch
        return False

    def replan(self) -> None:
        """Do nothing: no plan depends on the actors."""

    def end(self) -> None:
        """Do nothing: no resource is held between epochs."""


@dataclass(kw_only=True)
class SplitScan(TableFiller):
    """One scan while it runs: a `FragmentRunner`."""

    reader: SplitReader
    pace: Pace = field(default_factory=Pace)
    first: int = 0
    """The split that is read first. The previous epoch had no time left for it."""
    waited: int = 0
    """For how many epochs in a row it has read nothing, because others took the time."""

    @classmethod
    def join(
        cls, _runners: Mapping[Place, FragmentRunner], job: JobPlan, fragment: FragmentPlan, now: float
    ) -> "SplitScan":
        """Build a scan from its plan."""
        assert isinstance(fragment, SplitScanPlan)
        reader = SOURCES[fragment.connector.name](fragment.connector.options, job.relation)
        return cls(job.id, job.relation, ScanState.of(fragment, now=now), reader=reader)

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Read the due rows until the turn is over, write them and report them. Raises JobFailedError."""
        finished, outcomes = self.state.finished, dict[int, SplitOutcome]()
        whole = self.reader.whole
        if not whole and self._waits(epoch):
            self.waited += 1
            return self.reports({}, finishing=finished, forwarded=lambda _: 0)
        self.waited = 0
        permits = [None] * len(self.state.actors) if whole else self.permits(epoch)
        if any(allowed != 0 for allowed in permits):
            began, share = epoch.clock(), epoch.share_seconds()
            seconds = max(min(self.pace.slice_seconds(share), share), SLICE_MIN_SECONDS)
            turn, rows = Turn(epoch.clock, inf if whole else began + seconds), Rows()
            for index, split in self._splits():
                if turn.over:
                    self.first = split
                    break
                outcome = outcomes.setdefault(index, SplitOutcome(index))
                self._read(epoch, split, outcome, permits[index], turn, rows)
            outcomes = {index: outcome for index, outcome in outcomes.items() if outcome.by_split}
            cut, reading = turn.over, epoch.clock() - began
            if rows:
                self._write(epoch, rows)
            if cut:
                self.pace = self.pace.measured(job_seconds=epoch.clock() - began, slice_seconds=reading)
            self.advance(list(outcomes.values()))
        return self.reports(outcomes, finishing=finished, forwarded=lambda _: 0)

    def _waits(self, epoch: RunningEpoch) -> bool:
        """Whether too little of the epoch is left. A scan begins the later in it the more epochs it has waited.

        So the scans of many tables take turns, and each takes a transaction in a part of the epochs only (I13).
        """
        elapsed = epoch.clock() - epoch.began
        return elapsed > epoch.barrier.interval_ms / 1000 * (1 + self.waited / PATIENCE)

    def _splits(self) -> Sequence[tuple[int, Vnode]]:
        """Return the actor's index and the number of every split, in the order in which the splits are read."""
        splits = [
            (index, split) for index, actor in enumerate(self.state.actors) for split in vnodes_of(actor.positions.runs)
        ]
        return sorted(splits, key=lambda one: (one[1] < self.first, one[1]))

    def _read(
        self, epoch: RunningEpoch, split: Vnode, outcome: SplitOutcome, permits: int | None, turn: Turn, rows: Rows
    ) -> None:
        """Read the due rows of a split, within its actor's permits."""
        at = self.state.actors[outcome.actor].positions.by_vnode.get(split)
        if at is not None and at.state is PositionState.COMPLETED:
            return
        due = self.reader.due(split, *_time_of(epoch))
        left = due if permits is None else min(due, permits - outcome.snapshot_rows)
        part = turn.read(self.reader, split, None if at is None or at.key is None else at.key[0], max(left, 0))
        key = key_places(self.target)
        for row in part.rows:
            values = tuple(map(piece_of, row))
            rows[tuple(values[place] for place in key)] = values
        outcome.snapshot_rows += len(part.rows)
        read = len(part.rows) + (0 if at is None else at.rows)
        if part.over and left > 0:
            outcome.by_split[split] = VnodePosition(vnode=split, state=PositionState.COMPLETED, rows=read)
        elif part.rows:
            outcome.by_split[split] = VnodePosition(
                vnode=split, state=PositionState.IN_PROGRESS, key=(part.position,), rows=read
            )

    def _write(self, epoch: RunningEpoch, rows: Rows) -> None:
        try:
            with applying(epoch.stores.by_sql) as writer:
                writer.load(self.target, Folded(made=rows))
                writer.begin(self.target, epoch.barrier.curr)
                written = writer.written()
        except Exception as error:
            raise JobFailedError(self.job, error, target=self.target, upstream=self.target, computing=False) from error
        epoch.wrote(self.target.id, inserted=written.made, ended=written.ended)


def _time_of(epoch: RunningEpoch) -> tuple[int, int]:
    """Return the time of an epoch as two Unix times in milliseconds."""
    since, upto = unix_milliseconds_of(epoch.barrier.prev), unix_milliseconds_of(epoch.barrier.curr)
    return max(since, upto - INTERVAL_MAX_MS), upto
