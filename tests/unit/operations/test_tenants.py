"""A flood of one tenant delays another one's job by one job, and a quota ends the flood."""

from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from service.domain import quotas
from service.domain.errors import Conflict, Invalid, OverQuota
from service.domain.job import JobEvent, JobState
from service.domain.roles import Role
from service.operations.jobs import lifecycle, queue
from service.operations.jobs.standing import standing_of
from service.operations.statements import dispatch
from service.operations.verify import by_store, worker_rpc
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.records import NewJob, NewSplitScan
from service.protocol import constant
from service.protocol.ids import DATABASE_GRAPH, Epoch, JobId, RelationId, Term
from service.protocol.mutation import Add
from service.protocol.stage import Engine
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeTables, StateStore
from tests.support.http import ParsedHere, StillClock, changed, world_of
from tests.support.meta_store import LEASE, NOW, add_created, new_table, new_view, relation

A, B, ROOT = Asker("token 1 (a)", Role.OPERATOR), Asker("token 2 (b)", Role.OPERATOR), Asker("root", Role.ADMIN)


@dataclass
class Here:
    """A leader with one permit and a table."""

    world: World
    clock: StillClock
    term: Term
    table: RelationId
    asked: int = field(default=0)

    async def ask(self, who: Asker, name: str | None = None) -> JobId:
        self.asked += 1
        new = new_view(name or f"m{self.asked}", self.table)
        return (await lifecycle.create(self.world, new, if_not_exists=False, asked_by=who)).job

    async def start(self) -> list[str]:
        """Start what may start; return the jobs that are being created."""
        self.clock.seconds += 1
        await queue.start_jobs(self.world, term=self.term)
        return await self.names(JobState.CREATING)

    async def names(self, *states: JobState) -> list[str]:
        async with self.world.stores.begin() as tx:
            return [job.name for job in await tx.jobs.where(set(states))]

    async def move(self, job: JobId, event: JobEvent) -> None:
        async with self.world.stores.begin() as tx:
            await tx.jobs.move(job, event, now=NOW)

    async def set(self, name: str, value: int) -> None:
        async with self.world.stores.begin() as tx:
            await tx.parameters.set(name, str(value))

    async def places(self) -> list[JobId]:
        async with self.world.stores.begin() as tx:
            standing = await standing_of(tx, await tx.jobs.where({JobState.QUEUED}))
        return sorted(standing.places, key=lambda job: standing.places[job])


@pytest.fixture
async def here() -> Here:
    stores, tables, clock = FakeStores(lambda: NOW), FakeTables(StateStore()), StillClock()
    world = changed(world_of(stores, clock=clock), tables=tables, fences=FakeFences(tables.store))
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        term = await tx.leases.gain("a", lease=LEASE)
    assert term is not None
    await world.state_store.fences.claim(term)
    return Here(world, clock, term, table.relation)


async def test_the_job_of_another_tenant_starts_next_and_its_place_says_so(here: Here) -> None:
    flood = [await here.ask(A, f"a{number}") for number in range(30)]
    assert await here.start() == ["a0"]
    one = await here.ask(B, "b")
    await here.start()
    assert await here.places() == [one, *flood[1:]]
    await here.move(flood[0], JobEvent.FINISHED)
    assert await here.start() == ["b"]
    assert await here.places() == flood[1:]
    await here.move(one, JobEvent.FINISHED)
    two = await here.ask(B, "b2")
    assert await here.start() == ["a1"]
    assert await here.places() == [two, *flood[2:]]


async def test_i13_a_flood_of_tables_delays_the_table_of_another_by_a_few(here: Here) -> None:
    for number in range(40):
        await lifecycle.create(here.world, new_table(f"a{number}"), if_not_exists=False, asked_by=A)
    await here.start()
    started = await here.names(JobState.CREATING)
    assert started == [f"a{number}" for number in range(queue.STARTED_TOGETHER)]
    assert await here.names(JobState.QUEUED) == [], "the next call starts them"
    await lifecycle.create(here.world, new_table("b"), if_not_exists=False, asked_by=B)
    await here.ask(B, "m")
    assert {*await here.start()} >= {"b", "m"}
    for _ in range(4):
        await here.start()
    async with here.world.stores.begin() as tx:
        assert not await tx.jobs.where({JobState.INITIAL})
        adds = [one.mutation for one in await tx.commands.waiting(DATABASE_GRAPH) if isinstance(one.mutation, Add)]
    order = [plan.relation.name for one in adds for plan in one.jobs]
    assert order.index("b") <= queue.STARTED_TOGETHER + 1


async def test_a_quota_of_jobs_refuses_the_next_and_says_what_frees_one(here: Here) -> None:
    await here.set("operator_creating_jobs_max", 2)
    first, second = await here.ask(A, "one"), await here.ask(A, "two")
    await here.start()
    with pytest.raises(OverQuota) as refused:
        await here.ask(A, "three")
    assert str(refused.value) == (
        "token 1 (a) has 2 jobs that are queued or being created, and operator_creating_jobs_max is 2:"
        f" one (job {first}, Creating), two (job {second}, Queued)."
        " Another CREATE is accepted once enough of them are created, have failed or are cancelled (CANCEL JOBS)"
    )
    assert (refused.value.limit, refused.value.used, refused.value.retry_soon) == (2, 2, False)
    assert await here.names(*JobState) == ["t", "one", "two"], "nothing is left of it"
    with pytest.raises(Conflict, match="still being created"):
        await here.ask(A, "one")
    # Neither a table, nor another tenant, nor an admin is held to it.
    await lifecycle.create(here.world, new_table("u"), if_not_exists=False, asked_by=A)
    for who in (B, B, ROOT, ROOT, ROOT):
        await here.ask(who)
    await here.move(second, JobEvent.CANCEL_ASKED)
    await here.ask(A, "three")
    with pytest.raises(OverQuota):
        await here.ask(A, "four")
    await here.move(first, JobEvent.FINISHED)
    await here.ask(A, "four")


async def test_of_many_jobs_a_refusal_names_some(here: Here) -> None:
    for _ in range(8):
        await here.ask(A)
    await here.set("operator_creating_jobs_max", 1)
    with pytest.raises(OverQuota, match=r"has 8 jobs .* is 1: m1 \(.*, m5 \(job \d+, Initial\), 3 more\. Another"):
        await here.ask(A)


async def test_a8_a_long_statement_is_parsed_in_the_share_of_its_caller() -> None:
    parsers = ParsedHere()
    await dispatch.admitted(world_of(FakeStores(lambda: NOW), parsers=parsers), "show jobs", session={}, asked_by=B)
    assert parsers.callers == [B.actor]


@dataclass
class Described:
    """A reader that refuses every query, and knows who asked."""

    callers: list[str]
    caller: str = ""

    def of(self, caller: str) -> "Described":
        return Described(self.callers, caller)

    async def query(self, _sql: str, **_: object) -> NoReturn:
        self.callers.append(self.caller)
        raise Invalid("seen")

    describe = explain = query


@pytest.mark.parametrize(
    "text",
    [
        "create materialized view m as select id from t",
        "create materialized view m as select 1 as one",
        "create view m as select 1 as one",
        "create table m (id int primary key, n int default 1)",
        "select 1",
        "explain select 1",
    ],
)
async def test_a18_what_postgres_checks_is_checked_in_the_share_of_its_caller(here: Here, text: str) -> None:
    """The checks of all CREATEs took one share of the queries. One caller's CREATEs, and verifications, used it up."""
    callers: list[str] = []
    async with here.world.stores.begin() as tx:
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(0), now=NOW)
    world = changed(here.world, reader=Described(callers))
    with pytest.raises(Invalid, match="seen"):
        await dispatch.run(world, text, session={}, asked_by=B)
    assert callers == [B.actor]


async def test_a18_a_verification_by_the_store_takes_the_share_of_its_caller(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compare(world: World, _: object) -> NoReturn:
        await world.state_store.reader.query("select 1", row_limit=1, timeout_ms=1)
        raise AssertionError

    callers: list[str] = []
    async with here.world.stores.begin() as tx:
        view = await add_created(tx, new_view("v", here.table))
    monkeypatch.setattr(by_store, "compare", compare)
    with pytest.raises(Invalid, match="seen"):
        await worker_rpc.verify(changed(here.world, reader=Described(callers)), view.id, Engine.STORE, asked_by=B)
    assert callers == [B.actor]


def test_i13_the_rows_of_a_constant_view_count_as_its_plan() -> None:
    """Forty views of a megabyte each made every recovery fail: their rows were counted nowhere."""
    rows = constant.of_rows([("\x01" * 1000, "0")])
    job = NewJob(relation("v"), "", background=False, fragments=(NewSplitScan(actors=(((0, 0),),), connector=rows),))
    assert job.plan_bytes > 7_000


async def test_i13_the_plans_of_a_tenant_leave_room_for_those_of_others(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two views of one tenant had so long plans that the service took 4.3 GB, and no recovery ended."""
    size = new_view("m1", here.table).plan_bytes
    async with here.world.stores.begin() as tx:
        before = sum((await tx.queue.plan_bytes()).values())
    monkeypatch.setattr(quotas, "PLAN_BYTES_MAX", before + 5 * size)
    await here.ask(A, "m1")
    await here.ask(A, "m2")
    with pytest.raises(Invalid, match=rf"its plan has {size} bytes, all of token 1 \(a\) have {3 * size} with it"):
        await here.ask(A, "m3")
    await here.ask(B, "m4")
    assert await here.names(JobState.INITIAL) == ["m1", "m2", "m4"]
