"""Store the limits of scans and their adaptation to the load. Part of `service.ports.meta_store`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from service.domain.adaptive import Adaptation, Move, Reading, Signal
from service.protocol.ids import ActorId, Epoch, FragmentId, JobId


@dataclass(frozen=True, slots=True)
class Held:
    """A scan's committed limit. `present` is the value of its adaptation, None before it begins. If the job is
    `paused`, `resumes_at` is the limit before the pause.
    """

    rate_limit: int | None
    auto: bool
    present: float | None
    paused: bool = False
    resumes_at: int | None = None


@dataclass(frozen=True, slots=True)
class AdaptedScan:
    """A scan that reads history under an adaptive limit.

    `adaptation` is None before the first tick. `seen` is the newest epoch of the last tick, and `rows` are the rows
    that each actor had read by then (cumulative). `read` are the rows read by now. The limit took effect at epoch
    `since`.
    """

    fragment: FragmentId
    job: JobId
    rate_limit: int
    adaptation: Adaptation | None
    since: Epoch
    seen: Epoch
    rows: Mapping[ActorId, int]
    rows_at: datetime | None
    read: Mapping[ActorId, int]
    read_at: datetime | None


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one tick for a scan. `asked` is the requested limit, None if it does not change."""

    scan: AdaptedScan
    after: Adaptation
    seen: Epoch
    move: Move
    signal: Signal | None
    reason: str
    readings: Sequence[Reading]
    asked: int | None = None


class Limits(Protocol):
    """The limits of scans."""

    async def put(
        self,
        limits: Mapping[FragmentId, int | None],
        *,
        auto: Collection[FragmentId],
        epoch: Epoch,
        by: str | None = None,
    ) -> None:
        """Store limits that `by` asked for and that took effect at `epoch`. Those in `auto` are adaptive from now on.

        An adaptation continues if it decided the same number, or if the number is a pause. Any other number restarts
        it.
        """
        ...

    async def hold(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, Held]:
        """Lock the rows of the existing scans until the transaction ends, and return their limits.

        Every change of a limit locks the scan first. The commands for one scan are therefore in the order of their
        decisions.
        """
        ...

    async def pause(self, limits: Mapping[FragmentId, int | None]) -> None:
        """Store the limits that these scans get back after the pause of their job."""
        ...

    async def unpause(self, fragments: Collection[FragmentId]) -> None:
        """Delete the stored limits of a pause, because another limit was requested for these scans."""
        ...
