"""Jobs of stages: hidden relations that stages read, relations that they look up, and the order of their scans."""

from dataclasses import replace

import pytest

from service.domain.errors import Conflict
from service.domain.job import JobEvent
from service.ports.meta_store import Stores, Transaction
from service.protocol.epoch import NEVER
from service.protocol.ids import DATABASE_GRAPH, FragmentId, RelationId
from service.protocol.plan import JobPlan, Prefix
from tests.conformance.conftest import ON_POSTGRES
from tests.support.meta_stages import joined, new_operators, new_stages, newest
from tests.support.meta_store import NOW, add_created, add_creating, collected, new_table, relation, report


async def stored(tx: Transaction) -> tuple[RelationId, RelationId, JobPlan]:
    left, right = [(await add_created(tx, new_table(name))).relation for name in "ab"]
    job = await add_creating(tx, new_stages(left, right))
    (plan,) = await tx.plans.of([job.id])
    return left, right, plan


async def test_a_plan_of_stages_has_all_relations_that_they_read(stores: Stores) -> None:
    async with stores.begin() as tx:
        left, right, plan = await stored(tx)
        (again,) = await tx.plans.of([plan.id])
    (hidden,) = plan.hidden
    first, last = plan.table_scans
    assert (first.query, last.query) == (joined(left, right), newest(hidden.id))
    assert (first.upstream.id, [one.id for one in first.lookups]) == (left, [right])
    assert (last.upstream, last.lookups) == (hidden, ())
    assert (plan.written_by(first), plan.written_by(last)) == (hidden, plan.relation)
    assert JobPlan.model_validate_json(plan.model_dump_json()) == plan == again


async def test_a_job_reads_what_it_looks_up(stores: Stores) -> None:
    """I9: a drop of a relation finds the views that look up its rows."""
    async with stores.begin() as tx:
        left, right, plan = await stored(tx)
        readers = [[entry.relation.id for entry in await tx.catalog.dependents(one)] for one in (left, right)]
        entry = await tx.catalog.get(plan.relation.id)
        await tx.catalog.remove(plan.relation.id)
        left_over = await tx.catalog.dependents(right)
    assert readers == [[plan.relation.id], [plan.relation.id]]
    assert entry is not None
    assert entry.upstreams == (left, right)
    assert left_over == []


@ON_POSTGRES
async def test_f7_an_input_that_is_looked_up_is_named_with_its_stage(stores: Stores) -> None:
    """The operators of an Arrangement backfill look nothing up: each of their inputs has a scan."""
    async with stores.begin() as tx:
        left, right, plan = await stored(tx)
        own = await add_creating(tx, replace(new_stages(right, right), relation=relation("own")))
        (twice,) = await tx.plans.of([own.id])
        arranged = await add_creating(tx, replace(new_operators(left, right), relation=relation("arranged")))
        found = await tx.status.lookups([plan.id, own.id, arranged.id])
        order = await tx.status.backfill_order(plan.id)
    assert order == [("__m_1", "m")]
    assert found == {plan.table_scans[0].id: ["b"], twice.table_scans[0].id: ["b"]}


async def test_what_is_being_dropped_cannot_be_looked_up(stores: Stores) -> None:
    async with stores.begin() as tx:
        left, right = [await add_created(tx, new_table(name)) for name in "ab"]
        await tx.jobs.move(right.id, JobEvent.DROP_ASKED, now=NOW)
        with pytest.raises(Conflict, match=r'"b" cannot be read: it is Dropping'):
            await tx.jobs.add(new_stages(left.relation, right.relation), now=NOW)


async def test_the_total_of_a_later_stage_is_unknown_until_it_may_start(stores: Stores) -> None:
    """I6."""
    async with stores.begin() as tx:
        left, _, plan = await stored(tx)
        (hidden,), (first, last) = plan.hidden, plan.table_scans
        await tx.fragments.record([collected(5, keys={left: 7, hidden.id: 3})], now=NOW)
        before = {one.fragment: one.total for one in (await tx.fragments.scans([plan.id]))[plan.id]}
        await tx.fragments.release([last.id])
        after = {one.fragment: one.total for one in (await tx.fragments.scans([plan.id]))[plan.id]}
    assert before == {first.id: 7, last.id: None}
    assert after == {first.id: 7, last.id: 3}


async def test_a_stage_waits_for_the_stages_that_it_reads(stores: Stores) -> None:
    async with stores.begin() as tx:
        _, _, plan = await stored(tx)
        first, last = plan.table_scans
        held = await tx.fragments.held(DATABASE_GRAPH)
        before = {one.fragment: (one.waiting, one.awaits) for one in (await tx.fragments.scans([plan.id]))[plan.id]}
        (actor,) = first.actors
        done = report(int(actor.id), FragmentId(first.id), 5, finished=True)
        await tx.fragments.record([collected(5, done)], now=NOW)
        after = {one.fragment: (one.waiting, one.awaits) for one in (await tx.fragments.scans([plan.id]))[plan.id]}
    assert held == [plan.id]
    assert [(one.waiting) for one in plan.table_scans] == [False, True]
    assert before == {first.id: (False, ()), last.id: (True, ("__m_1",))}
    assert after == {first.id: (False, ()), last.id: (True, ())}


async def test_a_view_that_is_held_back_is_not_published_for_its_hidden_relations(stores: Stores) -> None:
    """I2: nobody sees those, so they say nothing of the view."""
    async with stores.begin() as tx:
        _, _, plan = await stored(tx)
        await tx.jobs.move(plan.id, JobEvent.FINISHED, now=NOW)
        await tx.visibility.publish(DATABASE_GRAPH, NEVER, now=NOW, held_back=[plan.relation.id])
        held_back = await tx.jobs.get(plan.id)
        await tx.visibility.publish(DATABASE_GRAPH, NEVER, now=NOW)
        shown = await tx.jobs.get(plan.id)
    assert held_back is not None
    assert shown is not None
    assert (held_back.published, shown.published) == (False, True)


async def test_operators_are_stored_beside_the_scans_of_their_inputs(stores: Stores) -> None:
    async with stores.begin() as tx:
        left, right = [(await add_created(tx, new_table(name))).relation for name in "ab"]
        job = await add_creating(tx, new_operators(left, right))
        ((plan,), staged) = await tx.plans.of([job.id]), await tx.plans.staged()
        scans = (await tx.fragments.scans([job.id]))[job.id]
        layouts = (await tx.actors.layouts([job.id]))[job.id]
        entry = await tx.catalog.get(job.relation)
    (hidden,), (first, last) = plan.hidden, plan.operators
    assert (first.query, last.query) == (joined(left, right), newest(hidden.id))
    assert ([one.id for one in first.inputs], [one.id for one in last.inputs]) == ([left, right], [hidden.id])
    assert (plan.written_by(first), plan.written_by(last)) == (hidden, plan.relation)
    assert [one.query for one in plan.table_scans] == [Prefix(operator=0, alias=one) for one in "ab"]
    assert [(one.upstream, one.waiting, one.awaits) for one in scans] == [("a", True, ("b",)), ("b", False, ())]
    assert list(layouts) == [one.id for one in plan.table_scans], "an operator has no parallelism of its own"
    assert (staged, entry and entry.upstreams) == ([job.id], (left, right))
    assert JobPlan.model_validate_json(plan.model_dump_json()) == plan
