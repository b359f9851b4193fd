"""The part of an epoch that each actor may do, as sent to the task that does it."""

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


class FragmentTask(BaseModel):
    """One fragment: the values that change from epoch to epoch. `curr` is the epoch of the versions that it writes."""

    model_config = ConfigDict(frozen=True)

    curr: EpochField
    actors: tuple[ActorTask, ...]
    page_rows: int
    slice_seconds: float = 0.0
