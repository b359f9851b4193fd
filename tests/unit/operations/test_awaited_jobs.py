"""Waits for jobs: what ends them, what they cost, and that a recovery soon after a foreground CREATE cancels what that
call has begun, and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from service.domain.errors import Conflict, Unavailable, UnderRecovery
from service.domain.graph import GraphStatus
from service.domain.job import CREATING, Job, JobEvent, JobState
from service.operations.jobs import lifecycle
from service.operations.statements import dispatch, jobs
from service.operations.status import listing
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.meta_store import Stores
from service.ports.records import Claim
from service.ports.signals import Topic
from service.protocol.dml import Delete
from service.protocol.ids import DATABASE_GRAPH, Epoch, JobId, Term
from tests.support.fake_meta_store import FakeBegin, FakeStores
from tests.support.http import PatientSignals, StillClock, UnheardSignals, world_of
from tests.support.meta_store import A_TEST, NOW, add_created, add_creating, new_table, table_and_view


class StillWaiting(Exception):
    """Nothing has ended the wait for minutes."""


@dataclass
class Recovering(PatientSignals):
    """The graph is recovered as soon as somebody waits."""

    stores: Stores = field(kw_only=True)

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        if self.clock.seconds == 0:
            async with self.stores.begin() as tx:
                await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="worker lost")
        if self.clock.seconds > 600:
            raise StillWaiting
        await super().wait(timeout_seconds, topic=topic, since=since)


async def test_i13_a_statement_that_postgres_cannot_stop_cancels_no_job_of_others() -> None:
    """An INSERT of one caller ended each CREATE of others that waited."""
    stores, clock = FakeStores(lambda: NOW), StillClock()
    table, view = await table_and_view(stores)
    async with stores.begin() as tx:
        one = await tx.statements.reserve()
        relation = await tx.catalog.get(table.relation)
        assert relation is not None
        await tx.statements.add(
            Delete(id=one, relation=relation.relation, predicate="id = 1"), now=NOW, caller="mallory"
        )
        await tx.statements.given_up(one, now=NOW)
    world = world_of(stores, clock=clock, signals=Recovering(clock, stores=stores))
    with pytest.raises(StillWaiting):
        await lifecycle.created(world, view.id)


@pytest.mark.parametrize(
    ("wait", "ends", "state"),
    [(lifecycle.created, UnderRecovery, JobState.CANCELLING), (lifecycle.finished, StillWaiting, JobState.CREATING)],
)
async def test_a_recovery_cancels_no_job_that_a_repeated_create_has_found(
    wait: Callable[[World, JobId], Awaitable[Job]], ends: type[Exception], state: JobState
) -> None:
    stores, clock = FakeStores(lambda: NOW), StillClock()
    _, view = await table_and_view(stores)
    world = world_of(stores, clock=clock, signals=Recovering(clock, stores=stores))
    with pytest.raises(ends):
        await wait(world, view.id)
    async with stores.begin() as tx:
        after = await tx.jobs.get(view.id)
    assert after is not None
    assert after.state is state


@dataclass
class Impatient(PatientSignals):
    """Nobody waits for more than three hours."""

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        if self.clock.seconds > 3 * 3600:
            raise StillWaiting
        await super().wait(timeout_seconds, topic=topic, since=since)


@dataclass
class CountedStores(FakeStores):
    """Counts transactions."""

    begun: int = 0

    def begin(self, term: Term | None = None, *, by: Asker | None = None) -> FakeBegin:
        self.begun += 1
        return super().begin(term, by=by)


@dataclass
class Held(UnheardSignals):
    """Calls wait until the test says `on`; `met` says that all of them do."""

    calls: int
    waiting: int = 0
    met: asyncio.Event = field(default_factory=asyncio.Event)
    on: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        del timeout_seconds, topic, since
        self.waiting += 1
        if self.waiting == self.calls:
            self.met.set()
        await self.on.wait()


async def _left() -> None:
    """The caller has left."""


async def _never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE new (id int primary key)",
        "CREATE TABLE IF NOT EXISTS late (id int primary key)",
        "CREATE MATERIALIZED VIEW IF NOT EXISTS m AS SELECT 1",
        "WAIT MATERIALIZED VIEW m",
        "WAIT",
    ],
)
async def test_c12_a_wait_ends_with_its_caller_and_the_job_goes_on(statement: str) -> None:
    stores, clock = FakeStores(lambda: NOW), StillClock()
    await table_and_view(stores)
    async with stores.begin() as tx:
        await add_creating(tx, new_table("late"))
    world = world_of(stores, clock=clock, signals=Impatient(clock))
    with pytest.raises(Unavailable, match="the caller has left"):
        await dispatch.run(world, statement, session={}, asked_by=A_TEST, gone=_left)
    async with stores.begin() as tx:
        creating = [job.name for job in await tx.jobs.where(CREATING)]
        assert await tx.commands.waiting(DATABASE_GRAPH) == [], "nothing is stopped"
    assert creating == ["m", "late", *(["new"] if "new" in statement else [])]


async def test_c12_a_create_with_a_key_waits_on_for_its_repetition() -> None:
    stores, clock = FakeStores(lambda: NOW), StillClock()
    world = world_of(stores, clock=clock, signals=Impatient(clock))
    create, claim = "CREATE TABLE t (id int primary key)", Claim("a key", 1)
    with pytest.raises(StillWaiting):
        await dispatch.run(world, create, session={}, asked_by=A_TEST, claim=claim, gone=_left)


async def test_c12_many_waits_share_their_reads() -> None:
    stores = CountedStores(lambda: NOW)
    _, view = await table_and_view(stores)
    signals = Held(200)
    world = world_of(stores, signals=signals)
    waits = (
        lifecycle.created,
        lifecycle.finished,
        partial(lifecycle.over, limit=jobs.WAIT_LIMIT),
        partial(listing.settled, limit=jobs.WAIT_LIMIT),
    )
    stores.begun = 0
    calls = [asyncio.create_task(wait(world, view.id)) for wait in waits for _ in range(40)]
    calls += [asyncio.create_task(lifecycle.over(world, None, limit=jobs.WAIT_LIMIT, gone=_never)) for _ in range(40)]
    async with asyncio.timeout(30):
        await signals.met.wait()
    assert stores.begun <= 4
    async with stores.begin() as tx:
        await tx.jobs.move(view.id, JobEvent.FINISHED, now=NOW)
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(1), now=NOW)
    signals.on.set()
    await asyncio.gather(*calls)


async def test_one_relation_that_cannot_be_shown_holds_up_its_own_wait_alone() -> None:
    """I13: somebody took its name in schema public."""
    stores, clock = FakeStores(lambda: NOW), StillClock()
    world = world_of(stores, clock=clock, signals=Impatient(clock))
    async with stores.begin() as tx:
        await add_created(tx, new_table("a"))
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(1), now=NOW)
        taken = await add_created(tx, new_table("b"))
        await tx.visibility.hold_back(taken.relation, 'relation "b" exists')

    async def waited(statement: str) -> str:
        return (await dispatch.run(world, statement, session={}, asked_by=A_TEST)).tag

    assert [await waited("WAIT TABLE a"), await waited("WAIT")] == ["WAIT", "WAIT"]
    with pytest.raises(Conflict, match='its view cannot be made: relation "b" exists'):
        await waited("WAIT TABLE b")
    with pytest.raises(Conflict, match='its view cannot be made: relation "b" exists'):
        await listing.settled(world, taken.id, limit=jobs.WAIT_LIMIT)
