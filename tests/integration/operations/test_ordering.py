"""The backfill order over barriers: a scan starts when everything before it is through, whatever happens meanwhile."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
from sqlalchemy import text

from service.domain.errors import Invalid
from service.domain.order import Order
from service.operations.commands import mutations
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, FragmentId, JobId, RelationId
from service.protocol.mutation import Add, Mutation, StartFragmentBackfill, Stop
from service.protocol.plan import TableScanPlan
from service.protocol.report import ActorReport
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, add_created, add_creating, new_table, new_view, stores_on

pytestmark = pytest.mark.postgres


@dataclass
class Backfill:
    """A creating job that scans tables, each with two actors, and a worker that says when they finish."""

    leader: Leader
    job: JobId
    scans: dict[str, FragmentId]
    """By name: the table's, and behind it a number where the table is scanned again."""
    plans: dict[FragmentId, TableScanPlan]
    told: set[FragmentId] = field(default_factory=set[FragmentId])

    async def barrier(self, *finished: str, actors: int = 2) -> Barrier:
        """Have the next barrier committed; in it so many actors of these scans finish."""
        await self.leader.queue(None)
        return await self.leader.barrier(*self.reports(*finished, actors=actors))

    def reports(self, *finished: str, actors: int = 2) -> list[ActorReport]:
        ended = [self.plans[self.scans[name]] for name in finished]
        return [
            ActorReport(actor=actor.id, fragment=scan.id, rows=1, finished=True)
            for scan in ended
            for actor in scan.actors[:actors]
        ]

    async def started(self, *finished: str, actors: int = 2) -> list[str] | None:
        """Have a barrier committed in which these finish; return what the barrier after it starts."""
        await self.barrier(*finished, actors=actors)
        return self.starts(await self.barrier())

    def starts(self, barrier: Barrier) -> list[str] | None:
        if not isinstance(barrier.mutation, StartFragmentBackfill):
            assert barrier.mutation is None
            return None
        return [name for name, scan in self.scans.items() if scan in barrier.mutation.fragments]

    async def waiting(self) -> list[str]:
        """Return the scans that wait, as stored: what the next generation would start with."""
        async with self.leader.stores.begin() as tx:
            (plan,) = await tx.plans.of([self.job])
        return self.held(plan.table_scans)

    def held(self, scans: tuple[TableScanPlan, ...]) -> list[str]:
        held = {scan.id for scan in scans if scan.waiting}
        return [name for name, scan in self.scans.items() if scan in held]

    async def first(self) -> list[str]:
        """Recover; return what waits in the plan that the new generation starts with."""
        await self.leader.recover()
        barrier = await self.leader.barrier()
        assert isinstance(barrier.mutation, Add)
        (plan,) = [job for job in barrier.mutation.jobs if job.id == self.job]
        return self.held(plan.table_scans)

    async def queued(self) -> list[list[str]]:
        """Return what waits to be carried: the scans that each start names."""
        async with self.leader.stores.begin() as tx:
            waiting = [command.mutation for command in await tx.commands.waiting(DATABASE_GRAPH)]
        return [
            [name for name, scan in self.scans.items() if scan in mutation.fragments]
            for mutation in waiting
            if isinstance(mutation, StartFragmentBackfill)
        ]


@pytest.fixture
async def leader(database_url: str) -> AsyncGenerator[Leader]:
    async with leading(database_url) as made:
        yield made


async def backfill(leader: Leader, scans: str, *arrows: str, view: str = "m") -> Backfill:
    """Start a view that scans these tables (one letter each), in the order that the arrows give ("ab": a before b)."""
    async with leader.stores.begin() as tx:
        tables: dict[str, RelationId] = {}
        for letter in sorted(set(scans)):
            known = await tx.catalog.named(letter)
            tables[letter] = (await add_created(tx, new_table(letter))).relation if known is None else known.relation.id
        order: Order = tuple((tables[before], tables[after]) for before, after in arrows)
        new = new_view(view, *(tables[letter] for letter in scans), order=order)
        job = (await add_creating(tx, new)).id
        (plan,) = await tx.plans.of([job])
    await leader.queue(Add(jobs=(plan,)))
    added = (await leader.barrier()).mutation
    assert isinstance(added, Add)
    (plan,) = added.jobs
    fragments = plan.table_scans
    names = [f"{letter}{scans[:at].count(letter) or ''}" for at, letter in enumerate(scans)]
    by_name = {name: fragment.id for name, fragment in zip(names, fragments, strict=True)}
    return Backfill(leader, job, by_name, {fragment.id: fragment for fragment in fragments})


async def test_one_after_the_other(leader: Leader) -> None:
    chain = await backfill(leader, "abc", "ab", "bc")
    assert chain.held(tuple(chain.plans.values())) == ["b", "c"], "the job's first barrier says who waits"
    assert await chain.started() is None
    assert await chain.started("a") == ["b"]
    assert await chain.waiting() == ["c"]
    assert await chain.started("b") == ["c"]
    assert await chain.waiting() == []
    assert await chain.started("c") is None
    assert await leader.state_of(chain.job) == "Created"


async def test_all_actors_of_all_that_come_before_have_to_be_done(leader: Leader) -> None:
    job = await backfill(leader, "abc", "ac", "bc")
    assert await job.started("a") is None
    assert await job.started("b", actors=1) is None
    assert await job.waiting() == ["c"]
    assert await job.started("b") == ["c"]


async def test_what_becomes_free_together_starts_together(leader: Leader) -> None:
    job = await backfill(leader, "abcd", "ab", "ac", "bd", "cd")
    assert await job.started("a") == ["b", "c"]
    assert await job.started("c") is None
    assert await job.started("b") == ["d"]


async def test_a_table_that_is_scanned_twice_is_one_node(leader: Leader) -> None:
    job = await backfill(leader, "abab", "ab")
    assert await job.waiting() == ["b", "b1"]
    assert await job.started("a") is None
    assert await job.started("a1") == ["b", "b1"]


async def test_two_jobs_start_scans_on_one_barrier(leader: Leader) -> None:
    one = await backfill(leader, "ab", "ab")
    other = await backfill(leader, "ab", "ab", view="n")
    await leader.queue(None)
    await leader.barrier(*one.reports("a"), *other.reports("a"))
    barrier = await leader.barrier()
    assert (one.starts(barrier), other.starts(barrier)) == (["b"], ["b"])


async def test_one_that_finished_early_counts_once_its_turn_has_come(leader: Leader) -> None:
    """It was started by hand. What comes after it waits for what comes before it, too."""
    job = await backfill(leader, "abcd", "ab", "bc", "cd")
    for name in ("b", "c"):
        await mutations.inject(leader.world, StartFragmentBackfill(fragments=(job.scans[name],)), asked_by=A_TEST)
    assert job.starts(await leader.barrier()) == ["b", "c"]
    assert await job.waiting() == ["d"]
    assert await job.started("b", "c") is None
    assert await job.started("a") == ["d"]


async def test_a_whole_job_is_started_by_hand(leader: Leader) -> None:
    job = await backfill(leader, "abc", "ab", "bc")
    command = await mutations.start_job(leader.world, job.job, asked_by=A_TEST)
    barrier = await leader.barrier()
    assert job.starts(barrier) == ["a", "b", "c"]
    assert await leader.epoch_of(command) == barrier.curr
    assert await job.waiting() == []
    assert await job.first() == [], "a recovery does not take it back (I4)"


@pytest.mark.parametrize("nothing", [StartFragmentBackfill(fragments=()), Stop(jobs=())])
async def test_a_mutation_names_what_it_is_about(leader: Leader, nothing: Mutation) -> None:
    """Scenario 31: neither a fragment nor a job."""
    with pytest.raises(Invalid, match="names nothing"):
        await mutations.inject(leader.world, nothing, asked_by=A_TEST)


async def test_a_recovery_keeps_who_waits_and_who_was_started(leader: Leader) -> None:
    job = await backfill(leader, "abc", "ab", "bc")
    assert await job.first() == ["b", "c"]
    assert await job.started("a") == ["b"]
    assert await job.first() == ["c"]
    assert await job.started("b") == ["c"]


async def test_a_start_whose_epoch_never_was_is_carried_again(leader: Leader) -> None:
    """I3, I4: until the epoch that carries it has committed, the scan waits."""
    job = await backfill(leader, "ab", "ab")
    await job.barrier("a")
    assert job.starts(await leader.injected()) == ["b"]
    assert await job.waiting() == ["b"]
    assert await job.first() == ["b"]
    assert await job.queued() == [["b"]]
    assert job.starts(await leader.barrier()) == ["b"]
    assert await job.waiting() == []
    assert await job.queued() == []


async def test_a_finish_whose_epoch_never_was_starts_nothing(leader: Leader) -> None:
    job = await backfill(leader, "ab", "ab")
    await leader.queue(None)
    await leader.injected(*job.reports("a"))
    assert await job.first() == ["b"]
    assert await job.started() is None
    assert await job.started("a") == ["b"]


async def test_a_start_that_was_lost_is_asked_for_again(leader: Leader, database_url: str) -> None:
    """What is due follows from what is stored, not from what just happened; and it is asked for once."""
    job = await backfill(leader, "ab", "ab")
    await job.barrier("a")
    async with stores_on(database_url) as (_, engine), engine.begin() as connection:
        lost = await connection.execute(
            text("delete from tidefill.command where not done returning mutation ->> 'type'")
        )
        assert list(lost.scalars()) == ["start_fragment_backfill"]
    assert job.starts(await job.barrier()) is None
    assert await job.queued() == [["b"]]
    assert job.starts(await leader.barrier()) == ["b"]


async def test_a_start_that_is_queued_is_not_queued_again(leader: Leader) -> None:
    """Somebody asked for it by hand while the epoch that makes it due was under way."""
    job = await backfill(leader, "ab", "ab")
    await leader.queue(None)
    injected = await leader.injected(*job.reports("a"))
    assert injected.mutation is None
    by_hand = await mutations.start_job(leader.world, job.job, asked_by=A_TEST)
    await leader.look()
    await leader.look()
    assert await job.queued() == [["a", "b"]]
    assert await leader.epoch_of(by_hand) is None
