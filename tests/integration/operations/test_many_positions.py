"""A view whose scans have more positions than a barrier can carry is refused, and no worker is asked for it."""

from dataclasses import replace

import pytest

from service.domain.errors import Invalid
from service.operations.statements import dispatch
from service.sql.text.options import VNODE_COUNT_MAX
from tests.support.leading import leading
from tests.support.meta_store import A_TEST, add_created, new_table

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("verb", ["create", "explain create"])
async def test_a_view_of_too_many_vnodes_is_refused(database_url: str, verb: str) -> None:
    async with leading(database_url) as leader:
        leader.describe(database_url)
        new = new_table("t")
        wide = replace(new, relation=new.relation.model_copy(update={"vnode_count": VNODE_COUNT_MAX}))
        async with leader.stores.begin() as tx:
            await add_created(tx, wide)
        await leader.queue(None)
        await leader.barrier()
        branches = " union all ".join(["select id, name from t"] * 9)
        with pytest.raises(Invalid, match="9 scans of 294912 vnodes together, and may have 262144"):
            await dispatch.run(leader.world, f"{verb} materialized view m as {branches}", session={}, asked_by=A_TEST)
