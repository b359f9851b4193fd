"""A few hundred schedules of the whole machine, each from a seed (I1-I4, I6, I7, I9, I11).

`tests/soak/test_simulated_schedules.py` goes on for as long as it is told. A failure names its seed:
`python -m tests.simulation SEED` lives through it again.
"""

import pytest

from tests.simulation.simulation import Simulation
from tests.support.sampling import sampled

STRETCH = 40


@pytest.mark.parametrize("first", sampled(range(0, 3 * STRETCH, STRETCH)))
def test_every_schedule_keeps_what_is_promised(first: int) -> None:
    for seed in range(first, first + STRETCH):
        Simulation(seed).run()


def test_a_seed_is_all_that_a_schedule_needs() -> None:
    def account(seed: int) -> list[str]:
        lines: list[str] = []
        Simulation(seed, told=lines.append).run()
        return lines

    for seed in range(STRETCH, STRETCH + 8):
        told = account(seed)
        assert told
        assert account(seed) == told
