"""DML, requests to workers, events, parameters and idempotency keys."""

import asyncio
from datetime import datetime, timedelta

import pytest

from service.domain.errors import Conflict
from service.domain.graph import GraphStatus
from service.domain.unstoppable import Unstoppable
from service.meta_store.barriers.requests import NOBODY
from service.ports.meta_store import Stores, Transaction
from service.ports.records import Claim
from service.ports.statements import APPLIED_PARTLY
from service.ports.workers import REQUEST_TRIES_MAX
from service.protocol.columns import Column, ColumnType
from service.protocol.dml import Delete, InsertStaged, InsertValues, Statement, StatementResult, Update
from service.protocol.ids import DATABASE_GRAPH, Epoch, RequestId, StatementId, WorkerId
from service.protocol.request import Rejected, Verified, Verify
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_store import (
    NOW,
    WORKER,
    add_created,
    barrier,
    inject,
    new_table,
    registration,
    relation,
    running,
)

# --- statements ---------------------------------------------------------------------------------------------------


async def store(stores: Stores, *, staged_rows: int | None = None) -> Statement:
    """Accept a statement: staged rows where a number is given, else a DELETE."""
    async with stores.begin() as tx:
        identity = await tx.statements.reserve()
        one: Statement = Delete(id=identity, relation=relation("t"), predicate="id = 1")
        if staged_rows is not None:
            one = InsertStaged(id=identity, relation=relation("t"), columns=("id",), first=0, last=staged_rows)
        await tx.statements.add(one, now=NOW, staged_rows=staged_rows)
    return one


async def carry(stores: Stores, epoch: int, *statements: Statement, generation: int = 0) -> None:
    """Inject a barrier that carries statements and let it be gone: only what it carried matters here."""
    await inject(stores, barrier(epoch, epoch - 1, statements=statements, generation=generation))


async def finish(stores: Stores, epoch: int, *results: StatementResult) -> None:
    async with stores.begin() as tx:
        await tx.statements.finish(results, epoch=Epoch(epoch), now=NOW)


async def waiting(stores: Stores) -> list[tuple[StatementId, int]]:
    async with stores.begin() as tx:
        return [(one.id, one.applied_rows) for one in await tx.statements.waiting(limit=10)]


async def test_statements_round_trip_in_the_order_of_their_ids(stores: Stores) -> None:
    async with stores.begin() as tx:
        ids = [await tx.statements.reserve() for _ in range(3)]
        statements: list[Statement] = [
            InsertValues(id=ids[0], relation=relation("t"), columns=("id", "name"), source="values (1, '\u00e4''')"),
            Update(id=ids[1], relation=relation("t"), assignments=(("name", "null"),), predicate=None),
            Delete(id=ids[2], relation=relation("t"), predicate="id % 2 = 0 and name = ':x'"),
        ]
        for one in reversed(statements):
            await tx.statements.add(one, now=NOW)
        assert [one.statement for one in await tx.statements.waiting(limit=10)] == statements
        assert [one.id for one in await tx.statements.waiting(limit=2)] == ids[:2]
        assert await tx.statements.outcomes([ids[1], StatementId(999)]) == {ids[1]: None}
    assert ids == sorted(ids)


async def test_u11_what_was_accepted_before_a_column_was_added_runs_with_it(stores: Stores) -> None:
    async with stores.begin() as tx:
        job = (await add_created(tx, new_table("t"))).id
        entry = await tx.catalog.named("t")
        assert entry is not None
        identity = await tx.statements.reserve()
        await tx.statements.add(Delete(id=identity, relation=entry.relation, predicate=None), now=NOW)
        added = Column(name="c", type=ColumnType.parse("varchar"), length=3, default="'x'")
        wider = entry.relation.model_copy(update={"columns": (*entry.relation.columns, added)})
        await tx.catalog.hold([wider.id])
        await tx.catalog.add_column(wider, "ALTER TABLE t ADD COLUMN c varchar(3) DEFAULT 'x'")
    async with stores.begin() as tx:
        found = await tx.catalog.named("t")
        (plan,) = await tx.plans.of([job])
        (waits,) = await tx.statements.waiting(limit=10)
    assert found is not None
    assert found.relation == waits.statement.relation == wider
    assert plan.relation == wider.without_defaults
    assert found.definition.endswith(";\nALTER TABLE t ADD COLUMN c varchar(3) DEFAULT 'x'")


async def test_a_statement_is_carried_once_and_answered_with_its_epoch(stores: Stores) -> None:
    await running(stores)
    good, bad = await store(stores), await store(stores)
    await carry(stores, 10, good, bad)
    assert await waiting(stores) == []
    results = (
        StatementResult(id=good.id, affected=3),
        StatementResult(id=bad.id, affected=0, error="no \0", sqlstate="22012"),
    )
    for _ in range(2):  # repeatable
        await finish(stores, 10, *results)
    async with stores.begin() as tx:
        found = await tx.statements.outcomes([good.id, bad.id])
    assert found == {
        good.id: (10, results[0]),
        bad.id: (10, results[1].model_copy(update={"error": "no \N{REPLACEMENT CHARACTER}"})),
    }
    assert await waiting(stores) == []


async def test_u10_a_staged_statement_shows_how_many_of_its_rows_are_published(stores: Stores) -> None:
    await running(stores)
    await store(stores)
    staged = await store(stores, staged_rows=10)
    assert isinstance(staged, InsertStaged)

    async def shown() -> list[tuple[int, str, int, int]]:
        async with stores.begin() as tx:
            return [(one.id, one.relation, one.rows, one.total) for one in await tx.staging_tables.publishing()]

    assert await shown() == [(staged.id, "t", 0, 10)]
    await carry(stores, 10, staged.model_copy(update={"last": 4}))
    await finish(stores, 10, StatementResult(id=staged.id, affected=4))
    assert await shown() == [(staged.id, "t", 4, 10)]
    async with stores.begin() as tx:
        ended = await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
    await carry(stores, 20, staged.model_copy(update={"first": 4}), generation=ended)
    await finish(stores, 20, StatementResult(id=staged.id, affected=6))
    assert await shown() == []


async def test_a7_a_caller_whose_statement_could_not_be_stopped_is_remembered(stores: Stores) -> None:
    async with stores.begin() as tx:
        ids = [await tx.statements.reserve() for _ in range(5)]
        for one, caller in zip(ids, ("a", "a", "b", "a", None), strict=True):
            staged = 1 if one == ids[3] else None
            delete = Delete(id=one, relation=relation("t"), predicate="id = 1")
            await tx.statements.add(delete, now=NOW, staged_rows=staged, caller=caller)
        assert list(await tx.statements.given_up(ids[0], now=NOW)) == [ids[1]]
        assert not await tx.statements.given_up(ids[4], now=NOW)
        assert await tx.statements.unstoppable(since=NOW) == {}
        assert await tx.statements.unstoppable(since=NOW - MINUTE) == {"a": Unstoppable(ids[0], NOW)}
        await tx.statements.finish([StatementResult(id=ids[0], affected=0)], epoch=Epoch(1), now=NOW)
        assert not await tx.statements.given_up(ids[1], now=NOW + MINUTE)
        assert await tx.statements.unstoppable(since=NOW) == {"a": Unstoppable(ids[1], NOW + MINUTE, 2)}


async def test_a_staged_statement_comes_back_until_its_last_slice(stores: Stores) -> None:
    await running(stores)
    one = await store(stores, staged_rows=10)
    assert await waiting(stores) == [(one.id, 0)]
    await carry(stores, 10, one.model_copy(update={"first": 0, "last": 6}))
    assert await waiting(stores) == []
    await finish(stores, 10, StatementResult(id=one.id, affected=5))  # one of the six overwrote another
    assert await waiting(stores) == [(one.id, 6)]
    async with stores.begin() as tx:
        assert await tx.staging_tables.unused() == []
        ended = await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
    assert await waiting(stores) == [(one.id, 6)]
    await carry(stores, 20, one.model_copy(update={"first": 6, "last": 10}), generation=ended)
    await finish(stores, 20, StatementResult(id=one.id, affected=4))
    async with stores.begin() as tx:
        assert await tx.statements.outcomes([one.id]) == {one.id: (20, StatementResult(id=one.id, affected=9))}
        assert await tx.staging_tables.unused() == [one.id]
        await tx.staging_tables.dropped(one.id)
        assert await tx.staging_tables.unused() == []
    assert await waiting(stores) == []


async def test_recovery_repeats_only_the_slice_that_was_under_way(stores: Stores) -> None:
    """I3: committed slices stay applied."""
    await running(stores)
    one = await store(stores, staged_rows=10)
    await carry(stores, 10, one.model_copy(update={"last": 4}))
    await finish(stores, 10, StatementResult(id=one.id, affected=4))
    async with stores.begin() as tx:
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
    await carry(stores, 20, one.model_copy(update={"first": 4, "last": 8}), generation=1)
    async with stores.begin() as tx:
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
    assert await waiting(stores) == [(one.id, 4)]


async def test_a_slice_that_failed_ends_its_statement(stores: Stores) -> None:
    await running(stores)
    one = await store(stores, staged_rows=10)
    await carry(stores, 10, one.model_copy(update={"last": 4}))
    await finish(stores, 10, StatementResult(id=one.id, affected=0, error="no", sqlstate="23502"))
    async with stores.begin() as tx:
        failed = StatementResult(id=one.id, affected=0, error="no", sqlstate="23502")
        assert await tx.statements.outcomes([one.id]) == {one.id: (10, failed)}
        assert await tx.staging_tables.unused() == [one.id]
    assert await waiting(stores) == []


async def test_finished_statements_are_forgotten_after_a_while_but_not_their_staging_tables(stores: Stores) -> None:
    await running(stores)
    plain, staged = await store(stores), await store(stores, staged_rows=1)
    await carry(stores, 10, plain, staged)
    await finish(stores, 10, StatementResult(id=plain.id, affected=1), StatementResult(id=staged.id, affected=1))
    async with stores.begin() as tx:
        later = NOW + timedelta(minutes=11)
        await tx.statements.finish([StatementResult(id=StatementId(99), affected=0)], epoch=Epoch(20), now=later)
        assert await tx.statements.outcomes([plain.id]) == {}
        assert await tx.staging_tables.unused() == [staged.id]


# --- requests -----------------------------------------------------------------------------------------------------


LEASE, MINUTE = timedelta(seconds=9), timedelta(minutes=1)


def question() -> Verify:
    return Verify(
        id=RequestId(0),
        graph=DATABASE_GRAPH,
        epoch=Epoch(1),
        relation_epoch=Epoch(1),
        relation=relation("t"),
        stages=(),
    )


@ON_POSTGRES
async def test_a_question_is_handed_out_once_and_answered_once(stores: Stores) -> None:
    await running(stores)
    async with stores.begin() as tx:
        first = await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=MINUTE)
        second = await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=MINUTE)
        assert await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE) == question().model_copy(
            update={"id": first}
        )
        claimed = await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE)
        assert claimed is not None
        assert claimed.id == second
        assert await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE) is None
        assert await tx.requests.response(first) is None
        answer = Verified(id=first, epoch=Epoch(1), equal=True, rows=0, expected_rows=0, digest="", expected_digest="")
        await tx.requests.answer(answer)
        await tx.requests.answer(Rejected(id=first, error="late"))
        assert await tx.requests.response(first) == answer
        await tx.requests.forget(first)
        await tx.requests.answer(answer)
        assert await tx.requests.response(first) is None


@ON_POSTGRES
async def test_a_question_of_a_lost_worker_is_handed_out_again(stores: Stores) -> None:
    await running(stores)
    other = WorkerId("w-2")
    async with stores.begin() as tx:
        await tx.workers.register(registration(other), now=NOW)
        asked = await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=MINUTE)
        await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE)
        assert await tx.requests.claim(DATABASE_GRAPH, other, now=NOW, lease=LEASE) is None
        await tx.workers.give_up(WORKER)
        again = await tx.requests.claim(DATABASE_GRAPH, other, now=NOW, lease=LEASE)
    assert again is not None
    assert again.id == asked


@ON_POSTGRES
async def test_a_question_of_a_silent_worker_is_handed_out_again_to_some(stores: Stores) -> None:
    """I13: a worker that is not the graph's own is not given up when it ends, and kept its question for ever."""
    await running(stores)
    others = [WorkerId(f"w-{n}") for n in range(2, REQUEST_TRIES_MAX + 2)]
    async with stores.begin() as tx:
        asked = await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=99 * MINUTE)
        await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE)
        for n, other in enumerate(others, start=1):
            just, past = NOW + n * LEASE - LEASE / 9, NOW + n * LEASE
            await tx.workers.register(registration(other), now=past)
            assert await tx.requests.claim(DATABASE_GRAPH, other, now=just, lease=LEASE) is None
            assert await tx.requests.lost(asked, now=just, lease=LEASE) is False
            again = await tx.requests.claim(DATABASE_GRAPH, other, now=past, lease=LEASE)
            # It may be the question that ends them.
            assert (again is None) is (n == REQUEST_TRIES_MAX)
            assert await tx.requests.lost(asked, now=past, lease=LEASE) is (n == REQUEST_TRIES_MAX)
        # The answer of a worker that comes back still counts.
        await tx.requests.answer(Rejected(id=asked, error="late"))
        assert await tx.requests.response(asked) == Rejected(id=asked, error="late")
        assert await tx.requests.lost(asked, now=NOW + 99 * LEASE, lease=LEASE) is False


@ON_POSTGRES
async def test_i13_a_question_that_nobody_asks_any_more_ends_with_the_answer_of_its_worker(stores: Stores) -> None:
    await running(stores)
    other = WorkerId("w-2")
    async with stores.begin() as tx:
        await tx.workers.register(registration(other), now=NOW)
        first = await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=MINUTE)
        second = await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=MINUTE)
        await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE)
        assert await tx.requests.wanted(first)
        for one in (first, second):
            await tx.requests.withdraw(one)
            assert not await tx.requests.wanted(one)
        # No worker has the second one.
        assert await tx.requests.response(second) == Rejected(id=second, error=NOBODY)
        assert await tx.requests.response(first) is None
        assert await tx.requests.lost(first, now=NOW, lease=LEASE) is False
        assert await tx.requests.claim(DATABASE_GRAPH, other, now=NOW + MINUTE, lease=LEASE) is None
        assert await tx.requests.lost(first, now=NOW + MINUTE, lease=LEASE) is True
        await tx.requests.answer(Rejected(id=first, error="late"))
        await tx.requests.withdraw(first)
        assert await tx.requests.response(first) == Rejected(id=first, error="late")


@ON_POSTGRES
async def test_a_question_that_a_live_worker_holds_for_long_is_shared_with_another(stores: Stores) -> None:
    await running(stores)
    other = WorkerId("w-2")
    async with stores.begin() as tx:
        await tx.workers.register(registration(other), now=NOW)
        await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=MINUTE)
        await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE)
        for worker in (WORKER, other):
            await tx.workers.seen(worker, now=NOW + MINUTE)
        just = NOW + MINUTE - LEASE / 9
        assert await tx.requests.claim(DATABASE_GRAPH, other, now=just, lease=LEASE) is None
        # Its own worker has it already.
        assert await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW + MINUTE, lease=LEASE) is None
        assert await tx.requests.claim(DATABASE_GRAPH, other, now=NOW + MINUTE, lease=LEASE) is not None


@ON_POSTGRES
async def test_questions_that_nobody_waits_for_are_forgotten(stores: Stores) -> None:
    await running(stores)
    async with stores.begin() as tx:
        await tx.requests.add(question(), DATABASE_GRAPH, now=NOW - timedelta(seconds=1), hold=MINUTE)
        kept = await tx.requests.add(question(), DATABASE_GRAPH, now=NOW, hold=MINUTE)
        await tx.requests.forget_older(NOW)
        claimed = await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE)
        assert claimed is not None
        assert claimed.id == kept
        assert await tx.requests.claim(DATABASE_GRAPH, WORKER, now=NOW, lease=LEASE) is None


# --- events, parameters, keys -------------------------------------------------------------------------------------


async def test_events_are_read_after_an_id(stores: Stores) -> None:
    async with stores.begin() as tx:
        assert (await tx.events.newest(), await tx.events.since(0, limit=5)) == (0, [])
        for number in range(3):
            await tx.events.append("thing.happened", {"number": number, "text": "a\0b"}, now=NOW)
    async with stores.begin() as tx:
        first, second = await tx.events.since(0, limit=2)
        (third,) = await tx.events.since(second.id, limit=2)
        assert await tx.events.newest() == third.id
        await tx.events.append("token.created", {"name": "hidden"}, now=NOW)
        await tx.events.append("secret.created", {"name": "hidden"}, now=NOW)
        await tx.events.append("thing.happened", {}, now=NOW)
        assert [one.kind for one in await tx.events.since(third.id, limit=2, discreet=False)] == ["thing.happened"]
        assert len(await tx.events.since(third.id, limit=9)) == 3
    assert [one.facts["number"] for one in (first, second, third)] == [0, 1, 2]
    assert (first.kind, first.at, first.facts["text"]) == ("thing.happened", NOW, "a\N{REPLACEMENT CHARACTER}b")


@ON_POSTGRES
async def test_a_reader_of_events_misses_none_of_a_slow_transaction(stores: Stores) -> None:
    """Ids are in the order of commits: what commits later has a greater id, although it was appended before."""
    async with stores.begin() as slow:
        await slow.events.append("slow", {}, now=NOW)
        async with stores.begin() as quick:
            await quick.events.append("quick", {}, now=NOW)
        async with stores.begin() as tx:
            (seen,) = await tx.events.since(0, limit=5)
    async with stores.begin() as tx:
        (rest,) = await tx.events.since(seen.id, limit=5)
    assert (seen.kind, rest.kind) == ("quick", "slow")


async def test_parameters_are_overwritten(stores: Stores) -> None:
    async with stores.begin() as tx:
        for value in ("500", "700"):
            await tx.parameters.set("barrier_interval_ms", value)
        assert await tx.parameters.all() == {"barrier_interval_ms": "700"}


HOLD = timedelta(seconds=10)


async def claimed(tx: Transaction, fingerprint: str = "print", *, now: datetime = NOW) -> Claim:
    claim = await tx.keys.claim("k", fingerprint, now=now, hold=HOLD)
    assert isinstance(claim, Claim)
    return claim


async def accept(tx: Transaction) -> StatementId:
    identity = await tx.statements.reserve()
    await tx.statements.add(Delete(id=identity, relation=relation("t"), predicate=None), now=NOW)
    return identity


async def test_a_key_is_taken_once_and_gives_its_response_back(stores: Stores) -> None:
    async with stores.begin() as tx:
        claim = await claimed(tx)
        with pytest.raises(Conflict, match="not been answered"):
            await claimed(tx)
        with pytest.raises(Conflict, match="another request"):
            await claimed(tx, "other", now=NOW + HOLD)
        await tx.keys.store(claim, {"status": 200, "body": ["x", None]})
        answer = await tx.keys.claim("k", "print", now=NOW + HOLD, hold=HOLD)
        assert answer == {"status": 200, "body": ["x", None]}
        with pytest.raises(Conflict, match="another request"):
            await claimed(tx, "other")
        await tx.keys.release(claim, now=NOW)
        assert await tx.keys.claim("k", "print", now=NOW, hold=HOLD) == answer
        other = await claimed(tx, "other", now=NOW + timedelta(hours=25))
        await tx.keys.release(other, now=NOW)
        await claimed(tx, "third")


async def test_a_claim_lapses_unless_it_is_renewed_and_whoever_takes_it_over_fences_its_holder(stores: Stores) -> None:
    async with stores.begin() as tx:
        claim = await claimed(tx)
        await tx.keys.renew([claim], now=NOW + HOLD / 2, hold=HOLD)
        with pytest.raises(Conflict, match="not been answered"):
            await claimed(tx, now=NOW + HOLD)
        taken = await claimed(tx, now=NOW + HOLD * 1.5)
        with pytest.raises(Conflict, match="taken its idempotency key over"):
            await tx.keys.accepted(claim, StatementId(7))
        await tx.keys.store(claim, {})
        await tx.keys.release(claim, now=NOW)
        await tx.keys.renew([claim], now=NOW, hold=HOLD)
        with pytest.raises(Conflict, match="not been answered"):
            await claimed(tx, now=NOW + HOLD * 2)
        await tx.keys.store(taken, {"rows": 1})
        assert await tx.keys.claim("k", "print", now=NOW, hold=HOLD) == {"rows": 1}


async def test_what_was_accepted_under_a_claim_is_inherited_until_it_failed(stores: Stores) -> None:
    async with stores.begin() as tx:
        statement = await accept(tx)
        first = await claimed(tx)
        await tx.keys.accepted(first, statement)
        await tx.keys.release(first, now=NOW)
        second = await claimed(tx)
        assert second.statement == statement
        await tx.statements.finish([StatementResult(id=statement, affected=0, error="no")], epoch=Epoch(1), now=NOW)
        await tx.keys.release(second, now=NOW)
        assert (await claimed(tx)).statement is None


async def test_a_statement_that_a_lost_call_accepted_is_kept_for_its_repetition(stores: Stores) -> None:
    async with stores.begin() as tx:
        kept, gone = await accept(tx), await accept(tx)
        claim = await claimed(tx)
        await tx.keys.accepted(claim, kept)
        for statement, now in ((kept, NOW), (gone, NOW), (await accept(tx), NOW + timedelta(hours=1))):
            await tx.statements.finish([StatementResult(id=statement, affected=1)], epoch=Epoch(1), now=now)
        assert await tx.statements.outcomes([kept, gone]) == {kept: (1, StatementResult(id=kept, affected=1))}


async def test_of_two_first_calls_with_one_key_one_runs(stores: Stores) -> None:
    async def claim() -> bool:
        async with stores.begin() as tx:
            return (await claimed(tx)).number > 0

    results = await asyncio.gather(claim(), claim(), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "bool"]


async def test_c3_a_staged_statement_that_fails_late_says_what_it_applied_and_keeps_its_key(stores: Stores) -> None:
    """I13: "changed nothing" would invite a repetition."""
    await running(stores)
    one = await store(stores, staged_rows=30)
    async with stores.begin() as tx:
        claim = await tx.keys.claim("k", "f", now=NOW, hold=timedelta(seconds=10))
        assert isinstance(claim, Claim)
        await tx.keys.accepted(claim, one.id)
    await carry(stores, 10, one.model_copy(update={"last": 20}))
    await finish(stores, 10, StatementResult(id=one.id, affected=20))
    async with stores.begin() as tx:
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
    await carry(stores, 20, one.model_copy(update={"first": 20}), generation=1)
    await finish(stores, 20, StatementResult(id=one.id, affected=0, error="no", sqlstate="54000"))
    async with stores.begin() as tx:
        found = (await tx.statements.outcomes([one.id]))[one.id]
        assert found is not None
        assert found[1].error == f"no{APPLIED_PARTLY}20"
        await tx.keys.release(claim, now=NOW)
        again = await tx.keys.claim("k", "f", now=NOW, hold=timedelta(seconds=10))
    assert isinstance(again, Claim)
    assert again.statement == one.id
