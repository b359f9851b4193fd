"""What one caller queues for barriers is bounded, and costs the others little (I13)."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest

from service.domain.errors import Unavailable
from service.operations.commands import limits, mutations
from service.operations.world import World
from service.ports.audit import itself
from service.ports.records import Command
from service.protocol.ids import DATABASE_GRAPH, CommandId, FragmentId, JobId
from service.protocol.mutation import MUTATION, Mutation, Pause, Resume, StartFragmentBackfill, Stop, Throttle
from tests.support.fake_meta_store import FakeCommands, FakeStores
from tests.support.http import world_of
from tests.support.meta_store import NOW, add_created, add_creating, new_table, new_view, running, scan_of

FLOOD, OTHER = itself("a flood"), itself("another")


@dataclass
class Here:
    """A service with a view that reads history."""

    world: World
    stores: FakeStores
    job: JobId
    scan: FragmentId

    async def waiting(self) -> list[Mutation | None]:
        async with self.stores.begin() as tx:
            return [one.mutation for one in await tx.commands.waiting(DATABASE_GRAPH)]


@pytest.fixture
async def here() -> Here:
    stores = FakeStores(lambda: NOW)
    await running(stores)
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        view = await add_creating(tx, new_view("m", table.relation))
    return Here(world_of(stores), stores, view.id, (await scan_of(stores, view.id)).id)


async def test_few_pauses_resumes_and_starts_of_a_caller_wait(here: Here) -> None:
    asked: list[Mutation] = [Pause(), Resume(), StartFragmentBackfill(fragments=(here.scan,))]
    for number in range(20):
        await mutations.inject(here.world, asked[number % 3], asked_by=FLOOD)
    for one in asked:
        with pytest.raises(Unavailable, match=r"20 commands \(pause, .*\) of a flood wait for .* at most 20"):
            await mutations.inject(here.world, one, asked_by=FLOOD)
    await mutations.inject(here.world, Throttle(fragments={here.scan: 5}), asked_by=FLOOD)
    await mutations.inject(here.world, Pause(), asked_by=OTHER)
    assert len(await here.waiting()) == 22


async def test_some_limits_of_a_caller_wait(here: Here) -> None:
    for _ in range(100):
        await limits.throttle_fragment(here.world, here.scan, 5, asked_by=FLOOD)
    for ask in (
        limits.throttle_fragment(here.world, here.scan, 5, asked_by=FLOOD),
        mutations.inject(here.world, Throttle(fragments={here.scan: 5}), asked_by=FLOOD),
    ):
        with pytest.raises(Unavailable, match="at most 100 may"):
            await ask
    await limits.throttle_fragment(here.world, here.scan, 9, asked_by=OTHER)


async def test_what_is_named_often_is_stored_once(here: Here) -> None:
    often = MUTATION.validate_python({"type": "start_fragment_backfill", "fragments": [here.scan] * 30_000})
    await mutations.inject(here.world, often, asked_by=FLOOD)
    assert await here.waiting() == [StartFragmentBackfill(fragments=(here.scan,))]
    async with here.stores.begin() as tx:
        (asked,) = [one for one in await tx.events.since(0, limit=1_000) if one.kind == "mutation.asked"]
    assert asked.facts["fragments"] == [here.scan]
    limit = {"type": "throttle", "fragments": {here.scan: 5}, "auto": [here.scan] * 9}
    assert MUTATION.validate_python(limit) == Throttle(fragments={here.scan: 5}, auto=(here.scan,))
    assert MUTATION.validate_python({"type": "stop", "jobs": [3, 1, 3]}) == Stop(jobs=(JobId(3), JobId(1)))


async def test_a_limit_reads_only_the_limits_of_its_scans(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many commands wait, their number of queries stays the same."""
    for _ in range(30):
        await limits.throttle_fragment(here.world, here.scan, 5, asked_by=FLOOD)
    for _ in range(15):
        await mutations.inject(here.world, Resume(), asked_by=FLOOD)
    looks: list[Collection[CommandId]] = []
    parts = FakeCommands.parts

    async def counted(self: FakeCommands, wholes: Collection[CommandId]) -> Mapping[CommandId, Sequence[Command]]:
        looks.append(wholes)
        return await parts(self, wholes)

    async def untouched(*_: object) -> Sequence[Command]:
        raise AssertionError("all that waits is read")

    monkeypatch.setattr(FakeCommands, "parts", counted)
    monkeypatch.setattr(FakeCommands, "waiting", untouched)
    await limits.throttle_fragment(here.world, here.scan, 7, asked_by=OTHER)
    assert [len(look) for look in looks] == [30]


async def test_a_mutation_takes_a_turn_of_its_caller(here: Here) -> None:
    """It waits for the rows of its scans with one of the connections to the meta store, as every change of a limit."""
    async with here.world.calls.limits.turn(FLOOD.actor), here.world.calls.limits.turn(FLOOD.actor):
        asking = asyncio.create_task(mutations.inject(here.world, Throttle(fragments={here.scan: 5}), asked_by=FLOOD))
        await mutations.inject(here.world, Throttle(fragments={here.scan: 7}), asked_by=OTHER)
        assert await here.waiting() == [Throttle(fragments={here.scan: 7})]
    await asking
    assert len(await here.waiting()) == 2
