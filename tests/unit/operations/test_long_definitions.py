"""The text of a statement that is kept has a limit of its own (I13)."""

import pytest

from service.domain.cutting import ALTERED_BYTES_MAX, DEFINITION_BYTES_MAX
from service.domain.errors import Invalid
from service.operations.statements import dispatch
from service.protocol.ids import DATABASE_GRAPH, Epoch
from tests.support.fake_meta_store import FakeStores
from tests.support.http import StillClock, world_of
from tests.support.meta_store import A_TEST, NOW, add_created, new_table


@pytest.mark.parametrize("text", ["create table t (id int primary key)", "create view v as select 1", "drop table t"])
async def test_a_statement_that_is_kept_has_its_size(text: str) -> None:
    """220 statements of a megabyte were kept, and read again by every list."""
    world = world_of(FakeStores(StillClock().now))
    padded = f"{text} /* {'é' * (DEFINITION_BYTES_MAX // 2)} */"
    with pytest.raises(Invalid, match=f"has at most {DEFINITION_BYTES_MAX} bytes"):
        await dispatch.admitted(world, padded, session={}, asked_by=A_TEST)
    await dispatch.admitted(world, text + " " * (DEFINITION_BYTES_MAX - len(text)), session={}, asked_by=A_TEST)


async def test_what_is_not_kept_may_be_longer() -> None:
    world = world_of(FakeStores(StillClock().now))
    for text in ("select 1", "insert into t values (1)", "delete from t", "update t set a = 1"):
        await dispatch.admitted(world, f"{text} /* {'x' * DEFINITION_BYTES_MAX} */", session={}, asked_by=A_TEST)


async def test_alters_do_not_make_a_definition_without_end() -> None:
    stores = FakeStores(StillClock().now)
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        entry = await tx.catalog.get(table.relation)
        assert entry is not None
        await tx.catalog.add_column(entry.relation, "x" * ALTERED_BYTES_MAX)
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(1), now=NOW)
    with pytest.raises(Invalid, match="DROP it, and CREATE it with all its columns"):
        await dispatch.run(world_of(stores), "alter table t add column c int", session={}, asked_by=A_TEST)
