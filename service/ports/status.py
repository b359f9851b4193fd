"""Describe what only status pages show. No decision reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from service.protocol.ids import Epoch, FragmentId


@dataclass(frozen=True, slots=True)
class Signalled:
    """The reading of a signal at the last tick."""

    signal: str
    healthy: bool
    text: str


@dataclass(frozen=True, slots=True)
class AutoLimit:
    """The state of an adaptive limit. `signal` is the load signal against a higher limit at the last tick, null if
    there was none. The present limit took effect at `effective_epoch`. All values except the phase are null before the
    first tick.
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
    """A change of an adaptive limit. It took effect at `epoch`, None before."""

    id: int
    fragment: FragmentId
    at: datetime
    epoch: Epoch | None
    before: int
    after: int
    signal: str | None
    reason: str


class PositionsByState(NamedTuple):
    """How many vnodes of an actor are in a state, and the rows that were read from all of them."""

    in_progress: int = 0
    completed: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The work of one engine for a job: the jobs of Spark or the runs of the store, and the rows that they read."""

    jobs: int
    rows: int
