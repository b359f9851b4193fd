"""Planted bugs that more than one kind of schedule has to find: each breaks one mechanism, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

from service.protocol.plan import PositionState, VnodePosition
from service.protocol.vnodes import Runs, runs_of, vnodes_of
from tests.support.model import Arrangement, Key, ModelPage, Reading, order_python
from workers.backfill.positions import Positions, redistributed
from workers.backfill.scan import ActorState


class MarksStrictly(Arrangement):
    """`<` instead of `<=`: changes of the last key read are dropped."""

    def visible(self, position: VnodePosition | None, key: Key) -> bool:
        if position is None or position.key is None:
            return super().visible(position, key)
        return order_python(self.upstream.key, key, self.upstream.values(position.key)) < 0


class ReadsAtPrev(Arrangement):
    """Changes of the epoch's own interval are lost to the page, and not forwarded either."""

    def snapshot_epoch(self, prev: int, curr: int) -> int:
        del curr
        return prev


class ForgetsTheLastPage(Arrangement):
    """Rows are read and counted, and not written where their page completes their vnode."""

    def _write(self, actor: ActorState, page: ModelPage, curr: int) -> None:
        after = actor.positions.by_vnode
        kept = [one for one in page.versions if after[one.vnode].state is not PositionState.COMPLETED]
        super()._write(actor, replace(page, versions=tuple(kept)), curr)


class ForgetsBufferedRowsAtAForcedFinish(Arrangement):
    """The rows of an epoch are written in its end, and not where that is the end of the actor's history as well."""

    def read(self, actor: ActorState, at: int, curr: int, reading: Reading) -> None:
        self.buffered: list[ModelPage] = []
        super().read(actor, at, curr, reading)
        for page in () if actor.positions.completed else self.buffered:
            super()._write(actor, page, curr)

    def _write(self, actor: ActorState, page: ModelPage, curr: int) -> None:
        self.buffered.append(page)
        super()._write(actor, replace(page, versions=()), curr)


def loses_a_vnode(held: Sequence[Positions], owned: Sequence[Runs]) -> list[Positions]:
    """The last vnode belongs to nobody after a rescale."""
    dealt = redistributed(held, owned)
    last = dealt[-1]
    vnodes = vnodes_of(last.runs)[:-1]
    if vnodes:
        kept: dict[int, VnodePosition] = {one: last.by_vnode[one] for one in vnodes if one in last.by_vnode}
        dealt[-1] = Positions(runs_of(vnodes), kept, block_vnodes=last.block_vnodes)
    return dealt


def loses_a_position(held: Sequence[Positions], owned: Sequence[Runs]) -> list[Positions]:
    """The last vnode that has a position starts again."""
    dealt = redistributed(held, owned)
    moved = [positions for positions in dealt if positions.by_vnode]
    if moved:
        del moved[-1].by_vnode[max(moved[-1].by_vnode)]
    return dealt
