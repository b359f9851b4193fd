"""The DML that barriers carry: bounded in bytes, and never the same set for ever (C4, C8)."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from service.domain.dml import BYTES_MAX, TRIES_MAX
from service.domain.errors import Unavailable
from service.domain.graph import Abandon, Inject, RollBack
from service.domain.job import JobEvent, JobState
from service.domain.roles import Role
from service.domain.setbacks import APART, LOSSES_MAX
from service.operations.rows import dml
from service.ports.audit import Asker
from service.protocol.barrier import Barrier
from service.protocol.dml import Delete, InsertValues, StatementResult, Unfinished
from service.protocol.ids import DATABASE_GRAPH, JobId, StatementId
from service.protocol.report import DmlReport, Failed
from tests.support.http import StillClock, changed
from tests.support.leading import Leader, leading
from tests.support.meta_store import NOW, WORKER, add_created, collected, new_table, new_view, relation

pytestmark = pytest.mark.postgres


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        # The clock is moved by hand, and the worker says nothing meanwhile.
        made.world = changed(made.world, lease=timedelta(days=1))
        yield made


async def accept(
    leader: Leader, count: int = 1, *, size: int = 1, by: str | None = None, staged_rows: int | None = None
) -> list[StatementId]:
    accepted: list[StatementId] = []
    async with leader.stores.begin() as tx:
        for _ in range(count):
            accepted.append(await tx.statements.reserve())
            one = InsertValues(id=accepted[-1], relation=relation("t"), columns=("id",), source="x" * size)
            await tx.statements.add(one, now=NOW, staged_rows=staged_rows, caller=by)
    return accepted


def carried(barrier: Barrier) -> list[StatementId]:
    return [one.id for one in barrier.statements]


def pass_seconds(leader: Leader, seconds: int = 60) -> None:
    """Let the interval and any back-off pass, and the rest after an epoch of one statement."""
    clock = leader.world.clock
    assert isinstance(clock, StillClock)
    clock.wall, clock.seconds = clock.wall + timedelta(seconds=seconds), clock.seconds + seconds


async def committed(leader: Leader, *, after: int = 60) -> Barrier:
    """Have the next barrier committed as if every statement had been answered; it has no results."""
    pass_seconds(leader, after)
    return await leader.barrier()


async def injected(leader: Leader) -> Barrier:
    pass_seconds(leader)
    assert isinstance(await leader.look(), Inject)
    async with leader.stores.begin() as tx:
        barrier = await tx.barriers.for_worker(WORKER)
    assert barrier is not None
    return barrier


async def answer(leader: Leader, barrier: Barrier, unfinished: Unfinished, *, seconds: float = 0.0) -> None:
    """Have an epoch collected in which every statement is done that is not unfinished."""
    left = {*unfinished.not_reached, *unfinished.set_aside}
    results = tuple(StatementResult(id=one, affected=1) for one in carried(barrier) if one not in left)
    report = DmlReport(results=results, unfinished=unfinished)
    told = collected(barrier.curr, report, generation=barrier.generation)
    async with leader.stores.begin() as tx:
        await tx.barriers.answer(told.model_copy(update={"timings_ms": {"dml": seconds * 1000}}), now=NOW)
    await leader.look()
    await leader.look()


async def break_epoch(
    leader: Leader,
    culprit: StatementId | None = None,
    *,
    exhausting: JobId | None = None,
    failing: JobId | None = None,
    beside: tuple[JobId, ...] = (),
    too_slow: bool = False,
) -> list[StatementId]:
    """Have the next epoch abandoned for a lost connection, and another generation begun; return what it carried."""
    barrier = await injected(leader)
    async with leader.stores.begin() as tx:
        failed = Failed(
            worker=WORKER,
            graph=DATABASE_GRAPH,
            generation=barrier.generation,
            epoch=barrier.curr,
            error="the connection was lost",
            statement=culprit,
            job=exhausting or failing or next(iter(beside), None),
            deterministic=failing is not None,
            exhausted=exhausting is not None,
            beside=beside,
            too_slow=too_slow,
        )
        assert await tx.barriers.answer(failed, now=NOW)
    assert isinstance(await leader.look(), Abandon)
    assert isinstance(await leader.look(), RollBack)
    await committed(leader)
    return carried(barrier)


async def result_of(leader: Leader, statement: StatementId) -> StatementResult | None:
    async with leader.stores.begin() as tx:
        found = (await tx.statements.outcomes([statement]))[statement]
    return None if found is None else found[1]


async def test_c8_statements_of_many_bytes_end_in_several_barriers(leader: Leader) -> None:
    size = BYTES_MAX // 4
    statements = await accept(leader, 9, size=size)
    seen = [carried(await committed(leader)) for _ in range(3)]
    assert seen == [statements[:4], statements[4:8], statements[8:]]


async def test_c4_an_unreached_statement_comes_next_and_one_set_aside_comes_by_itself(leader: Leader) -> None:
    done, slow, late = await accept(leader, 3)
    first = await injected(leader)
    assert carried(first) == [done, slow, late]
    await answer(leader, first, Unfinished(set_aside=(slow,), not_reached=(late,)))
    (new,) = await accept(leader)
    second, third = await injected(leader), None
    await answer(leader, second, Unfinished())
    third = await injected(leader)
    await answer(leader, third, Unfinished())
    assert sorted([carried(second), carried(third)]) == [[slow], [late, new]]
    results = [await result_of(leader, one) for one in (done, slow, late, new)]
    assert all(result is not None and result.affected == 1 for result in results)


async def test_a12_many_brief_lone_statements_hold_up_no_others(leader: Leader) -> None:
    """Each of them needs no rest after it, so they followed each other while all others waited."""
    slow = await accept(leader, 4)
    await answer(leader, await injected(leader), Unfinished(set_aside=tuple(slow)))
    seen: list[list[StatementId]] = []
    others: list[StatementId] = []
    for count in (1, 1, 0, 1, 0, 0):
        others += await accept(leader, count)
        seen.append(carried(barrier := await injected(leader)))
        await answer(leader, barrier, Unfinished(), seconds=0.9)
    assert seen == [slow[:1], others[:2], slow[1:2], others[2:], slow[2:3], slow[3:]]


async def test_s7_epochs_are_short_while_slow_statements_are_about(leader: Leader) -> None:
    _, slow = await accept(leader, 2)
    first = await injected(leader)
    await answer(leader, first, Unfinished(set_aside=(slow,)))
    single = await injected(leader)
    assert carried(single) == [slow]
    await answer(leader, single, Unfinished(), seconds=10.0)
    others: list[Barrier] = []
    for seconds in (39, 2):
        accepted = await accept(leader, 1)
        others.append(await committed(leader, after=seconds))
        assert carried(others[-1]) == accepted
    limits = [(one.dml.epoch_ms, one.dml.patient) for one in (first, single, *others)]
    assert limits == [(2_000, True), (2_000, True), (500, False), (2_000, True)]


async def test_c4_statements_whose_epoch_is_abandoned_again_are_carried_singly(leader: Leader) -> None:
    one, two = await accept(leader, 2)
    assert [await break_epoch(leader) for _ in range(2)] == [[one, two], [one, two]]
    assert await break_epoch(leader, one) == [one]
    result = await result_of(leader, one)
    assert result is not None
    assert result.error is not None
    assert "abandoned: the connection was lost" in result.error
    assert carried(await committed(leader)) == [two]


async def test_c4_the_statement_that_broke_an_epoch_is_carried_singly_at_once(leader: Leader) -> None:
    one, two, three = await accept(leader, 3)
    assert await break_epoch(leader, two) == [one, two, three]
    assert await break_epoch(leader, two) == [two]
    assert await result_of(leader, two) is not None
    assert carried(await committed(leader)) == [one, three]


async def test_a7_a_statement_that_could_not_be_stopped_bars_its_caller(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these cost everybody a recovery, one after the other, for as long as a caller sent them."""
    monkeypatch.setattr(dml, "ANSWER_WAIT", timedelta(seconds=1))
    (other,) = await accept(leader, by="other")
    first, second = await accept(leader, 2, by="operator")
    (load,) = await accept(leader, by="operator", staged_rows=1)
    assert await break_epoch(leader, first, too_slow=True) == [other, first, second, load]
    refused = await result_of(leader, second)
    assert refused is not None
    assert refused.error == f"it was not run, because Postgres could not stop statement {first} of the same caller"
    assert [await result_of(leader, one) for one in (other, load)] == [None, None]
    barred = f"could not stop statement {first} of this caller"
    for by, after, match in (
        (Asker("operator", Role.OPERATOR), 0, barred),
        (Asker("operator", Role.ADMIN), 0, "stays queued"),
        (Asker("other", Role.OPERATOR), 0, "stays queued"),
        (Asker("operator", Role.OPERATOR), 600, "stays queued"),
    ):
        pass_seconds(leader, after)
        one = Delete(id=await dml.reserve(leader.world), relation=relation("t"))
        with pytest.raises(Unavailable, match=match):
            await dml.run(leader.world, one, asked_by=by)


async def test_a7_statements_of_others_are_not_to_blame(leader: Leader) -> None:
    (other,) = await accept(leader)
    for _ in range(TRIES_MAX):
        (culprit,) = await accept(leader)
        assert other in await break_epoch(leader, culprit, too_slow=True)
    assert await result_of(leader, other) is None


async def test_i13_the_statements_of_others_go_on_while_the_views_of_a_caller_fail_in_a_row(leader: Leader) -> None:
    async with leader.stores.begin() as tx:
        upstream = (await add_created(tx, new_table("orders"))).relation
        views = [(await add_created(tx, new_view(f"v{n}", upstream))).id for n in range(3)]
    (others,), (first,) = await accept(leader, by="other"), await accept(leader, by="greedy")
    assert await break_epoch(leader, failing=views[0]) == [others, first]
    barrier = await injected(leader)
    assert carried(barrier) == [others]
    await answer(leader, barrier, Unfinished())
    later = await accept(leader, by="other")
    assert await break_epoch(leader, failing=views[1]) == [first]
    barrier = await injected(leader)
    assert carried(barrier) == later
    await answer(leader, barrier, Unfinished())
    assert await result_of(leader, first) is None
    assert [await leader.state_of(one) for one in views] == [JobState.FAILED, JobState.FAILED, JobState.CREATED]


async def test_c4_no_statement_is_tried_for_ever(leader: Leader) -> None:
    (one,) = await accept(leader)
    for _ in range(TRIES_MAX):
        assert await result_of(leader, one) is None
        assert await break_epoch(leader) == [one]
    assert await result_of(leader, one) is not None


async def test_a_recovery_that_was_asked_for_is_held_against_no_statement(leader: Leader) -> None:
    statements = await accept(leader, 2)
    for _ in range(TRIES_MAX + 1):
        assert carried(await injected(leader)) == statements
        await leader.recover()
        await committed(leader)
    assert [await result_of(leader, one) for one in statements] == [None, None]


async def test_a_view_with_which_workers_end_again_and_again_is_failed(leader: Leader) -> None:
    """I13: no recovery is repeated for ever, and other views go on."""
    async with leader.stores.begin() as tx:
        upstream = (await add_created(tx, new_table("orders"))).relation
        guilty, other = [(await add_created(tx, new_view(name, upstream))).id for name in ("v", "m")]
    states: list[str] = []
    for _ in range(LOSSES_MAX):
        await break_epoch(leader, exhausting=guilty)
        states.append(await leader.state_of(guilty))
    assert states == [JobState.CREATED] * (LOSSES_MAX - 1) + [JobState.FAILED]
    assert await leader.state_of(other) == JobState.CREATED


async def test_i13_views_that_take_all_memory_together_are_computed_one_by_one_from_then_on(leader: Leader) -> None:
    """Each alone has room. Together they ended one worker after another, and nobody was blamed."""
    async with leader.stores.begin() as tx:
        upstream = (await add_created(tx, new_table("orders"))).relation
        views = [(await tx.jobs.add(new_view(name, upstream), now=NOW, by=name)).id for name in ("x", "y", "z")]
        for view in views:
            await tx.jobs.move(view, JobEvent.STARTED, now=NOW)
    (statement,) = await accept(leader)
    for _ in range(TRIES_MAX):
        assert await break_epoch(leader, beside=(*views[:2], JobId(999))) == [statement]
    assert (await injected(leader)).scans.apart == ("x", "y")
    assert await result_of(leader, statement) is None
    await leader.recover()
    pass_seconds(leader, round(APART.total_seconds()))
    assert (await injected(leader)).scans.apart == ()
