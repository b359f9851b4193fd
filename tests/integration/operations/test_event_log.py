"""Who asked for what, and at which epoch it took effect: all of it is in the event log."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from service.operations.commands import limits, mutations
from service.operations.jobs import lifecycle
from service.operations.jobs.lifecycle import create
from service.operations.parameters import alter
from service.ports.audit import itself
from service.protocol.ids import DATABASE_GRAPH
from service.protocol.mutation import Pause
from tests.support.leading import Leader, leading
from tests.support.meta_store import WORKER, add_created, new_table, new_view, report

pytestmark = pytest.mark.postgres

ASKED_BY = "http 192.0.2.1"


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


async def events(leader: Leader) -> list[tuple[str, dict[str, Any]]]:
    async with leader.stores.begin() as tx:
        return [(one.kind, dict(one.facts)) for one in await tx.events.since(0, limit=1000)]


async def told(leader: Leader, kind: str) -> dict[str, Any]:
    (facts,) = [facts for one, facts in await events(leader) if one == kind]
    return facts


async def test_a_command_is_told_when_it_is_asked_and_when_it_is_carried(leader: Leader) -> None:
    command = await mutations.inject(leader.world, Pause(), asked_by=itself(ASKED_BY))
    assert await told(leader, "mutation.asked") == {"command": command, "asked_by": ASKED_BY, "type": "pause"}
    epoch = (await leader.barrier()).curr
    assert await told(leader, "mutation.applied") == {
        "command": command,
        "asked_by": ASKED_BY,
        "type": "pause",
        "epoch": str(epoch),
    }


async def test_a_limit_is_told_with_what_it_was_asked_to_be(leader: Leader) -> None:
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    await limits.throttle_job(leader.world, job, 7, asked_by=itself(ASKED_BY))
    facts = await told(leader, "mutation.asked")
    assert (facts["type"], list(facts["fragments"].values()), facts["asked_by"]) == ("throttle", [7], ASKED_BY)


async def test_a_job_is_told_from_its_asking_to_its_end(leader: Leader) -> None:
    async with leader.stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
    await create(leader.world, new_view("asked", table.relation), if_not_exists=False, asked_by=itself(ASKED_BY))
    facts = await told(leader, "job.asked")
    assert (facts["name"], facts["statement"], facts["asked_by"]) == (
        "asked",
        "CREATE MATERIALIZED VIEW asked",
        ASKED_BY,
    )
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    async with leader.stores.begin() as tx:
        (plan,) = await tx.plans.of([job])
    scan = plan.fragments[0]
    await leader.queue(None)
    ended = [report(actor.id, scan.id, 1, finished=True) for actor in scan.actors]
    epoch = (await leader.barrier(*ended)).curr
    assert (await told(leader, "job.created"))["epoch"] == str(epoch)


async def test_a_cancel_is_told_with_who_asked_and_when_it_was_done(leader: Leader) -> None:
    (job,), _ = await leader.add_views(1, named="m")
    await leader.barrier()
    # The leader is this test, which stops nothing meanwhile: the call gives up waiting, and the stop stays queued.
    assert await lifecycle.cancel(leader.world, [job], asked_by=itself(ASKED_BY)) == [job]
    epoch = (await leader.barrier()).curr
    assert (await told(leader, "job.cancel_asked"))["asked_by"] == ASKED_BY
    assert (await told(leader, "job.cancelled"))["epoch"] == str(epoch)


async def test_a_recovery_is_told_from_who_asked_to_its_first_epoch(leader: Leader) -> None:
    await leader.queue(None)
    await leader.barrier()
    await mutations.recover(leader.world, asked_by=itself(ASKED_BY))
    assert await told(leader, "recovery.asked") == {
        "graph": DATABASE_GRAPH,
        "reason": "adhoc recovery",
        "asked_by": ASKED_BY,
    }
    await leader.look()
    await leader.look()
    first = await leader.barrier(worker=WORKER)
    assert (await told(leader, "graph.recovering"))["reason"] == "adhoc recovery"
    assert await told(leader, "graph.recovered") == {
        "graph": DATABASE_GRAPH,
        "generation": first.generation,
        "epoch": str(first.curr),
    }


async def test_a_parameter_is_told_with_who_set_it(leader: Leader) -> None:
    await alter(leader.world, {"barrier_interval_ms": "500"}, asked_by=itself(ASKED_BY))
    assert await told(leader, "parameters.altered") == {"barrier_interval_ms": 500, "asked_by": ASKED_BY}
