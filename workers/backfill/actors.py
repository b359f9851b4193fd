"""The part of an epoch that each actor may do, as sent to the task that does it."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from service.protocol.ids import EpochField
from service.protocol.plan import VnodePosition
from service.protocol.vnodes import Runs


class ActorTask(BaseModel):
    """One actor. `permits` is the number of rows that it may read; None is unlimited, 0 is none."""

    model_config = ConfigDict(frozen=True)

    runs: Runs
    positions: tuple[VnodePosition, ...]
    permits: int | None


def as_one(actors: Sequence[ActorTask]) -> ActorTask:
    """Return one task for the vnodes of all `actors`. It reads no history."""
    return ActorTask(
        runs=tuple(sorted(run for actor in actors for run in actor.runs)),
        positions=tuple(position for actor in actors for position in actor.positions),
        permits=0,
    )


class FragmentTask(BaseModel):
    """One fragment: the values that change from epoch to epoch. `curr` is the epoch of the versions that it writes.

    Changes may take `allowed_seconds`; None is as long as the generation allows.
    """

    model_config = ConfigDict(frozen=True)

    curr: EpochField
    actors: tuple[ActorTask, ...]
    page_rows: int
    slice_seconds: float = 0.0
    allowed_seconds: float | None = None
