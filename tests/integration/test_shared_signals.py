"""Signals between services, over the notifications of a real Postgres."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

import psycopg
import pytest

from service.domain.barrier import Chore
from service.loops.shared_signals import PAYLOAD_MAX, Exchange, SharedSignals
from service.loops.system_clock import SystemClock
from service.meta_store.notifications import CHANNEL, PostgresNotifications
from service.ports.signals import Topic
from service.protocol.ids import DATABASE_GRAPH, GraphId

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60)]
FOR_EVER = 3600.0
HELLOS = map(GraphId, count(100))
"""A topic for each call of `heard_by_all`: a signal of an earlier one that comes late is not taken for its own."""
NEVER = GraphId(99)


@asynccontextmanager
async def exchanging(url: str, *names: str) -> AsyncGenerator[list[tuple[Exchange, SharedSignals]]]:
    """Run the exchange of each service, until every one has heard all others."""
    made = [Exchange(PostgresNotifications(url), name, SystemClock()) for name in names]
    services = [(exchange, exchange.signals("changes")) for exchange in made]
    stop = asyncio.Event()
    running = [asyncio.create_task(exchange.run(stop)) for exchange in made]
    try:
        for _, signals in services:
            await heard_by_all(signals, [other for _, other in services if other is not signals])
        yield services
    finally:
        stop.set()
        await asyncio.gather(*running)


async def heard_by_all(mine: SharedSignals, others: list[SharedSignals]) -> None:
    """Return when the others hear a service: until it has met them it sends nothing."""
    hello = next(HELLOS)
    for other in others:
        before = said(other, hello)
        while said(other, hello) == before:
            mine.notify(hello)
            await other.wait(0.05, topic=hello, since=other.heard(hello))


def said(signals: SharedSignals, topic: GraphId) -> int:
    """How often a topic was heard, without the signals of all topics."""
    return signals.heard(topic) - signals.heard(NEVER)


@pytest.mark.parametrize("topic", [None, DATABASE_GRAPH, GraphId(7), Chore.ELECT])
async def test_a_signal_wakes_the_other_service(database_url: str, topic: Topic) -> None:
    async with exchanging(database_url, "a", "b") as ((_, mine), (_, theirs)):
        waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=topic, since=theirs.heard(topic)))
        mine.notify(topic)
        await waits


async def test_all_topics_and_very_many_of_them(database_url: str) -> None:
    async with exchanging(database_url, "a", "b") as ((_, mine), (_, theirs)):
        for topics in ((), tuple(GraphId(1_000_000 + one) for one in range(PAYLOAD_MAX))):
            before = theirs.heard(Chore.TIDY)
            waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=Chore.TIDY, since=before))
            mine.notify(*topics)
            await waits


async def test_i13_what_a_stranger_notifies_is_left_alone(database_url: str) -> None:
    async with exchanging(database_url, "a", "b") as ((_, mine), (_, theirs)):
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as stranger:
            for text in ("", "{}", "[1, 2]", '["x", {"changes": [{}]}]', '["x", {"unknown": []}]', "[" * 5_000):
                await stranger.execute("select pg_notify(%s, %s)", (CHANNEL, text))
        waits = asyncio.create_task(theirs.wait(FOR_EVER, since=theirs.heard()))
        mine.notify(None)
        await waits


async def test_a_name_that_is_unknown_here_does_not_hide_the_others(database_url: str) -> None:
    """A service that starts has not made its names yet, and one of the next release may have more of them."""
    async with exchanging(database_url, "a", "b") as (_, (_, theirs)):
        waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=GraphId(7), since=theirs.heard(GraphId(7))))
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as newer:
            await newer.execute("select pg_notify(%s, %s)", (CHANNEL, '["x", {"unknown": [7], "changes": [7]}]'))
        await waits


async def test_i3_a_lost_connection_is_opened_again_and_everything_is_read_again(database_url: str) -> None:
    async with exchanging(database_url, "a", "b") as ((_, mine), (_, theirs)):
        waits = [asyncio.create_task(one.wait(FOR_EVER, since=one.heard())) for one in (mine, theirs)]
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as other:
            await other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name like 'tidefill-signals-%' and datname = current_database()"
            )
        await asyncio.gather(*waits)
        # A connection that was closed takes one text that is lost.
        await heard_by_all(mine, [theirs])


async def test_the_last_signal_of_a_service_that_ends_is_sent(database_url: str) -> None:
    async with exchanging(database_url, "a", "b") as ((_, _), (_, theirs)):
        ending, stop = Exchange(PostgresNotifications(database_url), "c", SystemClock()), asyncio.Event()
        signals = ending.signals("changes")
        running = asyncio.create_task(ending.run(stop))
        await heard_by_all(signals, [theirs])
        waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=Chore.ELECT, since=theirs.heard(Chore.ELECT)))
        stop.set()
        signals.notify(Chore.ELECT)
        await running
        await waits
