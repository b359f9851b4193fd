"""The adaptive limit of a scan: what it is next, given what was seen since it last changed.

Additive increase, multiplicative decrease: the one linear rule that finds an unknown capacity and shares it fairly with
whoever else draws on it (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in
Computer Networks", 1989). What surrounds it is TCP's, with a barrier for the round trip:

- *slow start* (Jacobson 1988; RFC 5681, 3.1): a limit begins low and doubles until the first decrease, and after one
  again up to the threshold that the decrease left;
- a decrease is followed by another only once its effect could be seen (RFC 5681, 3.2: once per window);
- a limit that history does not use is not raised (RFC 7661), or it would be far off when it is needed;
- steps grow when nothing has been amiss for long (H-TCP, Leith and Shorten 2004): a capacity that came back is found.

A limit is in rows per second and actor. Next: `service.operations.adaptive`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

from service.protocol.ids import Epoch

AUTO: Final = "auto"
Asked = int | Literal["auto"] | None
"""A limit as users ask for it: a number (0 is paused), adaptive, or none."""

START: Final = 1_000
"""Where slow start begins: a fraction of what the slowest machine reads, and seven doublings from the fastest."""
MILD: Final = 0.7
"""A signal just beyond its bound: the gentler factor of RFC 9438, as each overshoot is one step."""
HARD: Final = 0.5
"""A signal far beyond its bound, or one that only says no."""
FAR: Final = 2.0
"""Times its bound: so far a signal needs no second look."""
STEP_SHARE: Final = 0.1
"""An additive step, as a share of the thresholds. With `MILD` it takes five of them back to where it was too much."""
EVEN_STEPS: Final = 5
"""After so many steps without a decrease the capacity has grown: from then on each step is twice the last."""
USED_SHARE: Final = 0.25
"""A limit of which less is used holds nothing back. Not nearer to 1: a bucket holds an interval's worth, and epochs
that take longer than an interval get no more.
"""
LITTLE_SHARE: Final = 0.1
"""A late barrier of which reading history took less was made late by something else: a lower limit would not help."""
SMALL_CHANGE: Final = 0.05
"""A change below this is not worth a command."""


class Signal(StrEnum):
    """What a limit is adapted to."""

    BARRIER_LATENCY = "barrier_latency"
    REPLICATION_LAG = "replication_lag"
    CONNECTIONS = "connections"
    HTTP_PROBE = "http_probe"
    SQL_PROBE = "sql_probe"
    SOURCE_REPLICATION_LAG = "source_replication_lag"
    SOURCE_ACTIVE_QUERIES = "source_active_queries"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one signal says. `severity` is its value in terms of its bound; infinite where it can only say no.

    One that is not `sure` speaks against raising a limit, and not yet for lowering it.
    """

    signal: Signal
    healthy: bool
    text: str
    severity: float = 0.0
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between which a limit is adapted."""

    floor: int
    ceiling: int

    def __post_init__(self) -> None:
        """0 would be a pause, which is for people to ask for."""
        assert 0 < self.floor <= self.ceiling, self

    def hold(self, limit: float) -> float:
        """Return the nearest limit within."""
        return min(max(limit, self.floor), self.ceiling)


@dataclass(frozen=True, slots=True)
class Adaptation:
    """Where the adaptation of one limit stands. `present` is the limit before rounding.

    `threshold` is where doubling ends, None before the first decrease. `falling` says that the last step was a decrease
    and `quiet` counts the additive steps since.
    """

    present: float
    threshold: float | None = None
    falling: bool = False
    quiet: int = 0

    @property
    def doubling(self) -> bool:
        """Whether the next step up is a doubling."""
        return self.threshold is None or self.present < self.threshold


class Move(StrEnum):
    """What a look came to."""

    RAISED = "raised"
    LOWERED = "lowered"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Decision:
    """The next state, and why. `signal` is the one that spoke against more; None where none did."""

    after: Adaptation
    move: Move
    signal: Signal | None
    reason: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A checkpoint that was published: injected to published took `latency`, of which `history` went into reading
    history, None where that is not known.
    """

    epoch: Epoch
    latency: timedelta
    history: timedelta | None = None


def started(bounds: Bounds) -> Adaptation:
    """Return where slow start begins."""
    return Adaptation(bounds.hold(START))


def scale_of(states: Collection[Adaptation]) -> float | None:
    """Return what the steps of these limits are a share of: the same for all, or the smaller would never catch up."""
    thresholds = [one.threshold for one in states if one.threshold is not None]
    return sum(thresholds) / len(thresholds) if thresholds else None


def decided(
    before: Adaptation,
    readings: Collection[Reading],
    *,
    used: float | None,
    bounds: Bounds,
    scale: float | None = None,
) -> Decision:
    """Return the next step. `used` is how many rows per second the busiest actor has read since the last one, None
    where that is not known; `scale` is that of all limits that are adapted to the same signals, None for one alone.
    """
    state = replace(before, present=bounds.hold(before.present))
    unhealthy = sorted((one for one in readings if not one.healthy), key=lambda one: -one.severity)
    if sure := [one for one in unhealthy if one.sure]:
        return _lowered(state, sure[0], bounds)
    if unhealthy:
        return Decision(state, Move.HELD, unhealthy[0].signal, unhealthy[0].text)
    calm = replace(state, falling=False)
    if used is None:
        return Decision(state, Move.HELD, None, "nothing was measured yet")
    if state.present >= bounds.ceiling:
        return Decision(calm, Move.HELD, None, "all signals are healthy; at the ceiling")
    if used < state.present * USED_SHARE:
        return Decision(calm, Move.HELD, None, f"all signals are healthy; only {used:.0f} rows/s are used")
    return _raised(calm, bounds, scale)


def to_ask(in_force: int, state: Adaptation, bounds: Bounds) -> int | None:
    """Return the limit to ask for, None where the one in force is near enough."""
    wanted = round(state.present)
    outside = not bounds.floor <= in_force <= bounds.ceiling
    return wanted if outside or abs(wanted - in_force) >= max(in_force * SMALL_CHANGE, 1) else None


def of_latency(passed: Sequence[Passed], *, since: Epoch, target: timedelta) -> Reading | None:
    """Return what the barriers after `since` (newest first) say, None where none has passed.

    Latencies scatter: one just beyond the target has to be confirmed by a second. One that history had little part in
    speaks against raising a limit and not for lowering it.
    """
    seen = [one for one in passed if one.epoch > since][:2]
    if not seen:
        return None
    newest = seen[0]
    severity = newest.latency / target
    over = [one for one in seen if one.latency > target]
    innocent = newest.history is not None and newest.history < newest.latency * LITTLE_SHARE
    said = f"barrier {newest.epoch} took {newest.latency.total_seconds():.2f} s of {target.total_seconds():.2f} s"
    if severity > 1 and innocent:
        said += ", little of it for history"
    return Reading(
        Signal.BARRIER_LATENCY,
        healthy=severity <= 1,
        text=said,
        severity=severity,
        sure=not innocent and (severity >= FAR or len(over) > 1),
    )


def _lowered(state: Adaptation, worst: Reading, bounds: Bounds) -> Decision:
    factor = HARD if worst.severity >= FAR else MILD
    present = bounds.hold(state.present * factor)
    # The first of several decreases in a row says where it was too much: the others are one spell.
    threshold = state.threshold if state.falling and state.threshold is not None else present
    move = Move.LOWERED if present < state.present else Move.HELD
    return Decision(Adaptation(present, threshold, falling=True), move, worst.signal, worst.text)


def _raised(state: Adaptation, bounds: Bounds, scale: float | None) -> Decision:
    if state.doubling:
        grown, quiet = state.present * 2, 0
        if state.threshold is not None:
            grown = min(grown, state.threshold)
        how = "slow start"
    else:
        assert state.threshold is not None
        quiet = state.quiet + 1
        # No step is more than a doubling, so that the exponent need not grow for ever either.
        step = max((scale or state.threshold) * STEP_SHARE, 1.0) * 2 ** min(max(quiet - EVEN_STEPS, 0), 60)
        grown = min(state.present + step, state.present * 2)
        how = "a step up"
    after = replace(state, present=bounds.hold(grown), quiet=quiet)
    return Decision(after, Move.RAISED, None, f"all signals are healthy; {how}")
