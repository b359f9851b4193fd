"""The tenants of jobs, and their shares of the queue."""

import asyncio
from dataclasses import replace
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


async def test_i13_the_plans_of_a_tenant_count_until_they_are_gone(stores: Stores) -> None:
    async with stores.begin() as tx:
        table = (await add_created(tx, new_table("t"))).relation
        before = await tx.queue.plan_bytes()
        made = {name: new_view(name, table) for name in ("a1", "a2", "b1")}
        jobs = {name: await tx.jobs.add(one, now=NOW, by=name[0]) for name, one in made.items()}
    async with stores.begin() as tx:
        sizes = {name: one.plan_bytes for name, one in made.items()}
        assert min(sizes.values()) > 100
        assert await tx.queue.plan_bytes() == {**before, "a": sizes["a1"] + sizes["a2"], "b": sizes["b1"]}
        await tx.jobs.move(jobs["b1"].id, JobEvent.CANCEL_ASKED, now=NOW)
    async with stores.begin() as tx:
        assert await tx.queue.plan_bytes() == {**before, "a": sizes["a1"] + sizes["a2"]}


async def test_i13_plans_have_no_defaults(stores: Stores) -> None:
    """The plan of one view had those of its tables 64 times, and no recovery ended any more."""
    made = new_table("t")
    columns = [one.model_copy(update={"default": "7"}) for one in made.relation.columns if one.name != "id"]
    with_default = made.relation.model_copy(update={"columns": (*made.relation.columns[:1], *columns)})
    async with stores.begin() as tx:
        table = await add_created(tx, replace(made, relation=with_default))
        view = await tx.jobs.add(new_view("v", table.relation), now=NOW)
    async with stores.begin() as tx:
        plans = await tx.plans.of([table.id, view.id])
        found = await tx.catalog.named("t")
    assert found is not None
    assert [one.default for one in found.relation.columns[1:]] == ["7"] * len(columns)
    (scan,) = plans[1].table_scans
    assert [one.default for one in (*plans[0].relation.columns, *scan.upstream.columns)] == [None] * (
        2 + 2 * len(columns)
    )


async def test_two_creates_of_a_tenant_do_not_both_miss_the_other(stores: Stores) -> None:
    """Otherwise a quota of one would let through as many as come at once."""
    async with stores.begin() as tx:
        table = (await add_created(tx, new_table("t"))).relation

    async def seen(name: str) -> int:
        async with stores.begin() as tx:
            await tx.jobs.add(new_view(name, table), now=NOW, by="a")
            return len(await tx.queue.unfinished_of("a"))

    assert sorted(await asyncio.gather(*(seen(f"m{number}") for number in range(4)))) == [1, 2, 3, 4]
