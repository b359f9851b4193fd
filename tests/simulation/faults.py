"""What goes wrong, where, and how often: a fault is a place with a name, and the seed says whether it happens there.

Each schedule draws the kinds that it knows and how often they strike; few at a time find more than all at once. Some
are made for what needs several things to go wrong in a row: a worker of an old generation that commits late, a leader
that was taken for dead.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

KINDS: Final = {
    "service crash": 0.002,
    "worker crash": 0.01,
    "away": 0.005,  # a store does not answer: nothing was done
    "unheard": 0.005,  # a store did it, and its answer is lost
    "slow": 0.003,  # the place takes seconds
    "slow worker": 0.02,
    "slow commit": 0.03,  # of a worker: what it wrote waits for its fence
    "unreachable": 0.1,  # a worker that was given up cannot be ended
    "slow recovery": 0.2,  # between fencing the state store and having rolled it back
    "lost request": 0.03,
    "lost answer": 0.03,
    "doubled": 0.05,  # a message arrives once more, later
    "error": 0.01,  # a worker's task fails
    "unnotified": 0.05,  # a signal is lost
}
"""How often each strikes where it may: there are many more places in a service than messages on their way."""
FACTORS: Final = (1.0, 4.0, 12.0)
ZOMBIES: Final = {"slow commit": 0.15, "slow worker": 0.02, "lost answer": 0.05, "doubled": 0.1, "unreachable": 1.0}
DEPOSED: Final = {"slow recovery": 0.6, "slow": 0.002, "error": 0.02, "worker crash": 0.01}
SLOW: Final = (0.3, 1.0, 3.0, 6.0, 12.0, 25.0)
"""Seconds: some within every deadline, some beyond the leases."""
MOST: Final = 14
"""Faults of one schedule: enough to meet each other, few enough to get somewhere in between."""


@dataclass
class Faults:
    random: Random
    rates: dict[str, float] = field(default_factory=dict[str, float])
    left: int = MOST
    struck: list[str] = field(default_factory=list[str])
    late: int = 0
    """How many are held up, and will go on."""

    @classmethod
    def drawn(cls, random: Random) -> "Faults":
        made = random.choice((None, None, None, ZOMBIES, DEPOSED))
        if made is not None:
            return cls(random, dict(made))
        chosen = random.sample(sorted(KINDS), random.choice((0, 1, 2, 3, 3, 4, 5)))
        return cls(random, {kind: KINDS[kind] * random.choice(FACTORS) for kind in chosen})

    def strikes(self, kind: str, place: str) -> bool:
        """Whether it happens here and now."""
        rate = self.rates.get(kind)
        if rate is None or self.left <= 0 or self.random.random() >= rate:
            return False
        self.left -= 1
        self.struck.append(f"{kind} at {place}")
        return True

    def delay(self) -> float:
        return self.random.choice(SLOW)

    def cease(self) -> None:
        """From now on nothing goes wrong."""
        self.rates.clear()
