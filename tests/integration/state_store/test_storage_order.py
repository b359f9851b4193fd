"""What a statement or a page brings lies in the order of vnodes: who reads by vnode takes few pages for many rows."""

from collections.abc import AsyncGenerator
from itertools import pairwise
from random import Random

import pytest

from service.protocol.dml import Delete, InsertStaged, Update
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, StatementId
from tests.support.state_store import Store, relation, store_of
from workers.cdc.pages import by_vnode
from workers.state_store.dml import DmlStore

pytestmark = pytest.mark.postgres

GENERATION = Generation(5)
ROWS = 3_000
TABLE = relation(1, "t").model_copy(update={"vnode_count": 16})


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with store_of(database_url, TABLE, GENERATION) as prepared:
        yield prepared


async def turns(store: Store, epoch: int) -> int:
    """How often the vnode changes from one row to the next, as they lie in the table."""
    vnodes = await store.rows(f"select _vnode from state.t_1 where _from = {epoch} order by ctid")
    return sum(one != two for one, two in pairwise(vnodes))


async def test_statements_write_vnode_by_vnode(store: Store) -> None:
    await store.run(
        f"create table stage.s_5 as select i as _row, i as id, i::text as v from generate_series(1, {ROWS}) i"
    )
    await store.run("create index on stage.s_5 using brin (_row)")
    await store.run("grant select on stage.s_5 to public")
    dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    brought = InsertStaged(id=StatementId(5), relation=TABLE, columns=("id", "v"), first=1, last=ROWS + 1)
    dml.run((brought,), Epoch(9))
    assert await turns(store, 9) == TABLE.vnode_count - 1
    dml.run(
        (Update(id=StatementId(6), relation=TABLE, assignments=(("v", "v || '!'"),), predicate="id % 3 = 0"),),
        Epoch(10),
    )
    assert await turns(store, 10) == TABLE.vnode_count - 1
    (result,) = dml.run((Delete(id=StatementId(7), relation=TABLE, predicate="id % 3 = 1"),), Epoch(11)).results
    assert result.affected == ROWS // 3


def test_rows_of_a_page_are_written_vnode_by_vnode() -> None:
    random = Random(3)
    rows = [row(random.randrange(512), number) for number in range(ROWS)]
    together = [rows[first : first + 7] for first in range(0, ROWS, 7)]
    assert list(by_vnode(together)) == [sorted(rows, key=vnode)]


def test_a_page_without_rows_is_one_without_rows() -> None:
    assert not list(by_vnode([]))


def vnode(one: bytes) -> bytes:
    return one[6:8]


def row(of: int, number: int) -> bytes:
    return b"\0\2\0\0\0\2" + of.to_bytes(2, "big") + b"\0\0\0\x04" + number.to_bytes(4, "big")
