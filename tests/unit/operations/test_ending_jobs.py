"""What a cancel or a drop asks for it asks for at once: whoever dies after it leaves no job between two states."""

from collections.abc import Awaitable, Callable

import pytest

from service.domain.errors import Unavailable
from service.domain.job import JobState
from service.operations import jobs
from service.operations.world import World
from service.protocol.ids import DATABASE_GRAPH, JobId, Term
from service.protocol.mutation import Stop
from service.protocol.relation import RelationKind
from tests.support.fake_meta_store import FakeBegin, FakeStores
from tests.support.fake_state_store import FakeTables, StateStore
from tests.support.http import world_of
from tests.support.meta_store import NOW, table_and_view


class OneTransaction(FakeStores):
    """The process dies after its first transaction."""

    left: int = 1

    def begin(self, term: Term | None = None) -> FakeBegin:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("died")
        return super().begin(term)


async def _cancel(world: World, job: JobId) -> None:
    await jobs.cancel(world, [job], asked_by="a user")


async def _drop(world: World, _: JobId) -> None:
    await jobs.drop(world, "t", RelationKind.TABLE, cascade=True, asked_by="a user")


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
