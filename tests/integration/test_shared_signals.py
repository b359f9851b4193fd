"""Signals between services, over the notifications of a real Postgres."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import cast

import psycopg
import pytest
import structlog

from service.domain.barrier import Chore
from service.loops.shared_signals import LOOKED_AT_MAX, Exchange, SharedSignals
from service.loops.signal_texts import BYTES_MAX, channel_of, signed
from service.loops.system_clock import SystemClock
from service.meta_store.notifications import PostgresNotifications
from service.ports.signals import Topic
from service.protocol.ids import DATABASE_GRAPH, GraphId

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(60)]
FOR_EVER = 3600.0
HELLOS = map(GraphId, count(100))
"""A topic for each call of `heard_by_all`: a signal of an earlier one that comes late is not taken for its own."""
NEVER = GraphId(99)
KEY = "the key that only services know"
CHANNEL = channel_of(KEY)


def exchange_of(url: str, name: str) -> Exchange:
    """The exchange of a service."""
    return Exchange(PostgresNotifications(url, CHANNEL), name, KEY, SystemClock())


@asynccontextmanager
async def exchanging(url: str, *names: str) -> AsyncGenerator[list[tuple[Exchange, SharedSignals]]]:
    """Run the exchange of each service, until every one has heard all others."""
    made = [exchange_of(url, name) for name in names]
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


async def test_a_signal_wakes_the_other_service(database_url: str, subtests: pytest.Subtests) -> None:
    topics: Sequence[Topic] = (None, DATABASE_GRAPH, GraphId(7), Chore.ELECT)
    async with exchanging(database_url, "a", "b") as ((_, mine), (_, theirs)):
        for topic in topics:
            with subtests.test(topic=topic):
                waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=topic, since=theirs.heard(topic)))
                mine.notify(topic)
                await waits


async def test_all_topics_and_very_many_of_them(database_url: str) -> None:
    async with exchanging(database_url, "a", "b") as ((_, mine), (_, theirs)):
        for topics in ((), tuple(GraphId(1_000_000 + one) for one in range(BYTES_MAX))):
            before = theirs.heard(Chore.TIDY)
            waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=Chore.TIDY, since=before))
            mine.notify(*topics)
            await waits


async def test_s1_texts_of_strangers_make_no_peers_and_one_log_line(database_url: str) -> None:
    """Even of strangers who know the channel, and more texts than are looked at in a second."""
    texts = ["", "{}", "[" * 7_000, '["x", {"changes": [7]}]', f"{'0' * 32} x changes=7", signed("other", "x", {})]
    async with exchanging(database_url, "a", "b") as ((_, mine), (other, theirs)):
        with structlog.testing.capture_logs() as lines:
            async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as stranger:
                flood = "select pg_notify(%s, text || n) from unnest(%s::text[]) text, generate_series(1, %s) n"
                before = theirs.heard(NEVER)
                await stranger.execute(flood, (CHANNEL, texts, LOOKED_AT_MAX))
                # The rest of a second counts as one signal of all topics.
                await theirs.wait(FOR_EVER, topic=NEVER, since=before)
            await heard_by_all(mine, [theirs])
        assert [line["event"] for line in lines] == ["signals.dropped"] * 2
        assert sorted(other._peers) == ["a"]  # pyright: ignore[reportPrivateUsage]


async def test_names_and_topics_that_are_unknown_here_do_not_hide_the_others(database_url: str) -> None:
    """A service that starts has not made its names yet, and one of the next release may have more of them."""
    async with exchanging(database_url, "a", "b") as (_, (_, theirs)):
        waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=GraphId(7), since=theirs.heard(GraphId(7))))
        hints = {"unknown": [GraphId(7)], "changes": [cast("Chore", "of_the_next_release"), GraphId(7)]}
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as newer:
            await newer.execute("select pg_notify(%s, %s)", (CHANNEL, signed(KEY, "x", hints)))
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
        ending, stop = exchange_of(database_url, "c"), asyncio.Event()
        signals = ending.signals("changes")
        running = asyncio.create_task(ending.run(stop))
        await heard_by_all(signals, [theirs])
        waits = asyncio.create_task(theirs.wait(FOR_EVER, topic=Chore.ELECT, since=theirs.heard(Chore.ELECT)))
        stop.set()
        signals.notify(Chore.ELECT)
        await running
        await waits
