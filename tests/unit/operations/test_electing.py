"""A new leader tells the other services, and a follower does not."""

from service.domain.barrier import Chore
from service.loops.local_signals import LocalSignals
from service.loops.schedule import Schedule
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeTables, StateStore
from tests.support.http import StillClock, world_of
from tests.support.meta_store import LEASE


async def test_a_new_leader_wakes_the_others_and_a_follower_nobody() -> None:
    """I13: two followers would wake each other for ever, and with each turn all loops of all services."""
    clock = StillClock()
    tables = FakeTables(StateStore())
    stores, signals = FakeStores(clock.now), LocalSignals()
    world = world_of(stores, tables=tables, fences=FakeFences(tables.store), clock=clock, signals=signals)
    leader, follower = (Schedule(world, holder, None) for holder in "ab")

    before = signals.heard(Chore.ELECT)
    await leader.elect()
    assert leader.leading is not None
    assert signals.heard(Chore.ELECT) == before + 1
    await leader.elect()
    await follower.elect()
    assert follower.leading is None
    assert signals.heard(Chore.ELECT) == before + 1

    clock.wall += LEASE
    await follower.elect()
    assert follower.leading is not None
    assert signals.heard(Chore.ELECT) == before + 2
