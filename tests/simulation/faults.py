"""What goes wrong, where, and how often: a fault is a place with a name, and the seed says whether it happens there.

Each schedule draws the kinds that it knows and how often they strike; few at a time find more than all at once. Some
are made for what needs several things to go wrong in a row: a worker of an old generation that commits late, a leader
that was taken for dead.
"""

from collections.abc import Callable
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
    "stuck job": 0.005,  # the graph of a snapshot job stands still, in a worker or in a service; nothing else does
    "lost request": 0.03,
    "lost answer": 0.03,
    "doubled": 0.05,  # a message arrives once more, later
    "error": 0.01,  # a worker's task fails
    "slow statement": 0.1,  # the epoch's budget of DML ends at one of its statements
    "unnotified": 0.05,  # a signal is lost
}
"""How often each strikes where it may: there are many more places in a service than messages on their way."""
FACTORS: Final = (1.0, 4.0, 12.0)
ZOMBIES: Final = {"slow commit": 0.15, "slow worker": 0.02, "lost answer": 0.05, "doubled": 0.1, "unreachable": 1.0}
DEPOSED: Final = {"slow recovery": 0.6, "slow": 0.002, "error": 0.02, "worker crash": 0.01}
STUCK: Final = {"stuck job": 0.08}
"""Nothing but these: the calm in which I10 can be said of every second."""
CRASHES: Final = frozenset({"service crash", "worker crash"})
SLOW: Final = (0.3, 1.0, 3.0, 6.0, 12.0, 25.0)
"""Seconds: some within every deadline, some beyond the leases."""
PRESSED: Final = 40
PRESSURE: Final = 20.0
QUIET: Final = (0, 0, 20, 100, 400)
STILL: Final = (3.0, 6.0, 12.0, 25.0)
"""Seconds for which the graph of a snapshot job stands still: most of them beyond its barrier's deadline."""
MOST: Final = 14
"""Faults of one schedule: enough to meet each other, few enough to get somewhere in between."""


def _nobody(_: str) -> None:
    return


@dataclass
class Faults:
    """`told` hears of every one, when it strikes."""

    random: Random
    rates: dict[str, float] = field(default_factory=dict[str, float])
    left: int = 0
    """How many may still strike: none before they are armed."""
    armed: bool = False
    ceased: bool = False
    pressed: int = 0
    """At how many more places they strike far more often."""
    quiet: int = 0
    """At how many more places none strikes: what strikes all at once meets the same jobs in the same phases."""
    struck: list[str] = field(default_factory=list[str])
    late: int = 0
    """How many are held up, and will go on."""
    told: Callable[[str], None] = _nobody

    @classmethod
    def drawn(cls, random: Random) -> "Faults":
        made = random.choice((None, None, None, None, ZOMBIES, DEPOSED, STUCK))
        if made is not None:
            return cls(random, dict(made))
        chosen = random.sample(sorted(KINDS), random.choice((0, 1, 2, 3, 3, 4, 5)))
        return cls(random, {kind: KINDS[kind] * random.choice(FACTORS) for kind in chosen})

    def arm(self) -> None:
        """From now on they strike. What struck before there is a job to meet would be wasted."""
        if not (self.armed or self.ceased):
            self.armed, self.left = True, MOST

    def press(self) -> None:
        """Let one strike soon, if any does."""
        self.pressed = PRESSED

    def strikes(self, kind: str, place: str) -> bool:
        """Whether it happens here and now."""
        rate = self.rates.get(kind)
        if rate is None or self.left <= 0:
            return False
        if self.pressed > 0:
            self.pressed -= 1
            rate *= PRESSURE
        elif self.quiet > 0:
            self.quiet -= 1
            return False
        if self.random.random() >= rate:
            return False
        self.left, self.pressed, self.quiet = self.left - 1, 0, self.random.choice(QUIET)
        self.struck.append(f"{kind} at {place}")
        self.told(kind)
        return True

    def delay(self) -> float:
        return self.random.choice(SLOW)

    def standstill(self) -> float:
        return self.random.choice(STILL)

    def cease(self) -> None:
        """From now on nothing goes wrong."""
        self.rates.clear()
        self.left, self.ceased = 0, True
