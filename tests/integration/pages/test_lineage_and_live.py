"""What reads what, indexes and views included; and the stream that tells an open page to read itself again."""

import pytest

from service.meta_store.stores import PostgresStores
from service.operations.status.lineage import indexes_of, lineage
from service.pages.live import stream
from service.ports.records import NewLogicalView
from service.protocol.ids import RelationId
from service.protocol.relation import RelationKind
from tests.conformance.test_meta_store_sources import made, new_follower
from tests.support.http import world_of
from tests.support.meta_store import NOW, add_created, new_view, relation

pytestmark = pytest.mark.postgres


async def test_the_lineage_has_every_kind_of_object_and_what_it_reads(stores: PostgresStores) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        table = await add_created(tx, new_follower(source, "followed"))
        view = await add_created(tx, new_view("m", table.relation))
        logical = await tx.views.add(NewLogicalView("v", "CREATE VIEW v", (("id", "bigint"),), (view.relation,)))
        index = relation("i", RelationKind.INDEX).model_copy(update={"key": relation("i").key[1:]})
        by_id = await tx.indexes.add(index, table.relation, "CREATE INDEX i")
    found = await lineage(world_of(stores))
    assert [(one.name, one.kind) for one in found.members] == [
        ("pg", RelationKind.SOURCE),
        ("followed", RelationKind.TABLE),
        ("m", RelationKind.MATERIALIZED_VIEW),
        ("v", RelationKind.VIEW),
        ("i", RelationKind.INDEX),
    ]
    assert set(found.edges) == {
        (RelationId(source.id), table.relation),
        (table.relation, view.relation),
        (view.relation, logical),
        (table.relation, by_id),
    }
    assert [one.job for one in found.members] == [None, table.id, view.id, None, None]
    assert [one.columns for one in await indexes_of(world_of(stores), "followed")] in ([], [("id",)])


async def test_a_page_is_told_once_of_all_that_happened_and_of_nothing_else(stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        for number in range(700):
            await tx.events.append("job.asked", {"job": number}, now=NOW)
    turns = iter([True, True, True, False])

    async def admitted() -> bool:
        return next(turns)

    frames = [frame async for frame in stream(world_of(stores), 0, admitted)]
    # Of 700 events a browser that is behind hears one word.
    assert frames == [": connected\n\n", "event: changed\ndata: -\n\n", ": still here\n\n", ": still here\n\n"]
