"""Signals that reach the other services of an installation too, by notifications of the meta store.

A notification is sent after the commit that it is about, by a statement of its own. It is a hint as any signal is: one
that is lost costs latency. A service that hears no peers sends nothing but its heartbeat.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from service.domain.barrier import Chore
from service.domain.errors import Unavailable
from service.loops.local_signals import LocalSignals
from service.loops.periodic import Pauses, run_periodically, wait
from service.ports.clock import Clock
from service.ports.signals import Notifications, Topic
from service.protocol.ids import GraphId
from service.telemetry.log import logger

log = logger("signals")

HEARTBEAT_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 25.0
"""A peer that was not heard for so long is gone. A service that does not hear even itself connects again."""
TOGETHER_SECONDS: Final = 0.02
"""The shortest time between two notifications. Signals of this time are sent together."""
PAYLOAD_MAX: Final = 7_000
"""Bytes; Postgres takes 8,000. A longer list of topics is sent as all topics."""
_EVERY: Final = GraphId(-1)
"""Stands for all topics in a payload."""

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
    """The exchange of signals between this service and its peers. `sender` names this service."""

    def __init__(self, notifications: Notifications, sender: str, clock: Clock) -> None:
        self._notifications, self._sender, self._clock = notifications, sender, clock
        self._signals: dict[str, SharedSignals] = {}
        self._pending: dict[str, set[Topic]] = {}
        self._due = asyncio.Event()
        self._peers: dict[str, float] = {}
        """The other services, and when each was last heard, on the monotonic clock."""

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
            self._pending.setdefault(name, set()).update(topics or (_EVERY,))
            self._due.set()

    async def _listen(self) -> None:
        await self._notifications.listen(self._take, silent_seconds=SILENT_SECONDS)

    def _take(self, payload: str | None) -> None:
        """Wake the tasks whose topics are named, or all of them after a time in which nothing was heard."""
        if payload is None:
            for signals in self._signals.values():
                signals.receive()
            return
        try:
            sender, hints = json.loads(payload)
            told = {name: list(map(_topic, topics)) for name, topics in hints.items()}
        except (ValueError, TypeError, AttributeError):
            # Anyone who may connect to the database may notify.
            log.warning("signals.unread")
            return
        if sender == self._sender:
            return
        self._meet(str(sender))
        for name, topics in told.items():
            # A name may be missing while this service starts, or be one of the next release.
            if name in self._signals:
                self._signals[name].receive(*(() if _EVERY in topics else topics))

    def _meet(self, sender: str) -> None:
        """Note that a peer lives, and make oneself known to a new one."""
        now = self._clock.monotonic()
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
        hints = {name: sorted(topics, key=str) for name, topics in pending.items()}
        payload = json.dumps([self._sender, hints])
        if len(payload) > PAYLOAD_MAX:
            payload = json.dumps([self._sender, {name: [_EVERY] for name in hints}])
        await self._notifications.send(payload)


def _topic(value: object) -> Topic:
    match value:
        case None:
            return None
        case int():
            return GraphId(value)
        case _:
            return Chore(str(value))
