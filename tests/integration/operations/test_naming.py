"""Names of a statement are looked up together."""

import pytest

from service.operations import naming
from service.operations.naming import OTHERS_MAX, those_named
from service.ports.meta_store import Transaction
from tests.support.meta_store import add_created, new_table, stores_on

pytestmark = pytest.mark.postgres


async def test_i13_of_many_unknown_names_few_are_looked_up_one_by_one(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SELECT over a thousand of them kept a transaction for 7 s."""
    looked: list[str] = []

    async def without_rows(_: Transaction, name: str) -> None:
        looked.append(name)

    monkeypatch.setattr(naming, "_without_rows", without_rows)
    async with stores_on(database_url) as (stores, _), stores.begin() as tx:
        await add_created(tx, new_table("t"))
        found = await those_named(tx, ["t", *(f"no{number}" for number in range(100))])
    assert (list(found), len(looked)) == (["t"], OTHERS_MAX)
