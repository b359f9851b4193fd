"""NoShuffle jobs: their actors are those of their upstream, and none of them changes alone."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from service.domain.errors import Conflict, Invalid, MetaError
from service.domain.job import Job, JobEvent, JobState
from service.domain.parallelism import Adaptive, Fixed, Parallelism
from service.operations.jobs import lifecycle, rescaling
from service.operations.statements import dispatch
from service.operations.statements.outcome import Outcome
from service.ports.records import NewJob
from service.protocol.ids import DATABASE_GRAPH, JobId, WorkerId
from service.protocol.mutation import Update
from service.protocol.plan import ScanType, TableScanPlan
from service.protocol.vnodes import Runs
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, add_created, new_table, new_view, scan_of

pytestmark = pytest.mark.postgres

NO_SHUFFLE = {"streaming_use_snapshot_backfill": "off", "streaming_use_arrangement_backfill": "off"}
FOUR = Fixed(4)
BLOCKED = (
    "Cannot alter the job {} because it is blocked by creating unreschedulable backfill jobs: .* keeps its actors until"
    " it is created"
)


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        made.describe(database_url)
        yield made


async def run(leader: Leader, text: str, **session: str) -> Outcome:
    """Run a statement while every new job is queued, where a background CREATE ends."""
    done = asyncio.Event()

    async def queue() -> None:
        while not done.is_set():
            async with leader.stores.begin() as tx:
                for job in await tx.jobs.where({JobState.INITIAL}):
                    await tx.jobs.move(job.id, JobEvent.QUEUED, now=NOW)

    task = asyncio.create_task(queue())
    try:
        return await dispatch.run(leader.world, text, session={"background_ddl": "on", **session}, asked_by=A_TEST)
    finally:
        done.set()
        await task


async def shown(leader: Leader, new: NewJob) -> Job:
    """Store a job that is created, and readable."""
    async with leader.stores.begin() as tx:
        job = await add_created(tx, new)
    await leader.queue(None)
    await leader.barrier()
    return job


async def table_and_view(leader: Leader, parallelism: Parallelism, *, actors: int) -> Job:
    """A table `t`, and a view `v` over it; return the view's job."""
    table = await shown(leader, new_table("t"))
    return await shown(leader, replace(new_view("v", table.relation, parallelism=actors), parallelism=parallelism))


async def no_shuffle(leader: Leader, upstream: str, **session: str) -> tuple[JobId, TableScanPlan]:
    """Have a NoShuffle view `m` queued; return its job and its scan."""
    await run(leader, f"CREATE MATERIALIZED VIEW m AS SELECT id FROM {upstream}", **NO_SHUFFLE, **session)
    async with leader.stores.begin() as tx:
        entry = await tx.catalog.named("m")
    assert entry is not None
    return entry.job, await scan_of(leader.stores, entry.job)


def owned(scan: TableScanPlan) -> list[Runs]:
    return [actor.vnodes for actor in scan.actors]


async def alter(leader: Leader, job: JobId, parallelism: Parallelism = FOUR) -> None:
    await rescaling.alter(leader.world, job, {"parallelism": parallelism}, asked_by=A_TEST)


async def finish(leader: Leader, job: JobId) -> None:
    async with leader.stores.begin() as tx:
        await tx.jobs.move(job, JobEvent.STARTED, now=NOW)
        await tx.jobs.move(job, JobEvent.FINISHED, now=NOW)


async def test_over_a_table_there_is_one_actor(leader: Leader) -> None:
    await shown(leader, new_table("t"))
    job, scan = await no_shuffle(leader, "t")
    assert (scan.scan_type, owned(scan)) == (ScanType.BACKFILL, [((0, 7),)])
    async with leader.stores.begin() as tx:
        found = await tx.jobs.get(job)
    assert found is not None
    assert found.parallelism is None, "nothing is asked for: it keeps the actors it has"


@pytest.mark.parametrize("actors", [1, 3, 8])
async def test_over_a_view_there_are_its_actors_with_their_vnodes(leader: Leader, actors: int) -> None:
    view = await table_and_view(leader, Fixed(actors), actors=actors)
    _, scan = await no_shuffle(leader, "v")
    assert owned(scan) == owned(await scan_of(leader.stores, view.id))
    assert len(owned(scan)) == actors


async def test_an_upstream_that_is_being_altered_counts_with_the_actors_that_it_will_have(leader: Leader) -> None:
    view = await table_and_view(leader, Fixed(2), actors=2)
    await alter(leader, view.id, Fixed(5))
    _, scan = await no_shuffle(leader, "v")
    assert isinstance((await leader.barrier()).mutation, Update)
    assert owned(scan) == owned(await scan_of(leader.stores, view.id))
    assert len(owned(scan)) == 5


async def test_an_upstream_that_is_altered_meanwhile_refuses_the_job(leader: Leader) -> None:
    """Between the plan and the transaction that stores the job."""
    view = await table_and_view(leader, Fixed(2), actors=2)
    planned = replace(new_view("m", view.relation, parallelism=2))
    scan = replace(planned.fragments[0], scan_type=ScanType.BACKFILL)
    await alter(leader, view.id, Fixed(5))
    with pytest.raises(Conflict, match="the parallelism of v has just been changed"):
        await lifecycle.create(leader.world, replace(planned, fragments=(scan,)), if_not_exists=False, asked_by=A_TEST)
    async with leader.stores.begin() as tx:
        assert await tx.catalog.named("m") is None


@pytest.mark.parametrize(
    ("variable", "value", "wanted"),
    [
        ("streaming_parallelism", "3", 3),
        ("streaming_parallelism_for_materialized_view", "1", 1),
        ("streaming_parallelism_for_backfill", "4", 4),
        ("streaming_parallelism", "bounded(1)", 1),
    ],
)
async def test_a_parallelism_of_its_own_is_refused(leader: Leader, variable: str, value: str, wanted: int) -> None:
    await table_and_view(leader, Fixed(2), actors=2)
    with pytest.raises(Invalid, match=f"the parallelism of its upstream: that of v is 2, not {wanted}"):
        await no_shuffle(leader, "v", **{variable: value})
    _, scan = await no_shuffle(leader, "v", **{variable: "2" if value != "bounded(1)" else "adaptive"})
    assert len(owned(scan)) == 2


async def test_neither_it_nor_its_upstream_is_rescaled_alone(leader: Leader) -> None:
    view = await table_and_view(leader, Fixed(2), actors=2)
    job, scan = await no_shuffle(leader, "v")
    for one in (job, view.id):
        with pytest.raises(Conflict, match=BLOCKED.format(one)):
            await alter(leader, one)
    await finish(leader, job)
    for one in (job, view.id):
        with pytest.raises(Conflict, match=f"Cannot alter the job {one} because .* tied its actors: m"):
            await alter(leader, one)
        with pytest.raises(Conflict, match="tied"):
            await rescaling.alter(leader.world, one, {"backfill_parallelism": Fixed(4)}, asked_by=A_TEST)
    async with leader.stores.begin() as tx:
        assert await tx.commands.waiting(DATABASE_GRAPH) == []
    assert owned(await scan_of(leader.stores, job)) == owned(scan)
    async with leader.stores.begin() as tx:
        await tx.jobs.move(job, JobEvent.DROP_ASKED, now=NOW)
    await alter(leader, view.id, Fixed(4))
    assert isinstance((await leader.barrier()).mutation, Update)


async def test_an_adaptive_upstream_waits_for_other_slots_until_nobody_is_tied_to_it(leader: Leader) -> None:
    view = await table_and_view(leader, Adaptive(), actors=2)
    job, _ = await no_shuffle(leader, "v")
    await finish(leader, job)
    other = await leader.replaced(WorkerId("w-5"), parallelism=5)
    await leader.barrier(worker=other)
    async with leader.stores.begin() as tx:
        assert await tx.commands.waiting(DATABASE_GRAPH) == []
        await tx.jobs.move(job, JobEvent.DROP_ASKED, now=NOW)
    await leader.queue(None)
    await leader.barrier(worker=other)
    assert isinstance((await leader.barrier(worker=other)).mutation, Update)
    assert len(owned(await scan_of(leader.stores, view.id))) == 5


async def test_explain_tells_the_plan_and_creates_nothing(leader: Leader) -> None:
    await table_and_view(leader, Fixed(2), actors=2)
    create = (
        "CREATE MATERIALIZED VIEW m WITH (backfill_order = FIXED(t -> v)) AS"
        " SELECT id FROM v WHERE id > 3 UNION ALL SELECT id + 1 FROM t"
    )
    told = await run(leader, f"EXPLAIN {create}", **NO_SHUFFLE)
    assert told.columns == (("QUERY PLAN", "text"),)
    (made, *scans, strategy, order) = (line for (line,) in told.rows)
    assert made.endswith("_key_1(hidden)], key: [_key_branch, _key_0, _key_1], vnodes: 8 }")
    history = "spark from 100000 rows on, store below: jobs of Spark would take longer than the rows"
    changes = "spark from 1000000 changed rows of an epoch on, store below"
    facts = "target: m, operator: projection, engine: by rows, type: BACKFILL"
    ids = 'CAST("{0}"."name" AS TEXT), CAST("{0}"."id" AS BIGINT)'
    assert scans == [
        f"├─StreamStage {{ stage: 1, {facts}, parallelism: 2 }}",
        f"│   engine of history: {history}",
        f"│   engine of changes: {changes}",
        f'│   projection: CAST("i0"."id" AS BIGINT), CAST(CAST(0 AS SMALLINT) AS SMALLINT), {ids.format("i0")}',
        "│   input: v i0, driver, unknown rows",
        '│     where: ("i0"."id" > 3)',
        "│   one changed row of v i0: rewrites at most 1 row",
        f"└─StreamStage {{ stage: 2, {facts}, parallelism: 1 }}",
        f"    engine of history: {history}",
        f"    engine of changes: {changes}",
        f'    projection: CAST(("i1"."id" + 1) AS BIGINT), CAST(CAST(1 AS SMALLINT) AS SMALLINT), {ids.format("i1")}',
        "    input: t i1, driver, unknown rows",
        "    one changed row of t i1: rewrites at most 1 row",
    ]
    assert strategy.startswith("Backfill strategy: BACKFILL, because streaming_use_snapshot_backfill and ")
    assert order == "Backfill order: FIXED(t -> v)"
    usual = await run(leader, f"EXPLAIN {create}")
    assert usual.rows[-2][0].startswith(f"Backfill strategy: {ScanType.SNAPSHOT_BACKFILL}, because it is the default")
    chosen = await run(leader, f"EXPLAIN {create}", stage_engine="store", **NO_SHUFFLE)
    assert ("    engine of history: store, because stage_engine is store",) in chosen.rows
    async with leader.stores.begin() as tx:
        assert await tx.catalog.named("m") is None
        assert len(await tx.jobs.where()) == 2


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("CREATE MATERIALIZED VIEW v AS SELECT id FROM t", Conflict, 'materialized view with name "v" exists'),
        ("CREATE MATERIALIZED VIEW m AS SELECT nope FROM t", Invalid, 'column "nope" does not exist'),
        ("CREATE MATERIALIZED VIEW m AS SELECT id FROM nope", MetaError, 'relation "nope" does not exist'),
    ],
)
async def test_explain_refuses_what_create_refuses(
    leader: Leader, query: str, error: type[MetaError], message: str
) -> None:
    await table_and_view(leader, Fixed(2), actors=2)
    for text in (query, f"EXPLAIN {query}"):
        with pytest.raises(error, match=message):
            await run(leader, text)
    skipped = await run(leader, "EXPLAIN CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT id FROM t")
    assert skipped.rows == (('materialized view "v" already exists, skipping',),)
