"""Live through one schedule again, and say what happens: `python -m tests.simulation SEED`."""

import sys

from tests.simulation.simulation import Simulation


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    _say(str(Simulation(int(sys.argv[1]), told=_say).run()))
