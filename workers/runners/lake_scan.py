"""Follow a table of a lake that is read in place: each epoch has the newest version that is known.

The state store gets the version at the epoch, and nothing else: the rows stay where they are. The fragment's position
is the version, so it is stored with the epoch. A thread looks for versions, and no barrier waits for it. A table that
cannot be followed any further fails its job with the reason. Next: `workers.connectors.in_place`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.ids import JobId, Vnode
from service.protocol.plan import FragmentPlan, JobPlan, PositionState, SplitScanPlan, VnodePosition
from service.protocol.relation import versions_of
from service.protocol.report import FragmentReport
from workers.backfill.scan import ScanState
from workers.connectors.delta_log import Watch
from workers.connectors.in_place import first_rows, first_version, located, place_of, version_row
from workers.connectors.kinds import SecretOf
from workers.connectors.port import RefusedTableError
from workers.runners.failure import JobFailedError
from workers.runners.port import FragmentRunner, Place, RunningEpoch
from workers.runners.split_scan import SplitOutcome, TableFiller

UNTOLD: Final = ""
"""No reason to wait. The generation before may have reported one."""


@dataclass(kw_only=True)
class LakeScan(TableFiller):
    """One table while it is followed: a `FragmentRunner`."""

    watch_of: Callable[[int], Watch]
    """Makes what looks for versions after one."""
    watch: Watch | None = None
    waiting: str | None = UNTOLD
    """The last reason to wait that was reported."""
    rows: int | None = None
    """About how many rows the table has, as the service was told."""

    @classmethod
    def join(
        cls,
        secret_of: SecretOf,
        _runners: Mapping[Place, FragmentRunner],
        job: JobPlan,
        fragment: FragmentPlan,
        now: float,
    ) -> "LakeScan":
        """Build a scan from its plan."""
        assert isinstance(fragment, SplitScanPlan)
        relation = job.relation

        def watch_of(version: int) -> Watch:
            return Watch(place_of(located(relation, secret_of)), relation, version)

        return cls(job.id, relation, ScanState.of(fragment, now=now), watch_of=watch_of)

    def end(self) -> None:
        """Look for versions no more."""
        if self.watch is not None:
            self.watch.end()

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Return whether its job is among `jobs`, and then look for versions no more."""
        if stopped := self.job in jobs:
            self.end()
        return stopped

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Go to the newest known version. Raises JobFailedError if the table cannot be followed further."""
        known = self.state.actors[0].positions.by_vnode.get(Vnode(0))
        before = None if known is None or known.key is None else int(known.key[0] or 0)
        try:
            newest = self._newest(before)
            if newest == before:
                return self._told(known)
            epoch.stores.versioned.write(versions_of(self.target), epoch.barrier.curr, version_row(newest, before))
        except Exception as error:
            raise JobFailedError(self.job, error, target=self.target, upstream=self.target, computing=False) from error
        grown = self._grown(before)
        # Besides the rows, as many as are known, the version itself has changed.
        epoch.wrote(self.target.id, inserted=1 + max(grown, 0), ended=1 + max(-grown, 0))
        versions = 1 + (0 if known is None else known.rows)
        at = VnodePosition(vnode=Vnode(0), state=PositionState.IN_PROGRESS, key=(str(newest),), rows=versions)
        outcome = SplitOutcome(0, {0: at}, snapshot_rows=1)
        self.advance([outcome])
        return self._reported(outcome)

    def _told(self, known: VnodePosition | None) -> Sequence[FragmentReport]:
        """Report an epoch that goes no further. A reason to wait counts with a position only."""
        waiting = None if self.watch is None else self.watch.waiting
        if known is None or waiting == self.waiting:
            return self.reports({}, finishing=False, forwarded=lambda _: 0)
        return self._reported(SplitOutcome(0, {0: known}))

    def _reported(self, outcome: SplitOutcome) -> Sequence[FragmentReport]:
        self.waiting = None if self.watch is None else self.watch.waiting
        reports = self.reports({0: outcome}, finishing=False, forwarded=lambda _: 0)
        return [one.model_copy(update={"waiting": self.waiting}) for one in reports]

    def _grown(self, before: int | None) -> int:
        """Return by how many rows the table has grown since they were last counted."""
        rows = first_rows(self.target) if before is None else None if self.watch is None else self.watch.rows
        if rows is None:
            return 0
        known, self.rows = 0 if before is None else rows if self.rows is None else self.rows, rows
        return rows - known

    def _newest(self, before: int | None) -> int:
        """Return the newest version. The first epoch has the one that the table was made with."""
        if before is None:
            return first_version(self.target)
        if self.watch is None:
            self.watch = self.watch_of(before)
            self.watch.start()
        if self.watch.broken is not None and self.watch.newest == before:
            raise RefusedTableError(self.watch.broken)
        return self.watch.newest
