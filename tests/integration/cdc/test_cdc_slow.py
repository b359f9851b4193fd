"""Sources whose answers take long: what an epoch waits for, and what it leaves."""

import pytest

from tests.support.cdc_steps import Started, add, execute, move, put
from tests.support.cdc_tables import NUMBERS
from tests.support.hanging import way_to
from tests.support.real_cdc import CdcWorld, Followed
from workers.cdc import patience

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

DECODING = "the external database is still decoding its log"
LOG = b"pg_logical_slot_peek"
LONG = "x" * 9000


async def keys(world: CdcWorld, table: Followed) -> int:
    return len(await world.rows(table))


async def test_history_is_read_again_after_a_log_that_came_late_once(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer takes longer than the brief wait, and less than the long one, while somebody writes all the time."""
    async with started(NUMBERS, rows=20) as world:
        with way_to(external_url) as (way, conninfo):
            world.conninfo = conninfo
            world.close()
            way.late = (LOG, 0.3)
            add(world, NUMBERS, 99, "new")
            with monkeypatch.context() as patch:
                patch.setattr(patience, "FIRST_SECONDS", 0.0)
                await world.epoch(world.throttled(None))
            assert (world.waiting, world.read) == (DECODING, 0)
            more = 0
            while not world.finished and more < 60:
                add(world, NUMBERS, 100 + more, "new")
                more += 1
                await world.epoch(interval_ms=100)
                execute(world, f"select pg_sleep({0.3 if world.waiting else 0})")
            assert NUMBERS.fragment in world.finished
            assert await keys(world, NUMBERS) == 21 + more
            world.close()


async def test_the_second_look_of_an_epoch_is_waited_for_longer_each_time(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has to be asked for, and the log read on to that moment, where every answer takes longer than an epoch
    waits.
    """
    async with started(NUMBERS, rows=6) as world:
        writer = world.external.writer()
        put(world.external, writer, NUMBERS, 90, LONG)
        world.external.commit(writer)
        await world.epoch(world.throttled(5_000))
        await world.epoch(world.throttled(0))
        move(world.external, writer, NUMBERS, 90, -5)
        world.external.commit(writer)
        monkeypatch.setattr(patience, "FIRST_SECONDS", 0.15)
        monkeypatch.setattr(patience, "AGAIN_SECONDS", 0.05)
        with way_to(external_url) as (way, conninfo):
            world.conninfo = conninfo
            world.close()
            way.late = (LOG, 0.4)
            await world.epoch()
            waited = 0
            while world.waiting == DECODING and waited < 10:
                waited += 1
                execute(world, "select pg_logical_emit_message(true, 'another', 'commit')", "select pg_sleep(0.4)")
                await world.epoch()
            assert (world.waiting, 1 < waited < 10) == (None, True)
            assert (await world.rows(NUMBERS))[0] == (-5, 90, LONG)
            world.close()
