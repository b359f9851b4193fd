"""Lists show the beginnings of long texts, which the server does not send whole (I13)."""

from dataclasses import replace

import pytest

from service.domain.cutting import KEPT_CHARACTERS, MARK
from service.meta_store import events
from service.ports.meta_store import Stores
from service.ports.records import NewLogicalView
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_store import NOW, add_created, new_table

LONG = f"CREATE TABLE t /* {'é' * 100_000} */"
CUT = LONG[:KEPT_CHARACTERS] + MARK
JUST = "é" * KEPT_CHARACTERS


@ON_POSTGRES
async def test_a_job_has_its_whole_statement_and_a_list_of_jobs_the_beginnings(stores: Stores) -> None:
    """220 statements of a megabyte made every list of jobs, and each check of readiness, read 220 MB."""
    async with stores.begin() as tx:
        job = await add_created(tx, replace(new_table("t"), statement=LONG))
        just = await add_created(tx, replace(new_table("u"), statement=JUST))
        whole = await tx.jobs.get(job.id)
        assert whole is not None
        assert whole.statement == LONG
        for found in (await tx.jobs.where(), await tx.status.jobs(None, after=0, limit=9)):
            assert [one.statement for one in found] == [CUT, JUST]
            assert [one.id for one in found] == [job.id, just.id]


@ON_POSTGRES
async def test_a_relation_has_its_whole_definition_and_a_list_the_beginnings(stores: Stores) -> None:
    async with stores.begin() as tx:
        job = await add_created(tx, replace(new_table("t"), statement=LONG))
        view = NewLogicalView("v", LONG, (("id", "bigint"),), (job.relation,))
        await tx.views.add(view)
        assert [one.definition for one in await tx.catalog.all()] == [CUT]
        assert [one.definition for one in (*await tx.views.all(), *await tx.views.reading(job.relation))] == [CUT] * 2
        for one in (await tx.catalog.named("t"), await tx.catalog.get(job.relation), await tx.views.named("v")):
            assert one is not None
            assert one.definition == LONG


@ON_POSTGRES
async def test_events_keep_the_beginnings_of_texts(stores: Stores) -> None:
    async with stores.begin() as tx:
        await tx.events.append("job.asked", {"statement": LONG, "all": [{"why": LONG}], "n": 1}, now=NOW)
        (found,) = await tx.events.since(0, limit=9)
    assert found.facts == {"statement": CUT, "all": [{"why": CUT}], "n": 1}


@ON_POSTGRES
async def test_events_are_read_together_while_they_are_small(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a thousand events of a megabyte had 215 MB, and each of its readers as much."""
    async with stores.begin() as tx:
        for number in range(6):
            await tx.events.append("thing.happened", {"text": "x" * 1_000, "number": number}, now=NOW)
    for most, together in ((2_500, 2), (10, 1), (1 << 20, 6)):
        monkeypatch.setattr(events, "PAGE_BYTES_MAX", most)
        async with stores.begin() as tx:
            found = await tx.events.since(0, limit=9)
            assert [one.facts["number"] for one in found] == list(range(together))
