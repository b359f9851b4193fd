"""The tenants of jobs, and their shares of the queue."""

import asyncio
from datetime import timedelta

from service.domain.fair_queue import Queued, Share
from service.domain.job import JobEvent
from service.ports.meta_store import Stores
from tests.support.meta_store import NOW, add_created, new_table, new_view


async def test_a_tenants_share_is_its_permits_and_its_last_start(stores: Stores) -> None:
    later = NOW + timedelta(seconds=9)
    async with stores.begin() as tx:
        table = (await add_created(tx, new_table("t"))).relation
        names = {"a": ("a1", "a2", "a3"), "b": ("b1",), "": ("unknown",)}
        jobs = {
            name: await tx.jobs.add(new_view(name, table), now=NOW, by=tenant)
            for tenant, its in names.items()
            for name in its
        }
        own = await tx.jobs.add(new_table("of_a"), now=NOW, by="a")
        await tx.jobs.move(own.id, JobEvent.STARTED, now=later + timedelta(days=1))
        await tx.jobs.move(jobs["a1"].id, JobEvent.STARTED, now=NOW)
        await tx.jobs.move(jobs["a2"].id, JobEvent.STARTED, now=later)
        await tx.jobs.move(jobs["a2"].id, JobEvent.CANCEL_ASKED, now=later)
        for name in ("a3", "b1", "unknown"):
            await tx.jobs.move(jobs[name].id, JobEvent.QUEUED, now=NOW)
    async with stores.begin() as tx:
        assert await tx.queue.waiting() == [
            Queued(jobs["a3"].id, "a"),
            Queued(jobs["b1"].id, "b"),
            Queued(jobs["unknown"].id, ""),
        ]
        # The job of a table takes no permit and is no start. One that is being cancelled holds its permit.
        assert await tx.queue.shares(["a", "b", "", "c"]) == {
            "a": Share(2, later),
            "b": Share(),
            "": Share(),
            "c": Share(),
        }
        assert await tx.queue.shares([]) == {}
        assert [job.name for job in await tx.queue.unfinished_of("a")] == ["a1", "a2", "a3"]
        assert [job.name for job in await tx.queue.unfinished_of("c")] == []
        await tx.jobs.move(jobs["a1"].id, JobEvent.FINISHED, now=later)
        await tx.jobs.move(jobs["a2"].id, JobEvent.STOPPED, now=later)
        assert await tx.queue.shares(["a"]) == {"a": Share(0, later)}
        assert [job.name for job in await tx.queue.unfinished_of("a")] == ["a3"]
        found = await tx.jobs.get(jobs["b1"].id)
        assert found is not None
        assert found.created_by == "b"


async def test_two_creates_of_a_tenant_do_not_both_miss_the_other(stores: Stores) -> None:
    """Otherwise a quota of one would let through as many as come at once."""
    async with stores.begin() as tx:
        table = (await add_created(tx, new_table("t"))).relation

    async def seen(name: str) -> int:
        async with stores.begin() as tx:
            await tx.jobs.add(new_view(name, table), now=NOW, by="a")
            return len(await tx.queue.unfinished_of("a"))

    assert sorted(await asyncio.gather(*(seen(f"m{number}") for number in range(4)))) == [1, 2, 3, 4]
