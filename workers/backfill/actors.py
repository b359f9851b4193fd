"""What an actor may do in one epoch, as it travels to the task that does it."""

from pydantic import BaseModel, ConfigDict

from service.protocol.ids import EpochField
from service.protocol.plan import VnodePosition
from service.protocol.vnodes import Runs


class ActorTask(BaseModel):
    """One actor. `permits` None is any number of rows, 0 is none."""

    model_config = ConfigDict(frozen=True)

    runs: Runs
    positions: tuple[VnodePosition, ...]
    permits: int | None


class FragmentTask(BaseModel):
    """One fragment: what differs from its last epoch. `curr` is the epoch of what it writes."""

    model_config = ConfigDict(frozen=True)

    curr: EpochField
    actors: tuple[ActorTask, ...]
    page_rows: int
    slice_seconds: float = 0.0
