"""One scan fragment as its worker holds it: what a mutation changes, what an epoch may do, when it is finished."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from service.protocol.ids import ActorId, FragmentId
from service.protocol.plan import ActorPlan, HistoryScanPlan, ScanType, TableScanPlan, VnodePosition
from service.protocol.report import ActorReport
from workers.backfill.budget import Budget
from workers.backfill.positions import BLOCK_VNODES, ONE_VNODE, Positions, redistributed


@dataclass
class ActorState:
    """One actor: its vnodes' positions and its permits."""

    id: ActorId
    positions: Positions
    budget: Budget


@dataclass
class ScanState:
    """One fragment. It reads no history while the graph is paused, while it is `waiting` for others, or at limit 0."""

    id: FragmentId
    actors: list[ActorState] = field(default_factory=list)
    waiting: bool = False

    @property
    def block_vnodes(self) -> int:
        """How many vnodes a page reads side by side."""
        return self.actors[0].positions.block_vnodes

    @classmethod
    def of(cls, plan: HistoryScanPlan, *, now: float) -> "ScanState":
        """Build the state from stored positions; buckets start empty."""
        one_by_one = not isinstance(plan, TableScanPlan) or plan.scan_type is ScanType.BACKFILL
        block_vnodes = ONE_VNODE if one_by_one else BLOCK_VNODES
        actors = [_actor(actor, plan.rate_limit, block_vnodes, now) for actor in plan.positioned]
        return cls(plan.id, actors, plan.waiting)

    def throttle(self, limit: int | None, *, now: float) -> None:
        """Replace the limit of every actor."""
        for actor in self.actors:
            actor.budget = actor.budget.throttled(limit, now=now)

    def rescale(self, plans: Sequence[ActorPlan], *, now: float) -> None:
        """Replace the actors. The limit is per actor, and stays; buckets start empty."""
        limit = self.actors[0].budget.limit
        dealt = redistributed([actor.positions for actor in self.actors], [plan.vnodes for plan in plans])
        self.actors = [
            ActorState(plan.id, positions, Budget(limit, now)) for plan, positions in zip(plans, dealt, strict=True)
        ]

    @property
    def finished(self) -> bool:
        """Whether there is no history left to read."""
        return all(actor.positions.completed for actor in self.actors)

    @property
    def held(self) -> bool:
        """Whether a limit of 0 holds it."""
        return any(actor.budget.limit == 0 for actor in self.actors)

    def may_read(self, *, paused: bool) -> bool:
        """Whether history may be read in an epoch of a graph that is `paused` or not (I4).

        A scan that waits does not even look whether its upstream is empty: it finishes once it was released.
        """
        return not (paused or self.waiting or self.finished)


def _actor(plan: ActorPlan, limit: int | None, block_vnodes: int, now: float) -> ActorState:
    positions = Positions(
        plan.vnodes, {position.vnode: position for position in plan.positions}, block_vnodes=block_vnodes
    )
    return ActorState(plan.id, positions, Budget(limit, now))


def report(
    scan: ScanState,
    actor: ActorState,
    *,
    changed: Iterable[VnodePosition],
    completed: bool,
    finished: bool,
    snapshot_rows: int,
    upstream_rows: int,
) -> ActorReport:
    """Return what the actor tells after an epoch."""
    return ActorReport(
        actor=actor.id,
        fragment=scan.id,
        rows=actor.positions.rows,
        snapshot_rows=snapshot_rows,
        upstream_rows=upstream_rows,
        completed=completed,
        finished=finished,
        positions=tuple(changed),
    )
