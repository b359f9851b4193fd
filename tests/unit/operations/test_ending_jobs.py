"""What a cancel or a drop asks for it asks for at once: whoever dies after it leaves no job between two states."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from service.domain.errors import Unavailable
from service.domain.job import JobState
from service.operations.jobs import lifecycle
from service.operations.world import World
from service.ports.audit import Asker, itself
from service.ports.meta_store import Transaction
from service.ports.records import CatalogEntry, Cleanup
from service.protocol.ids import DATABASE_GRAPH, JobId, RelationId, Term
from service.protocol.mutation import Stop
from service.protocol.relation import RelationKind
from tests.support.fake_meta_jobs import FakeCatalog, FakeCleanups
from tests.support.fake_meta_store import FakeBegin, FakeStores
from tests.support.fake_meta_tables import Tables
from tests.support.fake_state_store import FakeTables, StateStore
from tests.support.http import world_of
from tests.support.meta_store import NOW, table_and_view


class OneTransaction(FakeStores):
    """The process dies after its first transaction."""

    left: int = 1

    def begin(self, term: Term | None = None, *, by: Asker | None = None) -> FakeBegin:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("died")
        return super().begin(term, by=by)


async def _cancel(world: World, job: JobId) -> None:
    await lifecycle.cancel(world, [job], asked_by=itself("a user"))


async def _drop(world: World, _: JobId) -> None:
    await lifecycle.drop(world, "t", RelationKind.TABLE, cascade=True, asked_by=itself("a user"))


@pytest.mark.parametrize("ask", [_cancel, _drop])
async def test_a_job_that_waits_for_its_stop_has_one(ask: Callable[[World, JobId], Awaitable[None]]) -> None:
    """I9."""
    stores = FakeStores(lambda: NOW)
    _, view = await table_and_view(stores)
    dying = OneTransaction(lambda: NOW, tables=stores.tables)
    with pytest.raises(Unavailable):
        await ask(world_of(dying, tables=FakeTables(StateStore())), view.id)
    async with stores.begin() as tx:
        waiting = {job.id for job in await tx.jobs.where({JobState.CANCELLING, JobState.DROPPING})}
        stopped = {
            job
            for command in await tx.commands.waiting(DATABASE_GRAPH)
            if isinstance(command.mutation, Stop)
            for job in command.mutation.jobs
        }
    assert view.id in waiting
    assert stopped == waiting


@dataclass
class CommitsInBetween:
    """What others commit between two statements of one transaction, as READ COMMITTED shows it: the stop of `doomed`
    between the first look and the second, and the end of its clean-up before the third.
    """

    tables: Tables
    doomed: RelationId
    looks: int = 0

    async def look(self) -> None:
        self.looks += 1
        if self.looks == 2:
            await FakeCatalog(self.tables).remove(self.doomed)
        if self.looks == 3:
            await FakeCleanups(self.tables).done(self.doomed)


@dataclass(frozen=True, slots=True)
class InterleavedCatalog(FakeCatalog):
    others: CommitsInBetween

    async def get(self, relation: RelationId) -> CatalogEntry | None:
        await self.others.look()
        return await FakeCatalog.get(self, relation)


@dataclass(frozen=True, slots=True)
class InterleavedCleanups(FakeCleanups):
    others: CommitsInBetween

    async def all(self) -> Sequence[Cleanup]:
        await self.others.look()
        return await FakeCleanups.all(self)


class Interleaved(FakeStores):
    """Others commit during every transaction after the first."""

    others: CommitsInBetween
    first: bool = True

    async def enter(self, term: Term | None) -> Transaction:
        tx = await super().enter(term)
        if self.first:
            self.first = False
            return tx
        catalog = InterleavedCatalog(self.tables, self.others)
        return replace(tx, catalog=catalog, cleanups=InterleavedCleanups(self.tables, self.others))


async def test_a_drop_is_not_answered_before_its_relation_is_removed() -> None:
    """I9: the catalog frees a name and leaves its clean-up at once, between two statements of the one who waits."""
    stores = FakeStores(lambda: NOW)
    _, view = await table_and_view(stores)
    interleaved = Interleaved(lambda: NOW, tables=stores.tables)
    interleaved.others = CommitsInBetween(stores.tables, view.relation)
    world = world_of(interleaved, tables=FakeTables(StateStore()))
    await lifecycle.drop(world, view.name, RelationKind.MATERIALIZED_VIEW, cascade=False, asked_by=itself("a user"))
    async with stores.begin() as tx:
        assert await tx.cleanups.all() == []
