"""The adaptive limit over barriers: what is seen and asked for, and what a user, a pause or a recovery does to it."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from service.domain.adaptive import AUTO, HARD, MILD, START
from service.domain.errors import Deposed, Invalid, Unavailable
from service.domain.graph import Inject, Wait
from service.domain.job import JobEvent
from service.domain.probes import ProbeUrl
from service.operations.commands import limits, mutations
from service.operations.parameters import alter
from service.operations.upkeep.adaptive import adapt, graphs
from service.ports.health import ProbeFailed, StoreHealth
from service.ports.limits import Held
from service.ports.state_store import QueryResult
from service.ports.status import AutoLimit, LimitChange
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, FragmentId, JobId
from service.protocol.mutation import Add, Pause, Resume, Stop, Throttle
from service.protocol.plan import TableScanPlan
from tests.support.http import StillClock, changed
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, WORKER, add_created, add_creating, new_table, new_view, report

pytestmark = pytest.mark.postgres

SECOND = timedelta(seconds=1)
CALM = StoreHealth(connections=10, connections_max=100, lag_bytes=None)


@dataclass
class Around:
    """The world around the backfill, as the test says it is."""

    health: StoreHealth | Unavailable = CALM
    http: int | ProbeFailed = 200
    sql: object = True
    asked: list[ProbeUrl] = field(default_factory=list[ProbeUrl])

    async def measure(self) -> StoreHealth:
        if isinstance(self.health, Unavailable):
            raise self.health
        return self.health

    async def status(self, url: ProbeUrl, **_: object) -> int:
        self.asked.append(url)
        if isinstance(self.http, ProbeFailed):
            raise self.http
        return self.http

    async def query(self, *_: object, **__: object) -> QueryResult:
        if isinstance(self.sql, Exception):
            raise self.sql
        return QueryResult((("ok", "boolean"),), ((self.sql,),), truncated=False)


@dataclass
class Backfill:
    """A creating view with one scan of one actor, which reads as fast as its limit lets it."""

    leader: Leader
    around: Around
    clock: StillClock
    job: JobId
    scan: TableScanPlan
    rows: int = 0

    @property
    def fragment(self) -> FragmentId:
        return self.scan.id

    async def barrier(self, seconds: float = 0.5, *, reads: bool = True) -> Barrier:
        """Let the interval pass, have the next barrier published after so many seconds, and limits adapted."""
        barrier = await self.published(seconds, reads=reads)
        await self.adapt()
        return barrier

    async def published(self, seconds: float = 0.5, *, reads: bool = True) -> Barrier:
        self.clock.wall += SECOND
        limit = (await self.held()).rate_limit or 0
        async with self.leader.stores.begin() as tx:
            await tx.workers.seen(WORKER, now=self.clock.now())
        assert isinstance(await self.leader.look(), Inject)
        self.clock.wall += timedelta(seconds=seconds)
        self.rows += int(limit * (1 + seconds)) if reads else 0
        return await self.leader.answered(report(self.scan.actors[0].id, self.fragment, self.rows))

    async def adapt(self) -> int:
        return await adapt(self.leader.world, DATABASE_GRAPH, term=self.leader.term)

    async def held(self) -> Held:
        async with self.leader.stores.begin() as tx:
            return (await tx.limits.hold([self.fragment]))[self.fragment]

    async def limit(self) -> int | None:
        return (await self.held()).rate_limit

    async def shown(self) -> AutoLimit | None:
        async with self.leader.stores.begin() as tx:
            return (await tx.status.adaptive_limits([self.job])).get(self.fragment)

    async def changes(self) -> list[LimitChange]:
        """Oldest first."""
        async with self.leader.stores.begin() as tx:
            return [*await tx.status.limit_changes(self.job, limit=100)][::-1]

    async def recover(self) -> Barrier:
        async with self.leader.stores.begin() as tx:
            await tx.workers.seen(WORKER, now=self.clock.now())
        await self.leader.recover()
        return await self.leader.barrier()

    async def until(self, limit: int, *, above: bool = False) -> None:
        """Have barriers published until the limit in force is this one, or (`above`) at least this."""
        for _ in range(40):
            present = await self.limit() or 0
            if present == limit or (above and present > limit):
                return
            await self.barrier()
        raise AssertionError((limit, await self.changes()))


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


@pytest.fixture
async def backfill(leader: Leader) -> Backfill:
    around, clock = Around(), StillClock()
    ports: dict[str, Any] = {"gauge": around, "http_probe": around, "reader": around, "clock": clock}
    leader.world = changed(leader.world, **ports)
    async with leader.stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        new = new_view("m", table.relation, parallelism=1, rate_limit=START)
        new = replace(new, fragments=tuple(replace(one, auto=True) for one in new.table_scans))
        job = (await add_creating(tx, new)).id
        (plan,) = await tx.plans.of([job])
    await leader.queue(Add(jobs=(plan,)))
    return Backfill(leader, around, clock, job, plan.table_scans[0])


def throttles(barrier: Barrier) -> dict[FragmentId, int | None] | None:
    return barrier.mutation.fragments if isinstance(barrier.mutation, Throttle) else None


async def test_it_doubles_with_every_second_barrier_until_one_is_slow(backfill: Backfill) -> None:
    carried = [throttles(await backfill.barrier()) for _ in range(9)]
    limits = [None if one is None else one[backfill.fragment] for one in carried]
    # The first barrier adds the job, and before the second there is nothing to compare with.
    assert limits == [None, None, 2 * START, None, 4 * START, None, 8 * START, None, 16 * START]
    assert await backfill.limit() == 16 * START
    await backfill.barrier(1.2)
    shown = await backfill.shown()
    assert shown is not None
    assert (shown.move, shown.signal) == ("held", "barrier_latency"), "one slow barrier says little"
    await backfill.barrier(1.2)
    shown = await backfill.shown()
    assert shown is not None
    assert (shown.phase, shown.move, shown.signal) == ("even steps", "lowered", "barrier_latency")
    assert shown.reason is not None
    assert shown.reason.endswith("took 1.20 s of 1.00 s")
    assert throttles(await backfill.barrier()) == {backfill.fragment: round(16 * START * MILD)}
    assert [change.after for change in await backfill.changes()] == [
        *(START * 2**step for step in range(1, 5)),
        round(16 * START * MILD),
    ]


async def test_a_change_waits_for_an_ordinary_barrier_and_forces_none(backfill: Backfill) -> None:
    for _ in range(2):
        await backfill.barrier()
    waiting = await backfill.leader.look()
    assert isinstance(waiting, Wait)
    assert waiting.reason == "barrier interval"
    command = await mutations.inject(backfill.leader.world, Pause(), asked_by=A_TEST)
    assert isinstance(await backfill.leader.look(), Inject), "a user's command does"
    barrier = await backfill.leader.answered()
    assert throttles(barrier) == {backfill.fragment: 2 * START}, "in order"
    assert await backfill.leader.epoch_of(command) is None


async def test_the_history_says_which_epoch_made_each_change_effective(backfill: Backfill) -> None:
    await backfill.barrier()
    await backfill.barrier()
    (change,) = await backfill.changes()
    assert (change.epoch, change.before, change.after, change.signal) == (None, START, 2 * START, None)
    assert change.reason == "all signals are healthy; slow start"
    carrier = await backfill.barrier()
    (change,) = await backfill.changes()
    assert change.epoch == carrier.curr
    shown = await backfill.shown()
    assert shown is not None
    assert shown.effective_epoch == str(carrier.curr)
    async with backfill.leader.stores.begin() as tx:
        kinds = [(one.kind, one.facts) for one in await tx.events.since(0, limit=100)]
    (facts,) = [facts for kind, facts in kinds if kind == "limit.adapted"]
    assert (facts["before"], facts["after"], facts["fragment"]) == (START, 2 * START, backfill.fragment)
    applied = [facts for kind, facts in kinds if kind == "mutation.applied" and facts["type"] == "throttle"]
    assert [(one["asked_by"], one["epoch"]) for one in applied] == [("the adaptive limit", str(carrier.curr))]


async def test_nothing_is_decided_before_the_last_change_was_seen(backfill: Backfill) -> None:
    """However bad it is meanwhile: one decrease for one effect."""
    backfill.around.sql = False
    await set_probe(backfill)
    await backfill.barrier()
    assert await backfill.adapt() == 0, "nothing new was published"
    assert throttles(await backfill.barrier()) == {backfill.fragment: START * HARD}
    assert throttles(await backfill.barrier()) is None, "the barrier before carried the change: it shows no effect yet"
    assert throttles(await backfill.barrier()) == {backfill.fragment: START * HARD * HARD}


async def set_probe(backfill: Backfill, **more: str) -> None:
    await alter(backfill.leader.world, {"backfill_auto_probe_sql": "select ok from probe", **more}, asked_by=A_TEST)


async def test_a_probe_takes_it_to_the_floor_and_it_comes_back(backfill: Backfill) -> None:
    await set_probe(backfill)
    await backfill.until(8 * START)
    backfill.around.sql = False
    await backfill.until(100)
    shown = await backfill.shown()
    assert shown is not None
    assert (shown.signal, shown.reason) == ("sql_probe", "the query gave false")
    assert [(one.signal, one.healthy) for one in shown.readings] == [
        ("barrier_latency", True),
        ("replication_lag", True),
        ("connections", True),
        ("sql_probe", False),
    ]
    for _ in range(3):
        assert throttles(await backfill.barrier()) is None, "at the floor nothing is asked for any more"
    backfill.around.sql = True
    await backfill.until(8 * START, above=True)


@pytest.mark.parametrize(
    ("name", "value", "signal", "said"),
    [
        ("health", StoreHealth(91, 100, None), "connections", "91 of 100 connections are in use (91 % of 90 %)"),
        ("health", StoreHealth(1, 100, 65 << 20), "replication_lag", "a replica is 65.0 MB behind of 64 MB"),
        ("health", Unavailable("the state store is away"), "connections", "the state store is away"),
        ("http", 503, "http_probe", "http://***@probe:9/***?*** answered 503, not 200"),
        ("http", ProbeFailed("http://probe could not be reached"), "http_probe", "http://probe could not be reached"),
        ("sql", False, "sql_probe", "the query gave false"),
        ("sql", 12.5, "sql_probe", "the query gave 12.5 of 10"),
        ("sql", None, "sql_probe", "the query gave neither a boolean nor a number"),
        ("sql", Invalid('no relation "probe"'), "sql_probe", 'the query failed: no relation "probe"'),
        ("sql", Unavailable("busy"), "sql_probe", "the query failed: busy"),
    ],
)  # fmt: skip
async def test_every_signal_is_named_with_what_it_said(
    backfill: Backfill, name: str, value: object, signal: str, said: str
) -> None:
    url = "http://somebody:hunter2@probe:9/health?token=abc"
    await set_probe(backfill, backfill_auto_probe_http=url, backfill_auto_probe_sql_max="10")
    await backfill.barrier()
    await backfill.barrier()
    assert (await backfill.changes())[-1].signal is None, "all is well"
    assert (backfill.around.asked[0].user, backfill.around.asked[0].text) == ("somebody:hunter2", url)
    setattr(backfill.around, name, value)
    await backfill.barrier()
    await backfill.barrier()
    change = (await backfill.changes())[-1]
    assert (change.signal, change.reason) == (signal, said)
    assert change.after < change.before


async def test_what_is_not_used_is_not_raised(backfill: Backfill) -> None:
    for _ in range(5):
        await backfill.barrier(reads=False)
    shown = await backfill.shown()
    assert shown is not None
    assert (await backfill.limit(), shown.move) == (START, "held")
    assert shown.reason == "all signals are healthy; only 0 rows/s are used"


async def test_a_recovery_goes_on_from_the_limit_that_was_committed(backfill: Backfill) -> None:
    """I3, I4."""
    await backfill.until(4 * START)
    barrier = await backfill.recover()
    assert isinstance(barrier.mutation, Add)
    (plan,) = [plan for plan in barrier.mutation.jobs if plan.id == backfill.job]
    assert plan.table_scans[0].rate_limit == 4 * START
    await backfill.until(8 * START)
    assert min(change.after for change in await backfill.changes()) == 2 * START, "not from the beginning"


async def test_a_change_whose_epoch_never_was_is_carried_again(backfill: Backfill) -> None:
    await backfill.barrier()
    await backfill.barrier()
    backfill.clock.wall += SECOND
    assert throttles(await backfill.leader.injected()) == {backfill.fragment: 2 * START}
    barrier = await backfill.recover()
    assert isinstance(barrier.mutation, Add)
    assert await backfill.limit() == START
    assert throttles(await backfill.barrier()) == {backfill.fragment: 2 * START}
    assert await backfill.limit() == 2 * START


async def test_a_users_number_ends_it(backfill: Backfill) -> None:
    """I4: also where a change was asked for before, and none is asked for after."""
    await backfill.barrier()
    await backfill.barrier()
    await limits.throttle_job(backfill.leader.world, backfill.job, 77, asked_by=A_TEST)
    # One barrier carries both, in the order of asking.
    assert throttles(await backfill.barrier()) == {backfill.fragment: 77}
    held = await backfill.held()
    assert (held.rate_limit, held.auto, held.present) == (77, False, None)
    assert await graphs(backfill.leader.world) == []
    for _ in range(4):
        assert throttles(await backfill.barrier()) is None
    assert await backfill.shown() is None
    assert await backfill.changes(), "what was is still told"


async def test_a_users_number_that_is_queued_is_not_overtaken(backfill: Backfill) -> None:
    await backfill.barrier()
    await backfill.published()
    await limits.throttle_fragment(backfill.leader.world, backfill.fragment, None, asked_by=A_TEST)
    assert await backfill.adapt() == 0
    assert throttles(await backfill.barrier()) == {backfill.fragment: None}
    assert throttles(await backfill.barrier()) is None
    assert (await backfill.held()).auto is False


async def test_auto_is_asked_for_and_begins_low(backfill: Backfill) -> None:
    world = backfill.leader.world
    await limits.throttle_job(world, backfill.job, 50_000, asked_by=A_TEST)
    await limits.throttle_job(world, backfill.job, AUTO, asked_by=A_TEST)
    await backfill.barrier()
    assert throttles(await backfill.barrier()) == {backfill.fragment: START}
    assert (await backfill.held()).auto
    assert await graphs(world) == [DATABASE_GRAPH]
    await backfill.until(4 * START)
    again = await limits.throttle_job(world, backfill.job, AUTO, asked_by=A_TEST)
    assert throttles(await backfill.barrier()) in ({}, {backfill.fragment: 8 * START})
    await backfill.barrier()
    assert await backfill.leader.epoch_of(again) is not None
    assert (await backfill.limit() or 0) >= 4 * START, "it goes on"


async def test_a_user_may_say_from_where_it_is_adapted(backfill: Backfill) -> None:
    """What was learned below another number is forgotten."""
    backfill.around.sql = False
    await set_probe(backfill)
    await backfill.until(100)
    backfill.around.sql = True
    asked = Throttle(fragments={backfill.fragment: 9_000}, auto=(backfill.fragment,))
    await mutations.inject(backfill.leader.world, asked, asked_by=A_TEST)
    assert throttles(await backfill.barrier()) == {backfill.fragment: 9_000}
    held, shown = await backfill.held(), await backfill.shown()
    assert shown is not None
    assert (held.rate_limit, held.auto, held.present, shown.phase) == (9_000, True, 9_000, "slow start")
    await backfill.until(18_000)


async def test_pausing_all_holds_it_and_resuming_goes_on(backfill: Backfill) -> None:
    await backfill.until(4 * START)
    await mutations.inject(backfill.leader.world, Pause(), asked_by=A_TEST)
    for _ in range(5):
        await backfill.barrier(3.0)
    paused_at = await backfill.limit()
    assert paused_at in (4 * START, 8 * START)
    await mutations.inject(backfill.leader.world, Resume(), asked_by=A_TEST)
    await backfill.until(16 * START)


async def test_pausing_the_job_leaves_it_adaptive(backfill: Backfill) -> None:
    await backfill.until(4 * START)
    await limits.pause_job(backfill.leader.world, backfill.job, asked_by=A_TEST)
    await limits.pause_job(backfill.leader.world, backfill.job, asked_by=A_TEST)
    for _ in range(6):
        await backfill.barrier()
    held = await backfill.held()
    assert (held.rate_limit, held.auto) == (0, True)
    await limits.resume_job(backfill.leader.world, backfill.job, asked_by=A_TEST)
    barrier = await backfill.barrier()
    resumed = throttles(barrier)
    assert resumed is not None
    assert (resumed[backfill.fragment] or 0) >= 4 * START
    await backfill.until(16 * START)


@pytest.mark.parametrize(
    ("asked", "resumed"),
    [
        ((5, "pause", "resume"), 5),
        ((5, "pause", "pause", "resume"), 5),
        ((0, "pause", "resume"), 0),
        ((None, "pause", "resume"), None),
        ((5, "pause", 9), 9),
        ((5, "pause", 9, "resume"), 9),
        ((5, "pause", "resume", "pause", "resume"), 5),
        ((5, "resume"), 5),
        ((5, "pause", "resume", "resume"), 5),
        ((0, "resume"), None),
    ],
)
async def test_a_job_resumes_with_the_limit_that_its_pause_held_back(
    backfill: Backfill, asked: Sequence[int | str | None], resumed: int | None
) -> None:
    """I4."""
    world = backfill.leader.world
    for one in asked:
        match one:
            case "pause":
                await limits.pause_job(world, backfill.job, asked_by=A_TEST)
            case "resume":
                await limits.resume_job(world, backfill.job, asked_by=A_TEST)
            case int() | None:
                await limits.throttle_job(world, backfill.job, one, asked_by=A_TEST)
            case _:
                raise AssertionError(one)
        await backfill.barrier()
    for _ in range(2):
        await backfill.barrier()
    held = await backfill.held()
    assert (held.rate_limit, held.auto, held.paused) == (resumed, False, False)


async def test_bounds_that_are_altered_are_kept_at_the_next_look(backfill: Backfill) -> None:
    await backfill.until(4 * START)
    await alter(backfill.leader.world, {"backfill_auto_ceiling": "3900"}, asked_by=A_TEST)
    await backfill.until(3900)
    with pytest.raises(Invalid, match="is above backfill_auto_ceiling"):
        await alter(backfill.leader.world, {"backfill_auto_floor": "4000"}, asked_by=A_TEST)
    await alter(
        backfill.leader.world,
        {"backfill_auto_floor": "20000", "backfill_auto_ceiling": "30000"},
        asked_by=A_TEST,
    )
    await backfill.until(20_000)


async def test_a_job_that_is_stopped_takes_its_changes_with_it(backfill: Backfill) -> None:
    await backfill.barrier()
    await backfill.barrier()
    async with backfill.leader.stores.begin() as tx:
        await tx.jobs.move(backfill.job, JobEvent.CANCEL_ASKED, now=backfill.clock.now())
    await mutations.inject(backfill.leader.world, Stop(jobs=(backfill.job,)), asked_by=A_TEST)
    backfill.clock.wall += SECOND
    for _ in range(2):
        await backfill.leader.barrier()
    assert await backfill.leader.state_of(backfill.job) == "Cancelled"
    assert await backfill.changes() == []
    assert await backfill.adapt() == 0


async def test_a_deposed_leader_adapts_nothing(backfill: Backfill) -> None:
    """I7."""
    await backfill.barrier()
    await backfill.published()
    async with backfill.leader.stores.begin() as tx:
        await tx.leases.release("a test")
        assert await tx.leases.gain("another", lease=SECOND * 60) is not None
    with pytest.raises(Deposed):
        await backfill.adapt()
    assert await backfill.changes() == []
