"""One job, relation or command that goes wrong holds up no other (I13)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from service.domain.backoff import SetAside
from service.domain.errors import Conflict, Invalid, Unavailable
from service.domain.job import JobEvent, JobState
from service.operations.barriers import recovery
from service.operations.barriers.effects import apply_commands
from service.operations.commands import mutations
from service.operations.jobs import lifecycle, queue
from service.operations.upkeep import maintenance
from service.operations.world import World
from service.ports.audit import itself
from service.protocol.ids import DATABASE_GRAPH, Epoch, JobId, RelationId, StatementId, Term
from service.protocol.mutation import Stop
from service.protocol.relation import Relation, RelationKind
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeTables, StateStore
from tests.support.http import StillClock, changed, world_of
from tests.support.meta_store import LEASE, NOW, add_created, new_table, new_view, running, table_and_view


@dataclass
class Refusing(FakeTables):
    """A state store that refuses to create or to drop what is called `bad`."""

    error: Exception = field(default_factory=lambda: Invalid("column name conflicts with a system column name"))
    tried: list[str] = field(default_factory=list[str])
    foreign: tuple[str, ...] = ()

    async def create(self, relation: Relation, *, term: Term, **kept: Any) -> None:
        self.tried.append(relation.name)
        if relation.name == "bad":
            raise self.error
        await super().create(relation, term=term, **kept)

    async def drop(self, relation: RelationId, name: str, *, term: Term) -> None:
        self.tried.append(name)
        if name == "bad":
            raise self.error
        await super().drop(relation, name, term=term)

    async def foreign_readers(self, names: Collection[str]) -> Sequence[str]:
        del names
        return self.foreign


@dataclass
class Here:
    stores: FakeStores
    tables: Refusing
    world: World
    clock: StillClock
    term: Term

    async def state(self, job: JobId) -> JobState:
        async with self.stores.begin() as tx:
            found = await tx.jobs.get(job)
        assert found is not None
        return found.state


@pytest.fixture
async def here() -> Here:
    stores, tables, clock = FakeStores(lambda: NOW), Refusing(StateStore()), StillClock()
    async with stores.begin() as tx:
        term = await tx.leases.gain("a", lease=LEASE)
    assert term is not None
    fences = FakeFences(tables.store)
    await fences.claim(term)
    return Here(
        stores,
        tables,
        changed(world_of(stores), tables=tables, fences=fences, clock=clock),
        clock,
        term,
    )


async def add(here: Here, *names: str) -> list[JobId]:
    async with here.stores.begin() as tx:
        return [(await tx.jobs.add(new_table(name), now=NOW)).id for name in names]


async def test_c1_a_job_that_the_store_refuses_fails_and_the_next_starts(here: Here) -> None:
    bad, good = await add(here, "bad", "good")
    await queue.start_jobs(here.world, term=here.term)
    assert [await here.state(bad), await here.state(good)] == [JobState.FAILED, JobState.CREATING]


@pytest.mark.parametrize("error", [Unavailable("a lock"), RuntimeError("our own mistake")])
async def test_c1_a_job_that_cannot_be_started_now_is_set_aside(here: Here, error: Exception) -> None:
    here.tables.error = error
    aside = SetAside[JobId]()
    bad, good = await add(here, "bad", "good")
    for _ in range(3):
        await queue.start_jobs(here.world, term=here.term, aside=aside)
    assert [await here.state(bad), await here.state(good)] == [JobState.INITIAL, JobState.CREATING]
    assert here.tables.tried == ["bad", "good"], "not tried again before its back-off is over"
    here.tables.error = Invalid("refused")
    here.clock.wall += timedelta(minutes=1)
    await queue.start_jobs(here.world, term=here.term, aside=aside)
    assert await here.state(bad) is JobState.FAILED


async def test_c1_a_view_that_is_set_aside_takes_no_permit(here: Here) -> None:
    here.tables.error = Unavailable("a lock")
    async with here.stores.begin() as tx:
        table = (await add_created(tx, new_table("t"))).relation
        bad, good = [(await tx.jobs.add(new_view(name, table), now=NOW)).id for name in ("bad", "good")]
    aside = SetAside[JobId]()
    for _ in range(2):
        await queue.start_jobs(here.world, term=here.term, aside=aside)
    assert [await here.state(bad), await here.state(good)] == [JobState.INITIAL, JobState.CREATING]


async def dropped(here: Here, *names: str) -> list[RelationId]:
    relations: list[RelationId] = []
    for job in await add(here, *names):
        async with here.stores.begin() as tx:
            relations.append((await tx.jobs.move(job, JobEvent.CANCEL_ASKED, now=NOW)).relation)
            await tx.catalog.remove(relations[-1])
    return relations


@pytest.mark.parametrize("error", [Unavailable("a reader holds it"), RuntimeError("a reader holds it")])
async def test_c10_a_relation_in_use_is_set_aside_and_the_others_are_removed(here: Here, error: Exception) -> None:
    """Also where Postgres refuses with what nobody foresaw."""
    here.tables.error = error
    aside = SetAside[RelationId]()
    bad, *_ = await dropped(here, "bad", "one", "two")
    for tries in range(1, 5):
        for _ in range(2):
            assert not await recovery.clean_up(here.world, term=here.term, aside=aside)
        assert sorted(here.tables.tried) == ["bad"] * tries + ["one", "two"], (
            "not tried again before its back-off is over"
        )
        async with here.stores.begin() as tx:
            (left,) = await tx.cleanups.all()
        # Whoever waits for a DROP waits for some tries, and for no more.
        assert (left.relation, left.held) == (bad, "a reader holds it" if tries > 2 else None)
        here.clock.wall += timedelta(minutes=1)
    async with here.stores.begin() as tx:
        told = [event.facts for event in await tx.events.since(0, limit=100) if event.kind == "relation.not_removed"]
    assert told == [{"relation": bad, "name": "bad", "error": "a reader holds it"}]


@dataclass
class Staged:
    """Staging tables that nobody fills; those that are `read` cannot be dropped."""

    tables: list[StatementId]
    read: set[StatementId]

    async def unheld(self) -> Sequence[StatementId]:
        return list(self.tables)

    async def drop(self, statement: StatementId) -> None:
        if statement in self.read:
            raise Unavailable("a dump holds it")
        self.tables.remove(statement)


async def test_a_staging_table_in_use_stays_and_the_others_are_dropped(here: Here) -> None:
    """I13."""
    staged = Staged([StatementId(number) for number in (1, 2, 3)], {StatementId(1)})
    here.world = changed(here.world, staging=cast("Any", staged))
    assert await maintenance.unstage(here.world, term=here.term) == 2
    assert staged.tables == [StatementId(1)]


async def test_a_chore_that_fails_stops_no_other(here: Here) -> None:
    """I13."""
    staged = Staged([StatementId(1)], set())

    def fails(name: str) -> None:
        if name == "before vacuum":
            raise Unavailable("a table is locked")

    here.tables.passing = fails
    here.world = changed(here.world, staging=cast("Any", staged))
    with pytest.raises(Unavailable, match="locked"):
        await maintenance.tidy(here.world, term=here.term)
    assert staged.tables == []


async def test_c9_only_a_job_of_the_same_name_waits_for_a_clean_up(here: Here) -> None:
    await dropped(here, "bad")
    again, other = await add(here, "bad", "other")
    here.tables.error = Unavailable("a reader holds it")
    await recovery.clean_up(here.world, term=here.term)
    await queue.start_jobs(here.world, term=here.term)
    assert [await here.state(again), await here.state(other)] == [JobState.INITIAL, JobState.CREATING]


async def test_c9_a_drop_under_a_users_own_view_is_refused(here: Here) -> None:
    (job,) = await add(here, "t")
    here.tables.foreign = ("ana.mine",)
    with pytest.raises(Conflict, match=r"depend on it: ana\.mine"):
        await lifecycle.drop(here.world, "t", RelationKind.TABLE, cascade=True, asked_by=itself("a user"))
    assert await here.state(job) is JobState.INITIAL


async def stopping(here: Here) -> JobId:
    """A job whose drop waits for its Stop."""
    _, view = await table_and_view(here.stores)
    await running(here.stores)
    async with here.stores.begin() as tx:
        await tx.jobs.move(view.id, JobEvent.CANCEL_ASKED, now=NOW)
        await tx.commands.add(DATABASE_GRAPH, Stop(jobs=(view.id,)), asked_by="a user", now=NOW)
    return view.id


async def test_c2_a_second_stop_of_a_job_changes_nothing(here: Here) -> None:
    job = await stopping(here)
    async with here.stores.begin() as tx:
        second = await tx.commands.add(DATABASE_GRAPH, Stop(jobs=(job, JobId(99))), asked_by="another", now=NOW)
        await apply_commands(tx, DATABASE_GRAPH, await tx.commands.waiting(DATABASE_GRAPH), epoch=Epoch(9), now=NOW)
        answered = await tx.commands.get(second)
    assert await here.state(job) is JobState.CANCELLED
    assert answered is not None
    assert answered.done


async def test_c2_a_stop_that_is_queued_is_not_queued_again(here: Here) -> None:
    job = await stopping(here)
    with pytest.raises(Conflict, match="already queued"):
        await mutations.inject(here.world, Stop(jobs=(job,)), asked_by=itself("another"))
