"""A job with stages starts when the indexes exist by which they look up rows of users' tables."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from service.domain.backoff import SetAside
from service.domain.errors import Exhausted, Invalid, MetaError, Unavailable
from service.domain.job import Job, JobState
from service.operations.jobs import queue
from service.operations.jobs.failing import refuse
from service.operations.upkeep import lookup_indexes
from service.operations.upkeep.lookup_indexes import Builds, reconcile
from service.operations.world import World
from service.ports.indexes import IndexState, StoredIndex
from service.ports.state_store import IndexSize
from service.protocol.columns import KeyColumn
from service.protocol.ids import JobId, RelationId, Term
from service.protocol.stage import LookupIndex
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeLookups, FakeTables, StateStore
from tests.support.http import PatientSignals, StillClock, changed, world_of
from tests.support.meta_stages import new_stages
from tests.support.meta_store import LEASE, NOW, add_created, new_table


@dataclass
class Slow(FakeLookups):
    """Builds wait until they may go on, and fail with the errors, one after the other."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    errors: list[MetaError] = field(default_factory=list[MetaError])
    after_look: Callable[[], Awaitable[None]] | None = None
    """Runs once, when it has been looked which indexes there are."""
    before_drop: Callable[[], Awaitable[None]] | None = None
    """Runs once, when it is decided which ones are dropped."""

    @override
    async def stored(self) -> Mapping[str, IndexSize]:
        found = await super().stored()
        hook, self.after_look = self.after_look, None
        if hook is not None:
            await hook()
        return found

    @override
    async def drop(self, names: Collection[str], *, term: Term) -> frozenset[str]:
        hook, self.before_drop = self.before_drop, None
        if hook is not None:
            await hook()
        return await super().drop(names, term=term)

    @override
    async def build(self, index: LookupIndex, *, term: Term) -> None:
        await self.may.wait()
        if self.errors:
            raise self.errors.pop(0)
        await super().build(index, term=term)


@dataclass
class Here:
    world: World
    lookups: Slow
    store: StateStore
    read: Sequence[RelationId]
    job: JobId
    term: Term
    builds: Builds
    aside: SetAside[JobId] = field(default_factory=SetAside[JobId])

    async def start(self) -> int:
        self.aside.keep(())
        return await queue.start_jobs(self.world, term=self.term, aside=self.aside)

    async def starts(self) -> bool:
        """Whether the job starts now."""
        await self.start()
        return (await self.found()).state is JobState.CREATING

    async def build(self) -> None:
        """Look for missing indexes, and wait for the builds that begin."""
        self.builds.aside.keep(())
        await reconcile(self.world, self.builds, term=self.term)
        await asyncio.gather(*self.builds.tasks.values())

    async def remove(self) -> None:
        view = await self.found()
        async with self.world.stores.begin() as tx:
            await refuse(tx, view, "not wanted", now=NOW)
            for cleanup in await tx.cleanups.all():
                await tx.cleanups.done(cleanup.relation)

    async def add(self) -> None:
        """Add the view again."""
        async with self.world.stores.begin() as tx:
            self.job = (await tx.jobs.add(new_stages(*self.read), now=NOW)).id

    async def found(self) -> Job:
        async with self.world.stores.begin() as tx:
            job = await tx.jobs.get(self.job)
        assert job is not None
        return job

    async def left(self) -> list[set[frozenset[str]]]:
        return [{frozenset(one.columns) for one in table.lookups} for _, table in sorted(self.store.tables.items())]


@pytest.fixture
async def here() -> Here:
    stores, store = FakeStores(lambda: NOW), StateStore()
    tables, lookups = FakeTables(store), Slow(store)
    world = changed(world_of(stores), tables=tables, fences=FakeFences(store), lookups=lookups)
    async with stores.begin() as tx:
        made = [await add_created(tx, new_table(name)) for name in "ab"]
        read = [one.relation for one in made]
        job = await tx.jobs.add(new_stages(*read), now=NOW)
        term = await tx.leases.gain("a", lease=LEASE)
        assert term is not None
        await FakeFences(store).claim(term)
        for plan in await tx.plans.of([one.id for one in made]):
            await tables.create(plan.relation, term=term)
    return Here(world, lookups, store, read, job.id, term, Builds(lambda: None))


PRICE, NAME = frozenset({"price"}), frozenset({"name"})


async def test_i13_builds_begin_before_indexes_are_dropped(here: Here) -> None:
    """137 dropped indexes, each in use, held up the builds of all for 27 s."""
    here.store.tables[here.read[0]].lookups.add(LookupIndex(here.read[0], ("name",)))
    began: list[int] = []

    async def looks() -> None:
        began.append(len(here.builds.tasks))

    here.lookups.before_drop = looks
    await reconcile(here.world, here.builds, term=here.term)
    assert began == [2]
    assert await here.left() == [set[frozenset[str]](), set[frozenset[str]]()]
    await here.builds.stop()


async def test_i13_some_indexes_are_dropped_at_a_time(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_indexes, "DROPS_AT_ONCE", 1)
    here.lookups.may.set()
    await here.build()
    await here.remove()
    for left in ([0, 1], [0, 0]):
        signals = PatientSignals(StillClock())
        await reconcile(changed(here.world, signals=signals), here.builds, term=here.term)
        assert sorted(map(len, await here.left())) == left
        assert signals.notified == (left != [0, 0])


async def test_a_job_starts_when_its_indexes_are_built(here: Here) -> None:
    assert await here.start() == 0
    waiting = await here.found()
    assert (waiting.state, waiting.preparing) == (
        JobState.INITIAL,
        "an index of a (price), b (price) is being built",
    )
    await reconcile(here.world, here.builds, term=here.term)
    assert len(here.builds.tasks) == 2
    await reconcile(here.world, here.builds, term=here.term)
    assert len(here.builds.tasks) == 2, "a build begins once"
    assert await here.start() == 0
    here.lookups.may.set()
    await here.build()
    assert await here.start() == 1
    started = await here.found()
    assert (started.state, started.preparing) == (JobState.CREATING, None)
    # The two tables, the hidden relation with the index of the later stage, and the view.
    assert await here.left() == [{PRICE}, {PRICE}, {NAME}, set()]
    assert all(table.indexed for table in here.store.tables.values())


async def test_indexes_go_with_the_last_job_that_needs_them(here: Here) -> None:
    """I9."""
    here.lookups.may.set()
    await here.build()
    assert await here.left() == [{PRICE}, {PRICE}]
    await here.remove()
    await here.build()
    assert await here.left() == [set(), set()]
    async with here.world.stores.begin() as tx:
        assert await tx.stored_indexes.lock() == []


async def test_an_index_that_a_new_job_needs_is_kept(here: Here) -> None:
    """The job is added after it was looked which indexes there are, and before it is decided which are needed."""
    here.lookups.may.set()
    await here.build()
    await here.remove()
    here.lookups.after_look = here.add
    await here.build()
    assert await here.left() == [{PRICE}, {PRICE}]
    assert await here.starts()


async def test_the_indexes_that_a_job_makes_meanwhile_are_kept(here: Here) -> None:
    here.lookups.may.set()
    await here.build()

    async def start() -> None:
        assert await here.starts()

    here.lookups.after_look = start
    await here.build()
    assert await here.left() == [{PRICE}, {PRICE}, {NAME}, set()]


async def test_no_job_starts_with_an_index_that_is_about_to_go(here: Here) -> None:
    here.lookups.may.set()
    await here.build()
    await here.remove()

    async def start() -> None:
        await here.add()
        assert not await here.starts()

    here.lookups.before_drop = start
    await here.build()
    assert await here.left() == [set(), set()]
    await here.build()
    assert await here.starts()
    assert await here.left() == [{PRICE}, {PRICE}, {NAME}, set()]


async def test_a_users_index_serves_stages_and_stays_as_long_as_one_of_them_needs_it(here: Here) -> None:
    here.lookups.may.set()
    price = KeyColumn(name="price", descending=True)
    async with here.world.stores.begin() as tx:
        table = await tx.catalog.get(here.read[0])
        assert table is not None
        columns = tuple(one for one in table.relation.columns if one.name == "price")
        made = table.relation.model_copy(update={"name": "i", "columns": columns, "key": (price,)})
        index = await tx.indexes.add(made, table.relation.id, "CREATE INDEX i")
    await here.build()
    assert await here.starts()
    await here.build()

    async def stored() -> list[StoredIndex]:
        async with here.world.stores.begin() as tx:
            return list(await tx.stored_indexes.stored(here.read[0]))

    view = (await here.found()).relation
    (one,) = await stored()
    assert (one.index.descending, one.state, one.named, one.views) == (
        ("price",),
        IndexState.CREATED,
        (index,),
        (view,),
    )
    async with here.world.stores.begin() as tx:
        found = await tx.indexes.named("i")
        assert found is not None
        assert found.shown
        await tx.indexes.remove(index)
    await here.build()
    (still,) = await stored()
    assert (still.index, still.named, still.views) == (one.index, (), (view,))
    await here.remove()
    await here.build()
    assert await stored() == []
    assert await here.left() == [set()] * 4


async def test_a_refused_index_fails_its_job(here: Here) -> None:
    here.lookups.may.set()
    here.lookups.errors += [Invalid("too wide"), Invalid("too wide")]
    await here.build()
    failed = await here.found()
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert failed.error.startswith("an index of a (price) could not be built: ")


async def test_a_full_store_fails_the_job_after_some_tries_and_an_absent_one_never(here: Here) -> None:
    """I13."""
    here.lookups.may.set()
    here.lookups.errors += [Unavailable("away")] * 8 + [Exhausted("disk full")] * 4
    for _ in range(6):
        await here.build()
    waiting = await here.found()
    assert waiting.state is JobState.INITIAL
    assert waiting.preparing is not None
    assert "could not be built: disk full" in waiting.preparing
    here.lookups.errors += [Exhausted("disk full")] * 2
    await here.build()
    assert (await here.found()).state is JobState.FAILED
