"""Limits of scans and their adaptation to the load; part of `service.ports.meta_store`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from service.domain.adaptive import Adaptation, Move, Reading, Signal
from service.protocol.ids import ActorId, Epoch, FragmentId, GraphId, JobId


@dataclass(frozen=True, slots=True)
class Held:
    """A scan's limit as it was committed. `present` is where its adaptation stands, None where it has not begun. Where
    its job is `paused`, it `resumes_at` the limit that it had.
    """

    rate_limit: int | None
    auto: bool
    present: float | None
    paused: bool = False
    resumes_at: int | None = None


@dataclass(frozen=True, slots=True)
class AdaptedScan:
    """A scan that reads history under a limit that is adapted. `adaptation` is None before the first look.

    `rows` are what its actors had read, cumulatively, at the last look, of which the newest epoch was `seen`; `read` is
    what they have read now. `since` is the epoch at which the limit took effect.
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
    """What one look at a scan came to. `asked` is the limit that was asked for, None where none was."""

    scan: AdaptedScan
    after: Adaptation
    seen: Epoch
    move: Move
    signal: Signal | None
    reason: str
    readings: Sequence[Reading]
    asked: int | None = None


@dataclass(frozen=True, slots=True)
class Signalled:
    """What one signal said at the last look."""

    signal: str
    healthy: bool
    text: str


@dataclass(frozen=True, slots=True)
class AutoLimit:
    """Where the adaptation of a scan's limit stands. `signal` spoke against more at the last look, null where none did;
    `effective_epoch` is when the present limit took effect. Everything but the phase is null before the first look.
    """

    phase: str
    move: str | None
    signal: str | None
    reason: str | None
    looked_at: datetime | None
    effective_epoch: str | None
    readings: Sequence[Signalled] = field(default_factory=tuple[Signalled, ...])


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One change of an adapted limit: `epoch` is when it took effect, None until then."""

    id: int
    fragment: FragmentId
    at: datetime
    epoch: Epoch | None
    before: int
    after: int
    signal: str | None
    reason: str


class Limits(Protocol):
    """Limits of scans. What is adapted is adapted by whoever leads, from what is stored here."""

    async def put(self, limits: Mapping[FragmentId, int | None], *, auto: Collection[FragmentId], epoch: Epoch) -> None:
        """These limits took effect at `epoch`, and those in `auto` are adapted from now on. An adaptation that came to
        the same number goes on, and so it does under a pause; any other number begins one anew.
        """
        ...

    async def hold(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, Held]:
        """Return the limits of those that exist, whose rows are locked until the transaction ends. Whoever asks for
        another limit holds it first: so commands for one scan are in the order in which they were decided.
        """
        ...

    async def pause(self, limits: Mapping[FragmentId, int | None]) -> None:
        """The pause of their job holds these limits back."""
        ...

    async def unpause(self, fragments: Collection[FragmentId]) -> None:
        """No pause of a job holds back a limit of these any more: somebody has asked for another one."""
        ...

    async def graphs(self) -> Sequence[GraphId]:
        """Return the graphs that have scans whose limit is adapted."""
        ...

    async def adapted(self, graph: GraphId, *, hold: bool = False) -> Sequence[AdaptedScan]:
        """Return the scans that read now under a limit that is adapted; with `hold` as in `hold`, but what somebody
        else holds just now is left out.
        """
        ...

    async def record(self, looks: Sequence[Look], *, now: datetime) -> None:
        """Store where these adaptations stand, and the changes that were asked for. Only the newest are kept."""
        ...

    async def shown(self, jobs: Collection[JobId]) -> Mapping[FragmentId, AutoLimit]:
        """Return where the limits stand that are adapted."""
        ...

    async def history(self, job: JobId, *, limit: int, before: int | None = None) -> Sequence[LimitChange]:
        """Return changes of the limits of a job's scans with ids below `before`, newest first."""
        ...
