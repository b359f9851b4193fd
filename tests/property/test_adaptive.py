"""The adaptive limit against a plant whose capacity nobody tells it, and given whatever it may be given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.adaptive import (
    EVEN_STEPS,
    HARD,
    MILD,
    START,
    STEP_SHARE,
    Adaptation,
    Bounds,
    Move,
    Passed,
    Reading,
    Signal,
    decided,
    of_latency,
    scale_of,
    started,
    to_ask,
)
from service.protocol.ids import Epoch

BOUNDS = Bounds(floor=100, ceiling=1_000_000)
TARGET = timedelta(seconds=1)
NO = Reading(Signal.SQL_PROBE, healthy=False, text="the query gave false", severity=float("inf"))
MILDLY = Reading(Signal.CONNECTIONS, healthy=False, text="95 % of 90 %", severity=1.05)
UNSURE = Reading(Signal.BARRIER_LATENCY, healthy=False, text="one barrier", severity=1.1, sure=False)
FINE = Reading(Signal.BARRIER_LATENCY, healthy=True, text="fine", severity=0.5)

bounds = st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)).map(lambda pair: Bounds(pair[0], sum(pair)))
states = st.builds(
    Adaptation,
    present=st.floats(0.5, 3e6),
    threshold=st.none() | st.floats(0.5, 3e6),
    falling=st.booleans(),
    quiet=st.integers(0, 500),
)
readings = st.lists(
    st.builds(
        Reading,
        signal=st.sampled_from(Signal),
        healthy=st.booleans(),
        text=st.text(max_size=5),
        severity=st.floats(0, 100) | st.just(float("inf")),
        sure=st.booleans(),
    ),
    max_size=5,
)


@dataclass
class Plant:
    """One scan whose barriers take their target when it reads as much as there is capacity, and the loop around it: a
    change takes effect with the next barrier, and is looked at with the one after it.
    """

    capacity: Callable[[int], float]
    most: float = float("inf")
    """What the scan reads when nothing limits it."""
    probe: Callable[[int], bool] = lambda _: True
    bounds: Bounds = BOUNDS
    state: Adaptation = field(default_factory=lambda: started(BOUNDS))
    in_force: int = START
    since: int = 0
    barrier: int = 0
    asked: int | None = None
    passed: list[Passed] = field(default_factory=list[Passed])
    seen: list[int] = field(default_factory=list[int])
    """The limit in force at each barrier."""
    commands: list[int] = field(default_factory=list[int])
    """The barriers that carried a change."""

    def run(self, barriers: int) -> "Plant":
        for _ in range(barriers):
            self._pass()
            self._look()
        return self

    def _pass(self) -> None:
        self.barrier += 1
        if self.asked is not None:
            self.in_force, self.since, self.asked = self.asked, self.barrier, None
            self.commands.append(self.barrier)
        load = min(self.in_force, self.most) / self.capacity(self.barrier)
        self.passed.insert(0, Passed(Epoch(self.barrier), TARGET * (0.3 + 0.7 * load)))
        self.seen.append(self.in_force)

    def _look(self) -> None:
        latency = of_latency(self.passed[:5], since=Epoch(self.since), target=TARGET)
        if latency is None:
            return
        said = [latency] if self.probe(self.barrier) else [latency, NO]
        used = min(self.in_force, self.most)
        self.state = decided(self.state, said, used=used, bounds=self.bounds).after
        self.asked = to_ask(self.in_force, self.state, self.bounds)


capacities = st.floats(500, 500_000)


@given(capacities)
def test_it_finds_a_capacity_and_stays_near_it(capacity: float) -> None:
    plant = Plant(lambda _: capacity).run(400)
    settled = plant.seen[200:]
    assert max(settled) <= capacity * (1 + STEP_SHARE)
    assert min(settled) >= capacity * MILD * 0.95
    assert sum(settled) / len(settled) >= capacity * 0.8, "history moves"


@given(capacities, st.floats(0.02, 50))
def test_it_follows_a_capacity_that_changes(before: float, times: float) -> None:
    after = min(max(before * times, 2 * BOUNDS.floor), BOUNDS.ceiling / 2)
    plant = Plant(lambda barrier: before if barrier <= 200 else after).run(500)
    settled = plant.seen[400:]
    assert max(settled) <= after * (1 + STEP_SHARE)
    assert min(settled) >= after * MILD * 0.95


@given(capacities, st.integers(1, 200))
def test_it_comes_back_after_an_unhealthy_spell(capacity: float, barriers: int) -> None:
    """Doublings up to where it was: not the hundreds of steps that lie in between."""
    plant = Plant(lambda _: capacity, probe=lambda barrier: not 200 < barrier <= 200 + barriers).run(200 + barriers)
    if barriers > 40:
        assert plant.in_force <= BOUNDS.floor * 1.05
    plant.run(60)
    assert max(plant.seen[-60:]) >= capacity * MILD * 0.95


@given(capacities)
def test_a_probe_that_flaps_for_long_does_not_leave_it_at_the_floor(capacity: float) -> None:
    """The threshold has followed the limit down: growing steps find the capacity again."""
    plant = Plant(lambda _: capacity, probe=lambda barrier: barrier > 400 or barrier % 4 < 2).run(400)
    plant.run(100)
    assert max(plant.seen[-60:]) >= capacity * MILD * 0.95


@given(capacities)
def test_no_change_comes_before_the_last_one_was_seen(capacity: float) -> None:
    plant = Plant(lambda _: capacity).run(300)
    assert all(later - earlier >= 2 for earlier, later in zip(plant.commands, plant.commands[1:], strict=False))


@given(st.floats(200, 5_000))
def test_a_limit_that_is_not_used_does_not_run_away(most: float) -> None:
    plant = Plant(lambda _: 1e9, most=most).run(300)
    assert plant.in_force <= max(START, most * 4 * 2)


def test_slow_start_doubles_until_the_first_decrease() -> None:
    plant = Plant(lambda _: 30_000).run(40)
    changes = [limit for limit, before in zip(plant.seen[1:], plant.seen, strict=False) if limit != before]
    assert changes[:5] == [2_000, 4_000, 8_000, 16_000, 32_000]
    assert changes[5] == round(32_000 * MILD)
    assert changes[6] == round(32_000 * MILD * (1 + STEP_SHARE))


@given(st.lists(st.floats(200, 30_000), min_size=2, max_size=5))
def test_limits_that_share_a_capacity_come_to_equal_shares(begun: list[float]) -> None:
    """Chiu and Jain: each step up keeps their differences and each decrease shrinks them."""
    limits = [Adaptation(one, threshold=one) for one in begun]
    for _ in range(400):
        load = sum(one.present for one in limits) / 30_000
        said = Reading(Signal.BARRIER_LATENCY, healthy=load <= 1, text="", severity=load)
        scale = scale_of(limits)
        limits = [decided(one, [said], used=one.present, bounds=BOUNDS, scale=scale).after for one in limits]
    assert max(one.present for one in limits) <= min(one.present for one in limits) * 1.1


@given(states, readings, st.none() | st.floats(0, 1e7), bounds)
def test_whatever_it_is_given(state: Adaptation, said: list[Reading], used: float | None, within: Bounds) -> None:
    decision = decided(state, said, used=used, bounds=within)
    after, before = decision.after, within.hold(state.present)
    assert within.floor <= after.present <= within.ceiling
    bad = [one for one in said if not one.healthy]
    if any(one.sure for one in bad):
        assert after.present == max(before * HARD, within.floor) or after.present == max(before * MILD, within.floor)
        assert decision.signal in {one.signal for one in bad if one.sure}
    elif bad:
        assert (after.present, decision.move) == (before, Move.HELD)
    else:
        assert before <= after.present <= before * 2
        assert decision.signal is None
    moved = {Move.RAISED: after.present > before, Move.LOWERED: after.present < before, Move.HELD: True}
    assert moved[decision.move]


@given(st.integers(1, 2_000_000), states, bounds)
def test_a_small_change_asks_for_nothing(in_force: int, state: Adaptation, within: Bounds) -> None:
    asked = to_ask(in_force, state, within)
    if not within.floor <= in_force <= within.ceiling:
        assert asked == round(state.present), "what is out of bounds is put right, however near"
    elif asked is None:
        assert abs(round(state.present) - in_force) < max(in_force * 0.05, 1)
    else:
        assert asked == round(state.present)
        assert abs(asked - in_force) >= max(in_force * 0.05, 1)


def test_the_worst_of_several_signals_decides() -> None:
    decision = decided(Adaptation(1000), [FINE, MILDLY, UNSURE, NO], used=1000, bounds=BOUNDS)
    assert (decision.move, decision.signal, decision.reason) == (Move.LOWERED, Signal.SQL_PROBE, NO.text)
    assert decision.after.present == 1000 * HARD
    decision = decided(Adaptation(1000), [FINE, MILDLY, UNSURE], used=1000, bounds=BOUNDS)
    assert (decision.signal, decision.after.present) == (Signal.CONNECTIONS, 1000 * MILD)
    decision = decided(Adaptation(1000), [FINE, UNSURE], used=1000, bounds=BOUNDS)
    assert (decision.move, decision.signal, decision.reason) == (Move.HELD, Signal.BARRIER_LATENCY, UNSURE.text)


def test_decreases_in_a_row_are_one_spell() -> None:
    first = decided(Adaptation(64_000), [NO], used=0, bounds=BOUNDS).after
    second = decided(first, [NO], used=0, bounds=BOUNDS).after
    assert (first.present, first.threshold) == (32_000, 32_000)
    assert (second.present, second.threshold) == (16_000, 32_000)
    again = decided(second, [FINE], used=16_000, bounds=BOUNDS).after
    assert (again.present, again.falling) == (32_000, False)
    third = decided(again, [NO], used=0, bounds=BOUNDS).after
    assert (third.present, third.threshold) == (16_000, 16_000), "a new spell"


def test_steps_are_even_and_then_grow() -> None:
    state = Adaptation(1_000, threshold=1_000)
    steps: list[int] = []
    for _ in range(EVEN_STEPS + 3):
        after = decided(state, [FINE], used=state.present, bounds=BOUNDS).after
        steps.append(round(after.present - state.present))
        state = after
    assert steps == [100] * EVEN_STEPS + [200, 400, 800]


def test_it_is_held_at_the_floor_and_says_why() -> None:
    decision = decided(Adaptation(100.0), [NO], used=10, bounds=BOUNDS)
    assert (decision.move, decision.signal, decision.after.present) == (Move.HELD, Signal.SQL_PROBE, 100)


@pytest.mark.parametrize(("history", "sure"), [(0.0, False), (0.19, False), (0.21, True), (1.9, True), (None, True)])
def test_a_barrier_that_others_made_late_lowers_nothing(history: float | None, sure: bool) -> None:
    reading_history = None if history is None else timedelta(seconds=history)
    passed = [Passed(Epoch(9), timedelta(seconds=2), reading_history), Passed(Epoch(8), timedelta(seconds=2))]
    reading = of_latency(passed, since=Epoch(0), target=TARGET)
    assert reading is not None
    assert (reading.healthy, reading.sure, reading.text.endswith("for history")) == (False, sure, not sure)
    move = decided(Adaptation(1000), [reading], used=1000, bounds=BOUNDS).move
    assert move is (Move.LOWERED if sure else Move.HELD)


@pytest.mark.parametrize(
    ("seconds", "healthy", "sure"),
    [
        ([], None, None),
        ([0.9], True, False),
        ([1.0], True, False),
        ([1.2], False, False),
        ([2.0], False, True),
        ([1.2, 0.9], False, False),
        ([1.2, 1.1], False, True),
        ([0.9, 1.5], True, False),
        ([1.2, 0.9, 1.5], False, False),
    ],
)
def test_one_slow_barrier_has_to_be_confirmed(seconds: list[float], healthy: bool | None, sure: bool | None) -> None:
    """Newest first. The oldest is of before the change."""
    passed = [Passed(Epoch(100 - at), timedelta(seconds=took)) for at, took in enumerate([*seconds, 9.0])]
    reading = of_latency(passed, since=Epoch(100 - len(seconds)), target=TARGET)
    assert (None if reading is None else (reading.healthy, reading.sure)) == (
        None if healthy is None else (healthy, sure)
    )
