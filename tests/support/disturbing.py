"""Something that disturbs a service every few seconds, and mends what it has broken."""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final

import httpx

from tests.support.service import Service

CALM: Final = 0.7
"""How often a disturbance waits until the service is ready: if all hit a recovery, nothing would ever be done."""


@dataclass
class Disturber(ABC):
    """Does something to `service`, or to what stands behind it, after a pause between two times."""

    KINDS: ClassVar[Mapping[str, int]]
    """Each kind of disturbance, and how often it comes."""
    service: Service
    random: Random
    over: threading.Event
    every: tuple[float, float]
    kills: Counter[str] = field(default_factory=Counter[str])
    """The disturbances, each with its number."""

    def turn(self, _turn: int) -> None:
        """Wait for the time, which mostly counts from when a worker runs again, and disturb."""
        if self.random.random() < CALM:
            self._until_ready()
        if self.over.wait(self.random.uniform(*self.every)):
            return
        kind = self.random.choices(list(self.KINDS), list(self.KINDS.values()))[0]
        done = self.disturb(kind)
        self.kills[kind if done else f"{kind} (missed)"] += 1
        self.revive()

    @abstractmethod
    def disturb(self, kind: str) -> bool:
        """Disturb in one way; return whether there was something to disturb."""

    @abstractmethod
    def revive(self) -> None:
        """Start again what has ended, so that calls are answered."""

    def _until_ready(self) -> None:
        while not self.over.wait(0.5):
            self.revive()
            with suppress(httpx.TransportError):
                if self.service.http.get("/readyz", timeout=10).status_code == 200:
                    return
