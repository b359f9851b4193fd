"""Signals inside one process: what waits is woken by what has changed something here."""

import asyncio
from collections import Counter

from service.ports.signals import Topic


class LocalSignals:
    """Implements `service.ports.signals.Signals` inside one process."""

    def __init__(self) -> None:
        self._events: dict[Topic, asyncio.Event] = {}
        """The signals of the topics for which a task waits."""
        self._heard: Counter[Topic] = Counter()
        self._by_all = 0

    def heard(self, topic: Topic = None) -> int:
        """Return how many notifications there were of a topic."""
        return self._by_all + self._heard[topic]

    def notify(self, *topics: Topic) -> None:
        """Wake the tasks that wait for one of these topics; without any topic, all tasks."""
        self._heard.update(topics)
        self._by_all += not topics
        for topic in topics or tuple(self._events):
            if (event := self._events.pop(topic, None)) is not None:
                event.set()

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        """Return at the next notification after `since`, or after the timeout."""
        if since is not None and since != self.heard(topic):
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._events.setdefault(topic, asyncio.Event()).wait()
        except TimeoutError:
            return
