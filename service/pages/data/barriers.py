"""Barriers: their latencies, and the recoveries with their reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.words import capital
from service.operations import parameters
from service.operations.status import history
from service.operations.status.models import BarrierView
from service.pages.asking import Ask
from service.pages.data.overview import LOOKED_AT, quantile
from service.pages.data.recent import recent
from service.pages.words import facts, instant, millis

HEIGHT: Final = 120
WIDE: Final = 6
ROWS_SHOWN: Final = 30
RECOVERIES_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Stack:
    """The bar of one barrier: rectangles (part, y, height) in pixels, from the bottom."""

    x: int
    text: str
    parts: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, slots=True)
class Barriers:
    """`facts` are pairs (name, text). `stacks` are oldest first, `rows` newest first. `top_ms` is the highest stack."""

    facts: tuple[tuple[str, str], ...]
    stacks: tuple[Stack, ...]
    top_ms: float
    width: int
    rows: Sequence[BarrierView]
    recoveries: tuple[tuple[str, str, str], ...]
    last_error: str | None
    height: int = HEIGHT
    wide: int = WIDE - 1
    moves: bool = False


async def read(ask: Ask) -> Barriers:
    """Read the newest barriers."""
    found = (await history.barriers(ask.world, limit=LOOKED_AT, before=None)).items
    (state,) = await history.graphs(ask.world)
    known = await parameters.known(ask.world, ask.caller.role)
    events, _ = await recent(ask)
    latencies = [one.latency_ms for one in found if one.latency_ms is not None]
    top = max((height_ms(one) for one in found), default=0.0)
    return Barriers(
        facts=(
            ("Graph", capital(state.status)),
            ("Interval", f"{known.barrier_interval_ms:,} ms"),
            (
                "Checkpoint",
                "every barrier" if known.checkpoint_frequency == 1 else f"every {known.checkpoint_frequency} barriers",
            ),
            ("In flight", str(sum(one.published_at is None and one.failure is None for one in found))),
            ("p50", millis(quantile(latencies, 0.5))),
            ("p99", millis(quantile(latencies, 0.99))),
            ("Generation", str(state.generation)),
            ("Recoveries", f"{state.recoveries:,}"),
        ),
        stacks=stacks(list(reversed(found)), top),
        top_ms=top,
        width=LOOKED_AT * WIDE,
        rows=found[:ROWS_SHOWN],
        recoveries=tuple(
            (instant(one.at), one.kind, facts(one.facts))
            for one in reversed(events)
            if one.kind.startswith("graph.rec")
        )[:RECOVERIES_SHOWN],
        last_error=state.last_error,
    )


def height_ms(one: BarrierView) -> float:
    """Return the height of a barrier's bar: one that was not published has no latency yet, but parts of it."""
    return max(one.latency_ms or 0.0, sum(took or 0.0 for took in (one.collect_ms, one.commit_ms, one.publish_ms)))


def stacks(found: Sequence[BarrierView], top_ms: float) -> tuple[Stack, ...]:
    """Return a bar for each barrier, oldest first, in the scale of the longest latency."""
    return tuple(_stack(place, one, top_ms) for place, one in enumerate(found))


def _stack(place: int, one: BarrierView, top_ms: float) -> Stack:
    known: Mapping[str, float | None] = {"collect": one.collect_ms, "commit": one.commit_ms, "publish": one.publish_ms}
    y, parts = float(HEIGHT), list[tuple[str, float, float]]()
    for name, took in known.items():
        high = round((took or 0.0) / max(top_ms, 1.0) * HEIGHT, 1)
        y = round(max(y - high, 0.0), 1)
        parts.append((name, y, high))
    text = f"{instant(one.injected_at)}: " + ", ".join(f"{name} {millis(took)}" for name, took in known.items())
    return Stack(place * WIDE, text, tuple(parts))
