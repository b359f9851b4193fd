"""Signals that reach the other services of an installation too, by notifications of the meta store.

A notification is sent after the commit that it is about, by a statement of its own. It is a hint as any signal is: one
that is lost costs latency. A service that hears no peers sends nothing but its heartbeat.

Texts that no service signed are counted and dropped. Beyond `LOOKED_AT_MAX` texts in a second, the rest is dropped
unread and counts as one signal of all topics. So no flood of texts costs more than receiving it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from service.domain.errors import Unavailable
from service.loops.local_signals import LocalSignals
from service.loops.periodic import Pauses, run_periodically, wait
from service.loops.signal_texts import signed, verified
from service.ports.clock import Clock
from service.ports.signals import Notifications, Topic
from service.telemetry.log import logger

log = logger("signals")

HEARTBEAT_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 25.0
"""A peer that was not heard for so long is gone. A service that does not hear even itself connects again."""
TOGETHER_SECONDS: Final = 0.02
"""The shortest time between two notifications. Signals of this time are sent together."""
LOOKED_AT_MAX: Final = 2_000
"""Texts that are verified in one second. Forty services send as many at most."""
TELL_SECONDS: Final = 60.0
"""The shortest time between two log lines about dropped texts."""

Send = Callable[[tuple[Topic, ...]], None]


class SharedSignals(LocalSignals):
    """Implements `service.ports.signals.Signals` across services. `send` sends topics to the others; none means all."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def notify(self, *topics: Topic) -> None:
        """Wake the tasks that wait here now, and those of other services soon."""
        self.receive(*topics)
        self._send(topics)

    def receive(self, *topics: Topic) -> None:
        """Wake the tasks that wait here."""
        super().notify(*topics)


class Exchange:
    """The exchange of signals between this service and its peers. `sender` names this service, `key` is secret."""

    def __init__(self, notifications: Notifications, sender: str, key: str, clock: Clock) -> None:
        self._notifications, self._sender, self._key, self._clock = notifications, sender, key, clock
        self._signals: dict[str, SharedSignals] = {}
        self._pending: dict[str, set[Topic]] = {}
        """The topics to send for each name. No topics mean all."""
        self._due = asyncio.Event()
        self._peers: dict[str, float] = {}
        """The other services, and when each was last heard, on the monotonic clock."""
        self._flood = _Flood()

    def signals(self, name: str) -> SharedSignals:
        """Return new signals, which reach those of the same name in other services."""
        self._signals[name] = made = SharedSignals(lambda topics: self._send(name, topics))
        return made

    async def run(self, stop: asyncio.Event) -> None:
        """Send and receive until `stop` is set, then send what is pending."""
        loops = [
            asyncio.create_task(run_periodically(tick, Pauses(timedelta(0)), stop, name=name))
            for tick, name in ((self._listen, "listen"), (self._speak, "notify"))
        ]
        await stop.wait()
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        try:
            if self._pending:
                await self._notify()
        except Unavailable as error:
            log.warning("signals.lost", error=str(error))
        await self._notifications.close()

    def _send(self, name: str, topics: tuple[Topic, ...]) -> None:
        if self._peers:
            pending = self._pending.get(name, set(topics))
            # No topics mean all, and all stay all.
            self._pending[name] = pending | set(topics) if pending and topics else set()
            self._due.set()

    async def _listen(self) -> None:
        await self._notifications.listen(self._take, silent_seconds=SILENT_SECONDS)

    def _take(self, payload: str | None) -> None:
        """Wake the tasks whose topics are named, or all of them after a time in which nothing was heard."""
        if payload is None:
            self._wake_all()
            return
        now = self._clock.monotonic()
        place = self._flood.place(now)
        if place > LOOKED_AT_MAX:
            if place == LOOKED_AT_MAX + 1:
                self._wake_all()
            self._flood.drop(now)
            return
        told = verified(self._key, payload)
        if told is None:
            self._flood.drop(now)
            return
        sender, hints = told
        if sender == self._sender:
            return
        self._meet(sender, now)
        for name, topics in hints.items():
            # A name may be missing while this service starts, or be one of the next release.
            if name in self._signals:
                self._signals[name].receive(*topics)

    def _wake_all(self) -> None:
        for signals in self._signals.values():
            signals.receive()

    def _meet(self, sender: str, now: float) -> None:
        """Note that a peer lives, and make oneself known to a new one."""
        if sender not in self._peers:
            log.info("signals.peer", peer=sender)
            self._due.set()
        self._peers = {peer: at for peer, at in self._peers.items() if now - at < SILENT_SECONDS} | {sender: now}

    async def _speak(self) -> None:
        """Send what is pending, or a heartbeat. The first signal after a while is sent at once."""
        await self._notify()
        await wait(asyncio.Event(), TOGETHER_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._due.wait()

    async def _notify(self) -> None:
        pending, self._pending = self._pending, {}
        self._due.clear()
        await self._notifications.send(signed(self._key, self._sender, pending))


class _Flood:
    """Counts the texts of each second and those that were dropped. Times are in monotonic seconds."""

    def __init__(self) -> None:
        self._second, self._count = 0, 0
        self._dropped, self._told_at = 0, -TELL_SECONDS

    def place(self, now: float) -> int:
        """Return the number of a text among those of its second, counted from 1."""
        if int(now) != self._second:
            self._second, self._count = int(now), 0
        self._count += 1
        return self._count

    def drop(self, now: float) -> None:
        """Count a text that is dropped. Log the number of those since the last line, once in `TELL_SECONDS`."""
        self._dropped += 1
        if now - self._told_at >= TELL_SECONDS:
            log.warning("signals.dropped", count=self._dropped)
            self._dropped, self._told_at = 0, now
