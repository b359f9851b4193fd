"""Who looks and then waits is woken by what happened while it looked: a barrier's life has many such moments."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.loops.local_signals import LocalSignals
from service.loops.system_clock import SystemClock
from service.operations import polling
from service.operations.polling import until
from service.protocol.ids import GraphId

pytestmark = pytest.mark.timeout(20)
FOR_EVER = 3600.0


async def test_a_notification_that_came_since_is_not_waited_for() -> None:
    signals = LocalSignals()
    before = signals.heard()
    signals.notify()
    await signals.wait(FOR_EVER, since=before)
    waits = asyncio.create_task(signals.wait(FOR_EVER, since=signals.heard()))
    # It comes to wait before this task goes on.
    await asyncio.create_task(_nothing())
    assert not waits.done()
    signals.notify()
    await waits


async def test_a_notification_wakes_those_whom_it_concerns() -> None:
    signals, graphs = LocalSignals(), (GraphId(1), GraphId(2))
    topics = (None, *graphs)
    waits = {topic: asyncio.create_task(signals.wait(FOR_EVER, topic=topic)) for topic in topics}
    await asyncio.create_task(_nothing())
    before = [signals.heard(topic) for topic in topics]
    signals.notify(None, graphs[0])
    await waits[None]
    await waits[graphs[0]]
    assert [signals.heard(topic) - heard for topic, heard in zip(topics, before, strict=True)] == [1, 1, 0]
    assert not waits[graphs[1]].done()
    signals.notify()
    await waits[graphs[1]]
    assert [signals.heard(topic) - heard for topic, heard in zip(topics, before, strict=True)] == [2, 2, 1]


async def _nothing() -> None:
    return


async def test_what_comes_true_in_the_middle_of_a_look_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "REREAD", timedelta(seconds=FOR_EVER))
    signals, looks = LocalSignals(), 0

    async def look() -> int | None:
        nonlocal looks
        looks += 1
        if looks > 1:
            return looks
        signals.notify()
        return None

    world = cast("Any", SimpleNamespace(signals=signals, clock=SystemClock()))
    assert await until(world, look) == 2
