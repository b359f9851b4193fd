"""Partial groups and their merge, in the real store: nothing is lost and nothing is added twice (I1, I3, I9)."""

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from service.protocol.ids import DATABASE_GRAPH, Epoch
from tests.support.stage_cases import CASES, values
from tests.support.stage_world import TERM, World, stage_store, world_of
from tests.support.state_store import Store
from workers.engines import group_merge
from workers.engines.copiers import Copiers
from workers.engines.group_merge import GroupMerge

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

GROUPED = replace(
    CASES[6],
    stage=CASES[6].stage.model_copy(update={"rows": values(g="i0.id", n="1", s="coalesce(i0.v, 0)")}),
    query=CASES[6].query.replace("i1.x,", "i0.id,"),
)
"""A group for each row of `a` that has a match."""
NOTHING = (Counter[tuple[object, ...]](), Counter[tuple[object, ...]]())


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with stage_store(database_url) as prepared:
        yield prepared


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One vnode by each statement, and one statement in each epoch."""
    monkeypatch.setattr(group_merge, "VNODES_FIRST", 1)


async def read_world(store: Store) -> World:
    """Read all history of a stage with groups, and merge none."""
    world = await world_of(store, GROUPED, 1)
    for _ in range(6):
        await world.change(rows=14)
    world.read_pages()
    return world


def merge_once(world: World, merge: GroupMerge) -> None:
    """Merge some vnodes in an epoch of its own."""
    world.epoch += 1
    assert merge.run(Epoch(world.epoch), slice_seconds=0.0)
    merge.vnodes = 1


def new_merge(world: World) -> GroupMerge:
    return GroupMerge(world.engine.store, world.bound, Copiers("merge", 1))


async def test_i3_a_new_generation_goes_on_with_the_vnodes_that_have_no_group(store: Store) -> None:
    world = await read_world(store)
    merge_once(world, new_merge(world))
    before = await store.rows("select count(*) from state.t_9")
    merge_once(world, merge := new_merge(world))
    assert merge.left, "there is nothing left to go on with"
    assert before < await store.rows("select count(*) from state.t_9")
    world.merge()
    assert await world.differs() == NOTHING


async def test_i3_groups_of_an_epoch_that_was_never_committed_are_merged_again(store: Store) -> None:
    world = await read_world(store)
    merge_once(world, new_merge(world))
    committed = Epoch(world.epoch)
    merge_once(world, new_merge(world))
    await store.tables.roll_back([GROUPED.target.id], DATABASE_GRAPH, committed, term=TERM)
    world.merge()
    assert await world.differs() == NOTHING


async def test_i3_pages_of_an_epoch_that_was_never_committed_are_read_again(store: Store) -> None:
    world = await world_of(store, GROUPED, 1)
    for _ in range(6):
        await world.change(rows=14)
    world.windowed = world.epoch
    world.run(permits=2)
    committed, positions = Epoch(world.epoch), {actor: dict(held) for actor, held in world.positions.items()}
    world.run(permits=2)
    assert world.positions != positions
    await store.tables.roll_back([GROUPED.target.id], DATABASE_GRAPH, committed, term=TERM)
    world.positions = positions
    world.read_pages()
    world.merge()
    assert await world.differs() == NOTHING


async def test_i9_the_log_goes_when_the_load_ends_and_with_its_relation(store: Store) -> None:
    logs = "select count(*) from pg_class where relname = 'p_9'"
    world = await read_world(store)
    assert await store.rows(logs) == [(1,)]
    await store.tables.end_load(GROUPED.target, term=TERM)
    assert await store.rows(logs) == [(0,)]
    # A generation that begins now finds nothing to be merged.
    merge = new_merge(world)
    assert merge.run(Epoch(world.epoch + 1), slice_seconds=0.0) == 0
    assert merge.done
    await read_world(store)
    assert await store.rows(logs) == [(1,)]
    await store.tables.drop(GROUPED.target.id, GROUPED.target.name, term=TERM)
    assert await store.rows(logs) == [(0,)]
