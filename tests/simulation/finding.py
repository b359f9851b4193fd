"""How a planted bug is looked for: among schedules whose seeds are fixed, so that it is found at the same one every
time.
"""

from collections.abc import Mapping

import pytest

from tests.simulation.simulation import FoundError, Simulation
from workers.backfill.model import Arrangement

SCHEDULES = 200


def found(*, arrangement: type[Arrangement] = Arrangement, among: Mapping[str, float] | None = None) -> str:
    """Return what the first schedule says that fails, `among` those with these faults; fail when none does."""
    for seed in range(SCHEDULES):
        simulation = Simulation(seed, arrangement=arrangement)
        if among is not None and simulation.faults.rates != among:
            continue
        try:
            simulation.run()
        except FoundError as failure:
            return str(failure)
    pytest.fail(f"not found in {SCHEDULES} schedules")
