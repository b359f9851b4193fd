"""Schedules of the simulation, seed after seed: as many as fit, and what they met."""

import sys

import pytest

from tests.simulation.coverage import Total
from tests.simulation.simulation import Simulation
from tests.support.soaking import seeds

pytestmark = pytest.mark.soak

MANY = 5_000
"""So many schedules meet everything that there is to meet."""


def test_every_schedule_keeps_what_is_promised() -> None:
    total = Total()
    try:
        for seed in seeds(said=False):
            total.add(Simulation(seed).run())
            if not total.schedules % 1_000:
                sys.stdout.write(f"{total.schedules} schedules clean, up to seed {seed}\n")
                sys.stdout.flush()
    finally:
        sys.stdout.write("\n".join(total.lines()) + "\n")
    assert total.schedules < MANY or not total.missed()
