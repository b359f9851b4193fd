"""A stage is not started by hand before what it reads is complete."""

import pytest

from service.domain.errors import Conflict
from service.operations.commands import mutations
from service.ports.audit import itself
from service.protocol.mutation import StartFragmentBackfill
from tests.support.fake_meta_store import FakeStores
from tests.support.http import world_of
from tests.support.meta_stages import new_stages
from tests.support.meta_store import NOW, add_created, add_creating, new_table


async def test_a_stage_that_waits_is_not_started_by_hand() -> None:
    stores = FakeStores(lambda: NOW)
    world = world_of(stores)
    async with stores.begin() as tx:
        tables = [(await add_created(tx, new_table(name))).relation for name in "ab"]
        job = await add_creating(tx, new_stages(*tables))
        (plan,) = await tx.plans.of([job.id])
    first, last = plan.table_scans
    with pytest.raises(Conflict, match=f"fragment {last.id} reads __m_1, and starts when that is complete"):
        await mutations.start_job(world, job.id, asked_by=itself("a user"))
    await mutations.inject(world, StartFragmentBackfill(fragments=(first.id,)), asked_by=itself("a user"))
    async with stores.begin() as tx:
        await tx.fragments.release([last.id])
    await mutations.start_job(world, job.id, asked_by=itself("a user"))
