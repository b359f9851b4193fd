"""Which waiting statements a barrier gets, and what an epoch that did not finish them leaves (C4, C8, S7)."""

from service.domain.dml import SINGLY
from service.domain.graph import GraphStatus
from service.ports.meta_store import Stores
from service.protocol.dml import Delete, Statement, StatementResult, Unfinished
from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId, StatementId
from tests.support.meta_store import NOW, barrier, inject, relation, running

KIB = 1 << 10


async def accept(stores: Stores, *, table: int = 1, size: int = 1, caller: str | None = None) -> Statement:
    async with stores.begin() as tx:
        one = Delete(
            id=await tx.statements.reserve(),
            relation=relation("t").model_copy(update={"id": RelationId(table)}),
            predicate="x" * size,
        )
        await tx.statements.add(one, now=NOW, caller=caller)
    return one


async def waiting(stores: Stores, *, bytes_max: int | None = None, singly: bool = False) -> list[StatementId]:
    async with stores.begin() as tx:
        return [one.id for one in await tx.statements.waiting(limit=10, bytes_max=bytes_max, singly=singly)]


async def carry(stores: Stores, epoch: int, *statements: Statement, generation: int = 0) -> None:
    await inject(stores, barrier(epoch, epoch - 1, statements=statements, generation=generation))


async def test_c8_a_barrier_gets_only_so_many_bytes_of_statements(stores: Stores) -> None:
    first, second, third = [(await accept(stores, size=64 * KIB)).id for _ in range(3)]
    assert await waiting(stores, bytes_max=1) == [first], "one that is larger than all may be comes by itself"
    assert await waiting(stores, bytes_max=100 * KIB) == [first, second]
    assert await waiting(stores, bytes_max=1000 * KIB) == [first, second, third]
    async with stores.begin() as tx:
        (queued,) = (await tx.statements.backlog()).values()
    assert queued.number == 3
    assert 3 * 64 * KIB < queued.bytes < 3 * 66 * KIB


async def test_a16_the_backlog_is_counted_by_caller(stores: Stores) -> None:
    await running(stores)
    carried = await accept(stores, caller="greedy")
    await carry(stores, 10, carried)
    for caller in ("greedy", "greedy", "other", None):
        await accept(stores, caller=caller)
    async with stores.begin() as tx:
        backlog = await tx.statements.backlog()
    assert {caller: queued.number for caller, queued in backlog.items()} == {"greedy": 2, "other": 1, "": 1}


async def test_tables_take_turns(stores: Stores) -> None:
    of_one = [(await accept(stores, table=1)).id for _ in range(3)]
    of_two = [(await accept(stores, table=2)).id for _ in range(2)]
    assert await waiting(stores) == [of_one[0], of_two[0], of_one[1], of_two[1], of_one[2]]


async def test_a11_callers_take_turns_however_many_tables_each_of_them_changes(stores: Stores) -> None:
    """Statements that nearly fill their share of an epoch, each on a table of its own, delayed those of others."""
    greedy = [(await accept(stores, table=table, caller="greedy")).id for table in (1, 2, 3)]
    again = (await accept(stores, table=1, caller="greedy")).id
    other = [(await accept(stores, table=table, caller="other")).id for table in (4, 4, 5)]
    unnamed = (await accept(stores, table=6)).id
    turns = [greedy[0], other[0], unnamed, greedy[1], other[2], greedy[2], other[1], again]
    assert await waiting(stores) == turns


async def test_c4_what_was_not_reached_waits_and_what_was_set_aside_is_carried_singly(stores: Stores) -> None:
    await running(stores)
    done, slow, late, other = [await accept(stores) for _ in range(4)]
    await carry(stores, 10, done, slow, late)
    unfinished = Unfinished(set_aside=(slow.id,), not_reached=(late.id,))
    for _ in range(2):  # repeatable
        async with stores.begin() as tx:
            result = StatementResult(id=done.id, affected=1)
            await tx.statements.finish([result], epoch=Epoch(10), now=NOW, unfinished=unfinished)
    assert await waiting(stores) == [late.id, other.id]
    assert await waiting(stores, singly=True) == [slow.id]
    async with stores.begin() as tx:
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=NOW - NOW)
        assert view.statements_waiting
        assert await tx.statements.outcomes([slow.id]) == {slow.id: None}


async def test_a_statement_that_has_an_epoch_to_itself_hastens_none(stores: Stores) -> None:
    await running(stores)
    one = await accept(stores)
    await carry(stores, 10, one)
    async with stores.begin() as tx:
        await tx.statements.finish([], epoch=Epoch(10), now=NOW, unfinished=Unfinished(set_aside=(one.id,)))
        assert not (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=NOW - NOW)).statements_waiting


async def test_c4_an_abandoned_epoch_counts_against_what_it_carried(stores: Stores) -> None:
    await running(stores)
    one, culprit, other = [await accept(stores) for _ in range(3)]
    await carry(stores, 10, one, culprit)
    async with stores.begin() as tx:
        assert await tx.statements.blame(Epoch(10), culprit.id) == [(one.id, 1), (culprit.id, SINGLY)]
        assert await tx.statements.blame(Epoch(9), None) == []
        ended = await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
    assert await waiting(stores) == [one.id, other.id]
    assert await waiting(stores, singly=True) == [culprit.id]
    await carry(stores, 20, one, generation=ended)
    async with stores.begin() as tx:
        assert await tx.statements.blame(Epoch(20), None) == [(one.id, 2)]
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
    assert await waiting(stores) == [other.id]
    assert await waiting(stores, singly=True) == [one.id, culprit.id]
