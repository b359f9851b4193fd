"""Schedules of the simulation, seed after seed: as many as fit."""

import sys

import pytest

from tests.simulation.simulation import Simulation
from tests.support.soaking import seeds

pytestmark = pytest.mark.soak


def test_every_schedule_keeps_what_is_promised() -> None:
    schedules = epochs = recoveries = faults = 0
    for seed in seeds(said=False):
        ran = Simulation(seed).run()
        schedules += 1
        epochs += ran.epochs
        recoveries += ran.generations
        faults += len(ran.faults)
    sys.stdout.write(f"{schedules} schedules clean: {epochs} epochs, {recoveries} recoveries, {faults} faults\n")
