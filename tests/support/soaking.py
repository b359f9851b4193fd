"""How long a soak lasts, and the seeds it uses up: `SOAK_SECONDS` for each test, from `SOAK_SEED` on."""

import os
import sys
import time
from collections.abc import Iterator
from itertools import count


def seeds(*, said: bool = True) -> Iterator[int]:
    """Yield seeds until the time is over, at least one, and say each before it is used, unless a failure names it."""
    ends = time.monotonic() + seconds()  # noqa: TID251 - how long is what is asked
    for seed in count(first_seed()):
        if said:
            sys.stdout.write(f"seed {seed}\n")
        yield seed
        if time.monotonic() >= ends:  # noqa: TID251 - as above
            return


def seconds() -> float:
    """Return how long a soak lasts."""
    return float(os.environ.get("SOAK_SECONDS", "600"))


def first_seed() -> int:
    """Return the seed to begin with."""
    return int(os.environ.get("SOAK_SEED", "1"))
