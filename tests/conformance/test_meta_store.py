"""Leadership, graphs, barriers and commands: what the barrier loop stands on."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from service.domain.errors import Deposed, NotFound, Stale, Unavailable
from service.domain.graph import GraphStatus, InFlight
from service.meta_store.engine import connect
from service.meta_store.stores import PostgresStores
from service.ports.meta_store import Stores
from service.ports.records import GraphState
from service.ports.workers import FORGOTTEN_AFTER
from service.protocol.barrier import BarrierKind
from service.protocol.dml import Delete
from service.protocol.epoch import NEVER
from service.protocol.ids import (
    DATABASE_GRAPH,
    CommandId,
    Epoch,
    FragmentId,
    Generation,
    GraphId,
    StatementId,
    Term,
    WorkerId,
)
from service.protocol.mutation import Add, Pause, Resume, Stop, Throttle
from service.protocol.report import Collected, Failed
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_store import (
    LEASE,
    NOW,
    WORKER,
    barrier,
    collected,
    inject,
    registration,
    relation,
    running,
    stores_on,
    table_and_view,
)


async def gain(stores: Stores, holder: str, *, lease: timedelta = LEASE) -> Term | None:
    async with stores.begin() as tx:
        return await tx.leases.gain(holder, lease=lease)


# --- leadership (I7) ----------------------------------------------------------------------------------------------


async def test_one_leads_and_renews_its_term(stores: Stores) -> None:
    first = await gain(stores, "a")
    assert first is not None
    assert await gain(stores, "b") is None
    assert await gain(stores, "a") == first


async def test_a_lease_that_ran_out_is_taken_over_with_the_next_term(stores: Stores) -> None:
    first = await gain(stores, "a", lease=timedelta(0))
    assert first is not None
    assert await gain(stores, "b") == first + 1


async def test_h6_whether_somebody_leads(stores: Stores) -> None:
    async def held() -> bool:
        async with stores.begin() as tx:
            return await tx.leases.held()

    assert not await held()
    await gain(stores, "a")
    assert await held()
    async with stores.begin() as tx:
        await tx.leases.release("a")
    assert not await held()


async def test_a_released_lease_is_free_and_only_its_holder_releases_it(stores: Stores) -> None:
    first = await gain(stores, "a")
    assert first is not None
    async with stores.begin() as tx:
        await tx.leases.release("b")
    assert await gain(stores, "b") is None
    async with stores.begin() as tx:
        await tx.leases.release("a")
    assert await gain(stores, "b") == first + 1


async def test_a_lease_that_was_taken_is_not_renewed_by_its_last_holder(stores: Stores) -> None:
    first = await gain(stores, "a")
    assert first is not None
    async with stores.begin() as tx:
        assert await tx.leases.renew("a", lease=LEASE) == first
        assert await tx.leases.renew("b", lease=LEASE) is None
        assert await tx.leases.take()
        assert not await tx.leases.held()
        assert not await tx.leases.take()
        assert await tx.leases.renew("a", lease=LEASE) is None
    assert await gain(stores, "b") == first + 1


async def test_a_lease_that_ran_out_unseen_is_renewed_with_the_next_term(stores: Stores) -> None:
    first = await gain(stores, "a", lease=timedelta(0))
    assert first is not None
    async with stores.begin() as tx:
        assert await tx.leases.renew("a", lease=LEASE) == first + 1


async def test_a_deposed_term_cannot_write(stores: Stores) -> None:
    """I7: the term is asserted inside the transaction that writes."""
    old = await gain(stores, "a", lease=timedelta(0))
    await gain(stores, "b")
    with pytest.raises(Deposed):
        async with stores.begin(old) as tx:
            await tx.parameters.set("barrier_interval_ms", "1")
    async with stores.begin() as tx:
        assert await tx.parameters.all() == {}


async def test_a_take_over_waits_for_a_transaction_that_asserted_the_old_term(stores: Stores) -> None:
    """I7: check and write cannot be torn apart, in either order."""
    term = await gain(stores, "a", lease=timedelta(milliseconds=1))
    async with stores.begin(term) as tx:
        take_over = asyncio.create_task(gain(stores, "b"))
        finished, _ = await asyncio.wait({take_over}, timeout=0.3)
        assert not finished
        await tx.parameters.set("barrier_interval_ms", "500")
    second = await take_over
    async with stores.begin(second) as tx:
        assert await tx.parameters.all() == {"barrier_interval_ms": "500"}


@ON_POSTGRES
async def test_a_renewal_does_not_wait_for_a_transaction_that_asserted_the_term(stores: Stores) -> None:
    term = await gain(stores, "a")
    async with stores.begin(term):
        assert await asyncio.wait_for(gain(stores, "a"), 5) == term


async def test_a_failed_block_changes_nothing(stores: Stores) -> None:
    async def fail() -> None:
        async with stores.begin() as tx:
            await tx.parameters.set("barrier_interval_ms", "1")
            await tx.events.append("thing.happened", {}, now=NOW)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    async with stores.begin() as tx:
        assert (await tx.parameters.all(), await tx.events.newest()) == ({}, 0)


async def test_a_database_that_is_away_is_unavailable_and_the_password_is_not_told() -> None:
    engine = connect("postgresql://somebody:verysecret@127.0.0.1:1/nowhere", application_name="t")
    with pytest.raises(Unavailable) as error:
        async with PostgresStores(engine).begin():
            pass
    assert "verysecret" not in str(error.value) + repr(error.value.__cause__)
    await engine.dispose()


@pytest.mark.postgres
async def test_a_connection_that_the_server_has_ended_is_replaced_unseen(database_url: str) -> None:
    async with stores_on(database_url) as (stores, _):
        async with stores.begin() as one, stores.begin() as other:
            await one.parameters.all()
            await other.parameters.all()
        async with await psycopg.AsyncConnection.connect(database_url) as admin:
            await admin.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        for _ in range(2):
            async with stores.begin() as one, stores.begin() as other:
                assert await one.parameters.all() == await other.parameters.all()


# --- graphs -------------------------------------------------------------------------------------------------------


async def test_a_new_store_has_a_graph_that_has_yet_to_be_fenced(stores: Stores) -> None:
    async with stores.begin() as tx:
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        state = await tx.graphs.state(DATABASE_GRAPH)
    assert (view.status, view.generation, view.committed, view.published, view.newest) == (
        GraphStatus.RECOVERING,
        *(0, 0, 0, 0),
    )
    assert [view.commands_waiting, view.statements_waiting, view.cleanups_waiting, view.backfilling] == [False] * 4
    assert state == GraphState(
        status=GraphStatus.RECOVERING,
        generation=Generation(0),
        committed=NEVER,
        published=NEVER,
        paused=False,
        paused_since=None,
        recoveries=0,
        last_error=None,
    )


async def test_an_unknown_graph_is_not_found(stores: Stores) -> None:
    async with stores.begin() as tx:
        with pytest.raises(NotFound):
            await tx.graphs.view(GraphId(99), now=NOW, lease=LEASE)


async def test_the_view_shows_the_life_of_a_barrier(stores: Stores) -> None:
    await running(stores)
    await inject(stores, barrier(10, kind=BarrierKind.INITIAL))
    async with stores.begin() as tx:
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert view.in_flight == InFlight(Epoch(10), BarrierKind.INITIAL, NOW)
        assert (view.newest, view.attempts, view.worker, view.alive) == (10, 1, WORKER, {WORKER})
        assert view.last_injected_at == NOW
        assert await tx.barriers.answer(collected(10), now=NOW)
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert view.in_flight == InFlight(Epoch(10), BarrierKind.INITIAL, NOW, collected=True)
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(10), now=NOW)
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert (view.in_flight, view.committed, view.published, view.attempts) == (None, 10, 0, 1), "it only started"
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(10), now=NOW)
        assert (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)).published == 10
    await inject(stores, barrier(11))
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(11), now=NOW)
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(11), now=NOW)
        assert (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)).attempts == 0


async def test_a_failure_is_seen_whole(stores: Stores) -> None:
    await running(stores)
    await inject(stores, barrier(10))
    failed = Failed(
        worker=WORKER, graph=DATABASE_GRAPH, generation=barrier(10).generation, epoch=Epoch(10), error="no\0"
    )
    async with stores.begin() as tx:
        assert await tx.barriers.answer(failed, now=NOW)
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
    assert view.in_flight is not None
    assert view.in_flight.failure == failed.model_copy(update={"error": "no\N{REPLACEMENT CHARACTER}"})


async def test_a_worker_is_alive_while_its_lease_runs_and_it_was_not_given_up(stores: Stores) -> None:
    await running(stores)
    other = WorkerId("w-2")
    async with stores.begin() as tx:
        await tx.workers.register(registration(other), now=NOW + LEASE)
        late = NOW + LEASE
        assert (await tx.graphs.view(DATABASE_GRAPH, now=late, lease=LEASE)).alive == {other}
        await tx.workers.seen(WORKER, now=late)
        assert (await tx.graphs.view(DATABASE_GRAPH, now=late, lease=LEASE)).alive == {WORKER, other}
        await tx.workers.give_up(other)
        assert (await tx.graphs.view(DATABASE_GRAPH, now=late, lease=LEASE)).alive == {WORKER}
        with pytest.raises(Stale):
            await tx.workers.seen(other, now=late)
        with pytest.raises(Stale):
            await tx.workers.register(registration(other), now=late)
        with pytest.raises(Stale):
            await tx.workers.seen(WorkerId("nobody"), now=late)
        records = {record.worker: record.alive for record in await tx.workers.all(now=late, lease=LEASE)}
    assert records == {WORKER: True, other: False}


async def test_c14_workers_that_are_long_gone_are_forgotten_but_not_one_that_a_graph_names(stores: Stores) -> None:
    await running(stores)
    other, late = WorkerId("w-2"), NOW + 2 * FORGOTTEN_AFTER
    async with stores.begin() as tx:
        await tx.workers.register(registration(other), now=NOW)
        await tx.workers.give_up(other)
        assert await tx.workers.forget(now=NOW) == 0
        assert await tx.workers.forget(now=late) == 1
        with pytest.raises(Stale):
            await tx.workers.seen(other, now=late)
        await tx.workers.seen(WORKER, now=late)


async def test_backfilling_is_a_creating_scan_that_is_open_and_may_move(stores: Stores) -> None:
    _, view = await table_and_view(stores)
    async with stores.begin() as tx:
        (scan,) = (await tx.fragments.scans([view.id]))[view.id]
        for limit, backfilling, hurries in ((None, True, True), (5, True, False), (0, False, False)):
            await tx.limits.put({scan.fragment: limit}, auto=(), epoch=Epoch(1))
            view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
            assert (view.backfilling, view.hurries) == (backfilling, hurries)
        await tx.limits.put({scan.fragment: None}, auto=(), epoch=Epoch(1))
        await tx.graphs.set_paused(DATABASE_GRAPH, paused=True, now=NOW)
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert (view.backfilling, view.hurries) == (True, False)


# --- barriers -----------------------------------------------------------------------------------------------------


async def test_a_barrier_reaches_its_worker_whole_until_it_is_answered(stores: Stores) -> None:
    await running(stores)
    statement = Delete(id=StatementId(1), relation=relation("t"), predicate="id < 3")
    sent = await inject(stores, barrier(10, mutation=Throttle(fragments={}), statements=(statement,)))
    async with stores.begin() as tx:
        assert await tx.barriers.for_worker(WORKER) == sent
        assert await tx.barriers.for_worker(WorkerId("other")) is None
        await tx.barriers.answer(collected(10), now=NOW)
        assert await tx.barriers.for_worker(WORKER) is None
        assert await tx.barriers.collected(DATABASE_GRAPH, Epoch(10)) == [(sent, collected(10))]
        assert await tx.barriers.collected(DATABASE_GRAPH, Epoch(9)) == []


async def test_an_answer_counts_once(stores: Stores) -> None:
    await running(stores)
    await inject(stores, barrier(10))
    for first in (True, False):
        async with stores.begin() as tx:
            assert await tx.barriers.answer(collected(10), now=NOW) is first
    async with stores.begin() as tx:
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(10), now=NOW)
    async with stores.begin() as tx:
        assert not await tx.barriers.answer(collected(10), now=NOW)


@pytest.mark.parametrize(
    "wrong",
    [collected(11), collected(10, generation=1), collected(10, worker=WorkerId("w-2"))],
    ids=["epoch", "generation", "worker"],
)
async def test_a_stale_answer_is_refused(stores: Stores, wrong: Collected) -> None:
    """I7: an answer of another epoch, generation or worker changes nothing."""
    await running(stores)
    await inject(stores, barrier(10))
    with pytest.raises(Stale):
        async with stores.begin() as tx:
            await tx.barriers.answer(wrong, now=NOW)
    async with stores.begin() as tx:
        assert await tx.barriers.collected(DATABASE_GRAPH, Epoch(10)) == []


async def test_a_worker_that_was_given_up_cannot_answer(stores: Stores) -> None:
    await running(stores)
    await inject(stores, barrier(10))
    async with stores.begin() as tx:
        await tx.workers.give_up(WORKER)
        with pytest.raises(Stale):
            await tx.barriers.answer(collected(10), now=NOW)


async def test_a_barrier_of_an_old_generation_or_epoch_is_not_recorded(stores: Stores) -> None:
    await running(stores)
    await inject(stores, barrier(10))
    with pytest.raises(Stale):
        await inject(stores, barrier(11, 10, generation=1))
    with pytest.raises(Stale):
        await inject(stores, barrier(10, 9))


async def test_attached_barriers_wait_for_the_checkpoint_that_commits_them_all(stores: Stores) -> None:
    await running(stores)
    for epoch in (10, 11):
        await inject(stores, barrier(epoch, epoch - 1, kind=BarrierKind.BARRIER))
        async with stores.begin() as tx:
            await tx.barriers.answer(collected(epoch), now=NOW)
            await tx.barriers.attach(DATABASE_GRAPH, Epoch(epoch))
    async with stores.begin() as tx:
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
    assert (view.uncommitted, view.attached, view.in_flight, view.committed) == (2, 11, None, 0)
    await inject(stores, barrier(12, 11))
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(12), now=NOW)
        assert [one.curr for one, _ in await tx.barriers.collected(DATABASE_GRAPH, Epoch(12))] == [10, 11, 12]
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(12), now=NOW)
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        history = await tx.barriers.history(DATABASE_GRAPH, limit=10)
    assert (view.uncommitted, view.committed) == (0, 12)
    assert [record.committed_at for record in history] == [NOW] * 3


async def test_history_is_paged_newest_first_and_keeps_the_mutation_but_no_plans(stores: Stores) -> None:
    await running(stores)
    for epoch, mutation in ((10, None), (20, Pause()), (30, Add(jobs=()))):
        kind = BarrierKind.INITIAL if epoch == 10 else BarrierKind.CHECKPOINT
        await inject(stores, barrier(epoch, epoch - 10, kind=kind, mutation=mutation))
        async with stores.begin() as tx:
            await tx.barriers.answer(collected(epoch), now=NOW)
            await tx.barriers.commit(DATABASE_GRAPH, Epoch(epoch), now=NOW)
    async with stores.begin() as tx:
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(20), now=NOW + LEASE)
        newest, second = await tx.barriers.history(DATABASE_GRAPH, limit=2)
        (oldest,) = await tx.barriers.history(DATABASE_GRAPH, limit=2, before=second.barrier.curr)
    assert [one.barrier.mutation for one in (oldest, second, newest)] == [Add(jobs=()), Pause(), Add(jobs=())]
    assert [one.published_at for one in (oldest, second, newest)] == [NOW + LEASE, NOW + LEASE, None]
    assert (newest.injected_at, newest.collected_at, newest.timings_ms) == (NOW, NOW, {"run": 1.5})


async def test_published_never_goes_back(stores: Stores) -> None:
    await running(stores)
    await inject(stores, barrier(10))
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(10), now=NOW)
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(10), now=NOW)
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(10), now=NOW)
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(5), now=NOW)
        assert (await tx.graphs.state(DATABASE_GRAPH)).published == 10


# --- commands -----------------------------------------------------------------------------------------------------


async def test_a_command_waits_is_carried_and_is_finished(stores: Stores) -> None:
    await running(stores)
    async with stores.begin() as tx:
        flush = await tx.commands.add(DATABASE_GRAPH, None, asked_by="me", now=NOW)
        stop = await tx.commands.add(DATABASE_GRAPH, Stop(jobs=()), asked_by="me", now=NOW)
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert (view.commands_waiting, view.stops_waiting) == (True, True)
        assert [one.id for one in await tx.commands.waiting(DATABASE_GRAPH)] == [flush, stop]
    await inject(stores, barrier(10, mutation=Stop(jobs=())), flush, stop)
    async with stores.begin() as tx:
        view = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert (view.commands_waiting, view.stops_waiting) == (False, False)
        assert await tx.commands.waiting(DATABASE_GRAPH) == []
        assert await tx.commands.carried(DATABASE_GRAPH, Epoch(9)) == []
        carried = await tx.commands.carried(DATABASE_GRAPH, Epoch(10))
        assert [(one.mutation, one.epoch, one.done) for one in carried] == [
            (None, 10, False),
            (Stop(jobs=()), 10, False),
        ]
        await tx.commands.finish([flush], epoch=Epoch(10))
        await tx.commands.finish([stop], epoch=Epoch(10), error="no")
        found = [await tx.commands.get(one) for one in (flush, stop)]
        assert found == [
            replace(carried[0], done=True),
            replace(carried[1], done=True, error="no"),
        ]
        assert await tx.commands.get(CommandId(999)) is None


async def test_unfinished_commands_are_found_by_kind_caller_and_scan(stores: Stores) -> None:
    """I13: what a look at the queue reads does not grow with what else waits in it."""
    await running(stores)
    one, two, three = FragmentId(1), FragmentId(2), FragmentId(3)
    limits = [Throttle(fragments={one: 5, two: 6}), Throttle(fragments={three: None}), Throttle(fragments={two: 7})]
    async with stores.begin() as tx:
        first, second, third = [
            await tx.commands.add(DATABASE_GRAPH, limit, asked_by="me", now=NOW, hurried=False) for limit in limits
        ]
        pause = await tx.commands.add(DATABASE_GRAPH, Pause(), asked_by="me", now=NOW)
        part = await tx.commands.add(DATABASE_GRAPH, Pause(), asked_by="me", now=NOW, part_of=pause)
        await tx.commands.add(DATABASE_GRAPH, Resume(), asked_by="another", now=NOW)
        await tx.commands.add(DATABASE_GRAPH, None, asked_by="me", now=NOW)
    async with stores.begin() as tx:
        assert [one.id for one in await tx.commands.unfinished("throttle")] == [first, second, third]
        named = await tx.commands.unfinished("throttle", scans=[two])
        assert [(one.id, one.mutation, one.hurried) for one in named] == [
            (first, limits[0], False),
            (third, limits[2], False),
        ]
        assert await tx.commands.unfinished("throttle", scans=[]) == []
        assert [one.id for one in await tx.commands.unfinished("pause")] == [pause, part]
        assert await tx.commands.waiting_of("me") == 6
        assert await tx.commands.wholes_of("me", {"pause", "resume"}) == 1
        assert await tx.commands.wholes_of("me", {"throttle", "resume"}) == 3
        assert await tx.commands.parts([]) == {}
    await inject(stores, barrier(10, mutation=Pause()), pause, part, first)
    async with stores.begin() as tx:
        assert await tx.commands.wholes_of("me", {"pause", "resume"}) == 0
        await tx.commands.finish([first], epoch=Epoch(10))
        assert [one.id for one in await tx.commands.unfinished("throttle", scans=[two])] == [third]
        assert [one.id for one in await tx.commands.unfinished("pause")] == [pause, part]


async def test_recovery_ends_the_generation_and_puts_back_what_was_not_committed(stores: Stores) -> None:
    """I3, I4: commands and statements of forgotten barriers run again in the next generation."""
    await running(stores)
    async with stores.begin() as tx:
        commands = [await tx.commands.add(DATABASE_GRAPH, Pause(), asked_by="me", now=NOW) for _ in range(2)]
        statements = [Delete(id=await tx.statements.reserve(), relation=relation("t")) for _ in range(2)]
        for one in statements:
            await tx.statements.add(one, now=NOW)
        await tx.graphs.ask_recovery(DATABASE_GRAPH, "adhoc recovery")
    attached = barrier(10, kind=BarrierKind.BARRIER, mutation=Pause(), statements=(statements[0],))
    await inject(stores, attached, commands[0])
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(10), now=NOW)
        await tx.barriers.attach(DATABASE_GRAPH, Epoch(10))
    await inject(stores, barrier(11, 10, mutation=Pause(), statements=(statements[1],)), commands[1])
    async with stores.begin() as tx:
        before = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        assert (before.recover_asked, before.statements_waiting) == ("adhoc recovery", False)
        generation = await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="lost")
        assert generation == before.generation + 1
        after = await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)
        waiting = await tx.commands.waiting(DATABASE_GRAPH)
        stored = await tx.statements.waiting(limit=10)
        state = await tx.graphs.state(DATABASE_GRAPH)
    assert (after.status, after.in_flight, after.uncommitted) == (GraphStatus.RECOVERING, None, 0)
    assert (after.newest, after.recover_asked, after.recovering_since) == (11, None, NOW)
    assert [one.id for one in waiting] == commands
    assert [one.statement for one in stored] == statements
    assert (state.recoveries, state.last_error) == (1, "lost")
    for late in (collected(10), collected(11)):
        with pytest.raises(Stale):
            async with stores.begin() as tx:
                await tx.barriers.answer(late, now=NOW)


async def test_a_recovery_leaves_what_was_committed_alone(stores: Stores) -> None:
    await running(stores)
    async with stores.begin() as tx:
        command = await tx.commands.add(DATABASE_GRAPH, None, asked_by="me", now=NOW)
    await inject(stores, barrier(10), command)
    async with stores.begin() as tx:
        await tx.barriers.answer(collected(10), now=NOW)
        await tx.commands.finish([command], epoch=Epoch(10))
        await tx.barriers.commit(DATABASE_GRAPH, Epoch(10), now=NOW)
        await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="x")
        kept = await tx.commands.get(command)
        assert await tx.commands.waiting(DATABASE_GRAPH) == []
        assert (await tx.graphs.state(DATABASE_GRAPH)).committed == 10
        generation = await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.WAITING, now=NOW)
    assert generation == 1
    assert kept is not None
    assert kept.epoch == 10


async def test_a_wish_for_a_recovery_is_fulfilled_by_the_one_under_way(stores: Stores) -> None:
    await running(stores)
    for status in (GraphStatus.RECOVERING, GraphStatus.WAITING):
        async with stores.begin() as tx:
            await tx.graphs.set_status(DATABASE_GRAPH, status, now=NOW)
            await tx.graphs.ask_recovery(DATABASE_GRAPH, "adhoc recovery")
            assert (await tx.graphs.view(DATABASE_GRAPH, now=NOW, lease=LEASE)).recover_asked is None, status
