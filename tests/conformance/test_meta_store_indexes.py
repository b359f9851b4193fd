"""Named indexes, and the indexes of the state store."""

import asyncio
from dataclasses import replace

import pytest

from service.domain.errors import Conflict
from service.domain.job import JobEvent
from service.ports.indexes import IndexState, StoredIndex
from service.ports.meta_store import Stores, Transaction
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import LookupIndex
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_store import NOW, add_created, new_table

BY = KEY = ("price",)


def index(name: str, of: Relation) -> Relation:
    columns = tuple(column for column in of.columns if column.name == "price")
    key = (of.key[0].model_copy(update={"name": "price", "descending": True}),)
    return Relation(id=RelationId(0), name=name, kind=RelationKind.INDEX, columns=columns, key=key, vnode_count=1)


async def table(tx: Transaction, name: str = "orders") -> Relation:
    job = await add_created(tx, new_table(name))
    entry = await tx.catalog.get(job.relation)
    assert entry is not None
    return entry.relation


async def test_a_named_index_is_found_by_its_name(stores: Stores) -> None:
    async with stores.begin() as tx:
        orders = await table(tx)
        added = await tx.indexes.add(index("i", orders), orders.id, "CREATE INDEX i")
    async with stores.begin() as tx:
        found = await tx.indexes.named("i")
        assert found is not None
        assert (found.relation.id, found.on, found.definition, found.shown) == (
            added,
            orders.id,
            "CREATE INDEX i",
            False,
        )
        assert found.relation.kind is RelationKind.INDEX
        assert [(part.name, part.descending) for part in found.relation.key] == [("price", True)]
        assert found.stored_as == LookupIndex(orders.id, ("price",), descending=("price",))
        assert [one.relation.name for one in await tx.indexes.all()] == ["i"]
        stored = StoredIndex(found.stored_as, IndexState.CREATED, named=(added,), views=(orders.id,))
        await tx.stored_indexes.put(stored, now=NOW)
        await tx.indexes.show(added)
        shown = await tx.indexes.named("i")
        assert shown is not None
        assert shown.shown
        # No relation with a job is called so, and none reads the table.
        assert await tx.catalog.named("i") is None
        assert await tx.catalog.dependents(orders.id) == []
        for _ in range(2):
            await tx.indexes.remove(added)
        assert await tx.indexes.named("i") is None
        assert await tx.stored_indexes.stored(orders.id) == [replace(stored, named=())]
        await tx.indexes.add(index("i", orders), orders.id, "again")


async def test_the_name_of_an_index_is_taken_for_everything(stores: Stores) -> None:
    async with stores.begin() as tx:
        orders = await table(tx)
        added = await tx.indexes.add(index("i", orders), orders.id, "CREATE INDEX i")
    for name, kind in (("i", "index"), ("orders", "table")):
        async with stores.begin() as tx:
            with pytest.raises(Conflict, match=f"{kind} (with name|named)"):
                await tx.indexes.add(index(name, orders), orders.id, "")
    async with stores.begin() as tx:
        await tx.indexes.show(added)
    async with stores.begin() as tx:
        with pytest.raises(Conflict, match='index with name "i" exists'):
            await tx.jobs.add(new_table("i"), now=NOW)


async def test_the_indexes_of_a_relation_are_removed_with_it(stores: Stores) -> None:
    """I9."""
    async with stores.begin() as tx:
        orders, other = await table(tx), await table(tx, "other")
        for name, of in (("i", orders), ("j", orders), ("k", other)):
            await tx.indexes.add(index(name, of), of.id, "")
        await tx.catalog.remove(orders.id)
        assert [one.relation.name for one in await tx.indexes.all()] == ["k"]
        # Nothing of an index is in the state store but what the stored indexes say.
        assert [one.relation for one in await tx.cleanups.all()] == [orders.id]
        await tx.indexes.add(index("i", other), other.id, "")


async def test_a_relation_that_is_being_dropped_gets_no_index(stores: Stores) -> None:
    async with stores.begin() as tx:
        orders = await table(tx)
        entry = await tx.catalog.get(orders.id)
        assert entry is not None
        await tx.jobs.move(entry.job, JobEvent.DROP_ASKED, now=NOW)
    async with stores.begin() as tx:
        with pytest.raises(Conflict, match="cannot be read"):
            await tx.indexes.add(index("i", orders), orders.id, "")


async def test_a_stored_index_is_held_only_while_it_is_created(stores: Stores) -> None:
    async with stores.begin() as tx:
        orders, other = await table(tx), await table(tx, "other")
        one, two = LookupIndex(orders.id, BY), LookupIndex(other.id, BY, hashed=True)
        for _ in range(2):
            await tx.stored_indexes.expect([one, two], now=NOW)
        assert await tx.stored_indexes.lock() == [StoredIndex(one), StoredIndex(two)]
        assert await tx.stored_indexes.hold([orders.id, other.id]) == frozenset()
        await tx.stored_indexes.ended(one, error="disk full", now=NOW)
        assert await tx.stored_indexes.stored(orders.id) == [StoredIndex(one, error="disk full")]
        await tx.stored_indexes.ended(one, error=None, now=NOW)
        assert await tx.stored_indexes.stored(orders.id) == [StoredIndex(one, IndexState.CREATED)]
        assert await tx.stored_indexes.hold([orders.id, other.id]) == {one}
        assert await tx.stored_indexes.hold([other.id]) == frozenset()
        full = StoredIndex(one, IndexState.CREATED, 8192, None, (RelationId(5),), (RelationId(6), RelationId(7)))
        await tx.stored_indexes.put(full, now=NOW)
        await tx.stored_indexes.ended(one, error="late", now=NOW)
        assert await tx.stored_indexes.stored(orders.id) == [full]
        await tx.stored_indexes.forget(one)
        assert await tx.stored_indexes.stored(orders.id) == [full]
        await tx.stored_indexes.put(StoredIndex(one, IndexState.DROPPING), now=NOW)
        await tx.stored_indexes.ended(one, error=None, now=NOW)
        await tx.stored_indexes.expect([one], now=NOW)
        assert await tx.stored_indexes.hold([orders.id]) == frozenset(), (
            "what is dropped serves nobody, whoever expects it"
        )
        await tx.stored_indexes.forget(one)
        assert await tx.stored_indexes.stored(orders.id) == []


@ON_POSTGRES
@pytest.mark.parametrize("first", ["held", "locked"])
async def test_no_index_is_given_up_while_a_job_starts_with_it(stores: Stores, first: str) -> None:
    """The decision waits for the job that holds the index, and the job for the decision."""
    async with stores.begin() as tx:
        orders = await table(tx)
        one = LookupIndex(orders.id, BY)
        await tx.stored_indexes.put(StoredIndex(one, IndexState.CREATED), now=NOW)
    seen: list[str] = []
    inside, may = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with stores.begin() as tx:
            held = await tx.stored_indexes.hold([orders.id])
            seen.append(f"held {len(held)}")
            if first == "held":
                inside.set()
                await may.wait()

    async def give_up() -> None:
        async with stores.begin() as tx:
            await tx.stored_indexes.lock()
            seen.append("locked")
            if first == "locked":
                inside.set()
                await may.wait()
            await tx.stored_indexes.put(StoredIndex(one, IndexState.DROPPING), now=NOW)

    order = [hold, give_up] if first == "held" else [give_up, hold]
    earlier = asyncio.create_task(order[0]())
    await inside.wait()
    later = asyncio.create_task(order[1]())
    done, _ = await asyncio.wait({later}, timeout=0.5)
    assert not done
    may.set()
    await asyncio.gather(earlier, later)
    assert seen == (["held 1", "locked"] if first == "held" else ["locked", "held 0"])
