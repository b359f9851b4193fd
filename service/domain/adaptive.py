"""Decide the next adaptive limit of a scan from the load signals seen since the limit last changed.

The rule is additive increase, multiplicative decrease. It is the one linear rule that finds an unknown capacity and
shares it fairly with the other users of that capacity (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms
for Congestion Avoidance in Computer Networks", 1989). The details are TCP's, with a barrier as the round trip:

- *slow start* (Jacobson 1988; RFC 5681, 3.1): a limit begins low and doubles until the first decrease. After a decrease
  it doubles again, up to the threshold that the decrease left.
- After a decrease the next one waits until the effect can be seen (RFC 5681, 3.2: once per window).
- A limit that history does not use is not raised (RFC 7661), because it would be far off when it is needed.
- Steps grow after a long time without a decrease (H-TCP, Leith and Shorten 2004), to find a capacity that came back.

A limit is in rows per second and actor. Next: `service.operations.upkeep.adaptive`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

from service.protocol.ids import Epoch

AUTO: Final = "auto"
Asked = int | Literal["auto"] | None
"""A limit as a user requests it: a number (0 is paused), `auto` (adaptive), or None (no limit)."""

START: Final = 1_000
"""Where slow start begins: below the rate of the slowest machine, and seven doublings below that of the fastest."""
MILD: Final = 0.7
"""Decrease factor for a signal just beyond its bound: the gentler one of RFC 9438, as each overshoot is one step."""
HARD: Final = 0.5
"""Decrease factor for a signal far beyond its bound, or for one that can only be healthy or unhealthy."""
FAR: Final = 2.0
"""Severity (value / bound) from which one unhealthy signal suffices, without a second one to confirm it."""
STEP_SHARE: Final = 0.1
"""An additive step as a share of the threshold. With `MILD`, five steps return to the limit that was too high."""
EVEN_STEPS: Final = 5
"""After this many steps without a decrease each step is twice the last, because the capacity has probably grown."""
USED_SHARE: Final = 0.25
"""A limit is raised only if history uses at least this share of it.

The share is not nearer to 1, because a bucket holds the permits of one interval, and an epoch that takes longer gets no
more.
"""
LITTLE_SHARE: Final = 0.1
"""If reading history took a smaller share of a late barrier, a lower limit would not have helped."""
SMALL_CHANGE: Final = 0.05
"""A smaller relative change is not worth a command."""


class Signal(StrEnum):
    """The load signals to which a limit is adapted."""

    BARRIER_LATENCY = "barrier_latency"
    REPLICATION_LAG = "replication_lag"
    CONNECTIONS = "connections"
    HTTP_PROBE = "http_probe"
    SQL_PROBE = "sql_probe"
    SOURCE_REPLICATION_LAG = "source_replication_lag"
    SOURCE_ACTIVE_QUERIES = "source_active_queries"


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of one load signal.

    `severity` is the signal's value divided by its bound; it is infinite for a signal that can only be healthy or
    unhealthy. An unhealthy reading that is not `sure` stops an increase but does not cause a decrease.
    """

    signal: Signal
    healthy: bool
    text: str
    severity: float = 0.0
    sure: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest and highest value of an adaptive limit."""

    floor: int
    ceiling: int

    def __post_init__(self) -> None:
        """Check that the floor is above 0, because a limit of 0 is a pause and only users request pauses."""
        assert 0 < self.floor <= self.ceiling, self

    def hold(self, limit: float) -> float:
        """Return `limit` clamped to the bounds."""
        return min(max(limit, self.floor), self.ceiling)


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The state of the adaptation of one limit. `present` is the limit before rounding.

    `threshold` is where doubling ends, None before the first decrease. `falling` is True if the last step was a
    decrease. `quiet` counts the additive steps since the last decrease.
    """

    present: float
    threshold: float | None = None
    falling: bool = False
    quiet: int = 0

    @property
    def doubling(self) -> bool:
        """Whether the next increase is a doubling."""
        return self.threshold is None or self.present < self.threshold


class Move(StrEnum):
    """The outcome of one adaptation step."""

    RAISED = "raised"
    LOWERED = "lowered"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Decision:
    """The next state and its reason. `signal` is the one that prevented an increase, None if no signal did."""

    after: Adaptation
    move: Move
    signal: Signal | None
    reason: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A published checkpoint.

    `latency` is the time from injection to publication. `history` is the part that was spent reading history, None if
    it is unknown.
    """

    epoch: Epoch
    latency: timedelta
    history: timedelta | None = None


def started(bounds: Bounds) -> Adaptation:
    """Return the initial state, at the beginning of slow start."""
    return Adaptation(bounds.hold(START))


def scale_of(states: Collection[Adaptation]) -> float | None:
    """Return the value of which the steps of these limits are a share, None before the first decrease.

    It is the mean threshold, the same for all limits, because smaller limits could otherwise never catch up.
    """
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
    """Return the next step of a limit.

    `used` is the rows per second that the busiest actor has read since the last step, None if unknown. `scale` is that
    of all limits adapted to the same signals (see `scale_of`), None for a single limit.
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
    """Return the limit to request, or None if the limit in force is close enough."""
    wanted = round(state.present)
    outside = not bounds.floor <= in_force <= bounds.ceiling
    return wanted if outside or abs(wanted - in_force) >= max(in_force * SMALL_CHANGE, 1) else None


def of_latency(passed: Sequence[Passed], *, since: Epoch, target: timedelta) -> Reading | None:
    """Return the reading of the barriers after `since` (newest first), None if none has been published.

    Latencies scatter, so one just beyond the target needs a second one to confirm it. A late barrier that spent little
    time on history stops an increase but causes no decrease.
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
    # Only the first of several decreases in a row sets the threshold, because together they are one overload.
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
        # No step exceeds a doubling, so the exponent is capped as well.
        step = max((scale or state.threshold) * STEP_SHARE, 1.0) * 2 ** min(max(quiet - EVEN_STEPS, 0), 60)
        grown = min(state.present + step, state.present * 2)
        how = "a step up"
    after = replace(state, present=bounds.hold(grown), quiet=quiet)
    return Decision(after, Move.RAISED, None, f"all signals are healthy; {how}")
