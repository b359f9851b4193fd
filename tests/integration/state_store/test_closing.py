"""Versions that end are found by their keys, also in a table that grows and of which nothing is known yet."""

from collections.abc import AsyncGenerator

import pytest

from service.protocol.dml import Delete, InsertStaged, InsertValues, Update
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, StatementId
from tests.support.state_store import Store, relation, store_of
from workers.cdc.apply import SETUP, write_command
from workers.state_store import statements
from workers.state_store.connections import BY_KEY, WRITING, application_name, psycopg_connection
from workers.state_store.dml import SETUP as DML_SETUP
from workers.state_store.dml import command
from workers.state_store.loads import SETTINGS, any_found, overwriting

pytestmark = pytest.mark.postgres

GENERATION = Generation(5)
RELATION = relation(1, "t")
"""Its key may be NULL."""
KEYED = RELATION.model_copy(
    update={"columns": (RELATION.columns[0].model_copy(update={"nullable": False}), *RELATION.columns[1:])}
)
BROUGHT = (
    "create temp table cdc_1_2 as select i % 3 > 0 as _to, i::text c0, i::text c1 from generate_series(1, 20000) i"
)
"""A whole part of the log: many searches must not seem worse than one look at everything."""
CLOSING = "create temp table closing (_vnode smallint, id bigint)"


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with store_of(database_url, RELATION, GENERATION) as prepared:
        await prepared.run("alter table state.t_1 set (autovacuum_enabled = off)")
        await prepared.run("insert into state.t_1 select i % 256, i, i, 1 from generate_series(1, 100000) i")
        yield prepared


def plan(store: Store, setup: tuple[str, ...], steering: tuple[str, ...], made: str, command: str) -> str:
    name = application_name(DATABASE_GRAPH, GENERATION)
    with (
        psycopg_connection(store.url, name, setup) as connection,
        connection.transaction(force_rollback=True),
    ):
        for statement in (made, *steering):
            connection.execute(statement.encode())
        return "\n".join(line for (line,) in connection.execute(f"explain {command}".encode()))


@pytest.mark.parametrize("steering", [BY_KEY, ()], ids=["by key", "anyhow"])
async def test_versions_that_end_are_found_by_their_keys(store: Store, steering: tuple[str, ...]) -> None:
    """Left alone, the server joins all of the table with a few keys."""
    closes, _few = statements.close(RELATION, "closing", Epoch(9))
    found = plan(store, WRITING, steering, CLOSING, closes)
    joined = [kind for kind in ("Hash", "Merge") if f"{kind} Join" in found]
    assert bool(joined) == (not steering), found
    assert ("t_1_from" in found) == (not steering), found
    assert not steering or found.count("Index Cond: ((_vnode = ") == 1, found


async def test_versions_that_followed_changes_end_are_found_by_their_keys(store: Store) -> None:
    by_key_alone(plan(store, SETUP, BY_KEY, BROUGHT, write_command(KEYED, Epoch(9))))


def by_key_alone(found: str) -> None:
    """Each version is looked for once, by its key, and ended or overwritten where it was found."""
    assert "Hash" not in found, found
    assert "Merge" not in found, found
    assert "t_1_from" not in found, found
    assert found.count("Index Cond: ((_vnode = ") == 1, found
    assert found.count("TID Cond: ") == 3, found


STAGED = InsertStaged(id=StatementId(5), relation=KEYED, columns=("id", "v"), first=10_000, last=20_000)
VALUES = InsertValues(id=StatementId(5), relation=KEYED, columns=("id", "v"), source="values (7, 'x')")
UPDATE = Update(id=StatementId(5), relation=KEYED, assignments=(("v", "v || '!'"),), predicate="id < 100")
DELETE = Delete(id=StatementId(5), relation=KEYED, predicate="id < 100")


@pytest.mark.parametrize(
    "printed",
    [
        command(VALUES, Epoch(9)),
        command(UPDATE, Epoch(9)),
        command(DELETE, Epoch(9)),
        overwriting(STAGED, Epoch(9), 1),
    ],
    ids=["insert", "update", "delete", "staged"],
)
async def test_statements_find_what_they_end_by_its_key(store: Store, printed: str) -> None:
    await stage(store)
    by_key_alone(plan(store, DML_SETUP, SETTINGS if "stage." in printed else (), "select 1", printed))


async def test_a_slice_is_probed_by_one_search_for_each_vnode(store: Store) -> None:
    await stage(store)
    found = plan(store, DML_SETUP, SETTINGS, "select 1", any_found(STAGED))
    assert "Index Cond: ((_row >= 10000) AND (_row < 20000))" in found, found
    assert found.count("Index Cond: ((_vnode = ") == 1, found
    assert "Seq Scan" not in found, found


async def stage(store: Store) -> None:
    await store.run(
        "create table stage.s_5 as select i as _row, i as id, i::text as v from generate_series(0, 50000) i"
    )
    await store.run("create index on stage.s_5 using brin (_row)")
