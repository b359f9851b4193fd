"""Follow what is read in place: each epoch has the newest version, or the files, that are known.

The state store gets these at the epoch, and nothing else: the rows stay where they are. The fragment's position is
stored with the epoch. A thread looks for what is new, and no barrier waits for it. A table that cannot be followed any
further fails its job with the reason. Next: `workers.connectors.in_place`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.ids import JobId, Vnode
from service.protocol.plan import FragmentPlan, JobPlan, PositionState, SplitScanPlan, VnodePosition
from service.protocol.relation import kept_of
from service.protocol.report import FragmentReport
from workers.backfill.scan import ScanState
from workers.connectors.following import Follower, follower_of
from workers.connectors.in_place import located
from workers.connectors.kinds import SecretOf
from workers.connectors.watching import Watching
from workers.runners.failure import JobFailedError
from workers.runners.port import FragmentRunner, Place, RunningEpoch
from workers.runners.split_scan import SplitOutcome, TableFiller

UNTOLD: Final = ""
"""No reason to wait. The generation before may have reported one."""


@dataclass(kw_only=True)
class LakeScan(TableFiller):
    """One table while it is followed: a `FragmentRunner`."""

    follow: Callable[[], Follower]
    """Makes what follows the table, with the present values of its secrets."""
    follower: Follower | None = None
    waiting: str | None = UNTOLD
    """The last reason to wait that was reported."""

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
        relation, caller = job.relation, job.caller

        def follow() -> Follower:
            return follower_of(located(relation, secret_of), caller)

        return cls(job.id, relation, ScanState.of(fragment, now=now), follow=follow)

    def end(self) -> None:
        """Look for nothing more."""
        if self._watching is not None:
            self._watching.end()

    def stop(self, jobs: Sequence[JobId]) -> bool:
        """Return whether its job is among `jobs`, and then look for nothing more."""
        if stopped := self.job in jobs:
            self.end()
        return stopped

    def run(self, epoch: RunningEpoch) -> Sequence[FragmentReport]:
        """Take what is known to be new. Raises JobFailedError if the table cannot be followed further."""
        known = self.state.actors[0].positions.by_vnode.get(Vnode(0))
        try:
            if self.follower is None:
                self.follower = self.follow()
            before = None if known is None or known.key is None else known.key[0]
            step = self.follower.step(epoch.stores.versioned, epoch.barrier.prev, before)
            if step is None:
                return self._told(known)
            epoch.stores.versioned.write(kept_of(self.target), epoch.barrier.curr, step.kept)
        except Exception as error:
            raise JobFailedError(self.job, error, target=self.target, upstream=self.target, computing=False) from error
        epoch.wrote(self.target.id, inserted=step.inserted, ended=step.ended)
        steps = 1 + (0 if known is None else known.rows)
        at = VnodePosition(vnode=Vnode(0), state=PositionState.IN_PROGRESS, key=(step.position,), rows=steps)
        outcome = SplitOutcome(0, {0: at}, snapshot_rows=1)
        self.advance([outcome])
        return self._reported(outcome)

    @property
    def _watching(self) -> Watching | None:
        return None if self.follower is None else self.follower.watching

    def _told(self, known: VnodePosition | None) -> Sequence[FragmentReport]:
        """Report an epoch that adds nothing. A reason to wait counts with a position only, and before the first look
        nothing is known of it.
        """
        watching = self._watching
        if known is None or watching is None or not watching.looked or watching.waiting == self.waiting:
            return self.reports({}, finishing=False, forwarded=lambda _: 0)
        return self._reported(SplitOutcome(0, {0: known}))

    def _reported(self, outcome: SplitOutcome) -> Sequence[FragmentReport]:
        self.waiting = None if self._watching is None else self._watching.waiting
        reports = self.reports({0: outcome}, finishing=False, forwarded=lambda _: 0)
        return [one.model_copy(update={"waiting": self.waiting}) for one in reports]
