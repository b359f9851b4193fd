"""External databases behind a slow link: what an epoch waits for, and that all comes in the end."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from service.protocol.cdc import SourceReport
from tests.support.cdc_steps import NUMBERS, SPLIT, Started, add, execute, finish
from tests.support.hanging import Drip, Way, way_to
from tests.support.real_cdc import CdcWorld
from workers.cdc import backoff, kept, pages, patience
from workers.cdc.log_stream import DECODING

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

LOG = b"pg_logical_slot_peek"
PAGE = b"::bigint from"
ROWS = 300


def told(world: CdcWorld) -> dict[int, str | None]:
    """Return why tables are not read."""
    assert world.collected is not None
    return {table.fragment: table.waiting for source in world.collected.of(SourceReport) for table in source.tables}


@contextmanager
def behind(world: CdcWorld, external_url: str) -> Generator[Way]:
    """Put a link before the external server, for new sessions of the worker."""
    with way_to(external_url) as (way, world.conninfo):
        world.close()
        yield way
        world.close()


def stood_still(world: CdcWorld) -> list[float]:
    """Stop the worker's clock; return its time, which a test changes."""
    now = [0.0]
    assert world.executor is not None
    world.executor.clock = lambda: now[0]
    return now


async def test_a_page_that_drips_outlives_no_deadline_and_history_is_read_in_smaller_ones(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is followed meanwhile (I5), and the other table has its turn."""
    monkeypatch.setattr(pages, "PAGES_SECONDS", 0.3)
    async with started(NUMBERS, SPLIT, rows=3) as world:
        world.model, world.page_rows = False, None
        long = f"repeat('x', 80) from generate_series(100, {99 + ROWS}) g"
        execute(world, f"insert into numbers select g, g, {long}", f"insert into split select g, g, {long}")
        with behind(world, external_url) as way:
            way.drip = Drip(PAGE, piece=250, pause=0.02)
            world.page_rows = 100
            await world.epoch(world.throttled(None))
            assert (world.waiting, world.read, told(world)) == (None, 0, {NUMBERS.fragment: pages.TOO_SLOW})
            world.page_rows = None
            add(world, NUMBERS, -1, "new")
            await world.epoch()
            assert (world.waiting, told(world)) == (None, {SPLIT.fragment: pages.TOO_SLOW})
            epochs = 0
            while world.read < 40 and epochs < 60:
                epochs += 1
                await world.epoch()
                assert (world.waiting, world.broken) == (None, {})
            assert world.read >= 40
            way.drip = None
            await finish(world)
            assert [len(await world.rows(table)) for table in (NUMBERS, SPLIT)] == [ROWS + 4, ROWS + 3]


async def test_the_key_of_a_refused_row_is_not_looked_for_for_long(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "KEY_SECONDS", 0.1)
    async with started(NUMBERS, rows=3) as world:
        world.model, world.page_rows = False, None
        execute(world, "insert into numbers select g, g, repeat('x', 50) from generate_series(100, 199) g")
        with behind(world, external_url) as way, monkeypatch.context() as patch:
            patch.setattr(pages, "ROW_BYTES_MAX", 60)
            way.far = 0.06
            await world.epoch(world.throttled(None))
            assert "a row of more than 32 MB: " in world.broken[NUMBERS.fragment]


async def test_a_source_that_is_far_away_is_asked_in_few_barriers(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All barriers wait for its answers: while it is not asked, they wait for nothing, and the reason is on show."""
    monkeypatch.setattr(backoff, "SLOW_TIMES", 4.0)
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        with behind(world, external_url) as way:
            now = stood_still(world)
            await world.epoch()
            assert world.waiting is None
            before = len(way.asked)
            await world.epoch()
            assert (world.waiting, len(way.asked) > before) == (None, True)
            way.far = 0.1
            await world.epoch()
            add(world, NUMBERS, 50, "new")
            before = len(way.asked)
            for _ in range(3):
                await world.epoch()
                assert "the external database answers slowly" in str(world.waiting)
            # A table of the source is no less committed for it, and nothing was asked.
            assert len(way.asked) == before
            now[0] += 100.0
            await world.epoch()
            assert (world.waiting, len(await world.rows(NUMBERS))) == (None, 4)
            now[0] += 100.0
            way.far = 0.0
            for _ in range(3):
                before = len(way.asked)
                await world.epoch()
                assert (world.waiting, len(way.asked) > before) == (None, True)


@pytest.mark.parametrize("piece", [100, 400])
async def test_a_log_that_stops_keeps_no_epoch_and_is_read_when_all_of_it_has_come(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """No part of the log is requested twice, and later epochs wait only briefly for the rest."""
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        with behind(world, external_url) as way:
            await world.epoch()
            before, asked = world.offset, len(way.asked)
            way.drip = Drip(LOG, piece=piece, pause=0.0, most=1_000)
            execute(world, "insert into numbers select g, g, 'x' from generate_series(100, 399) g")
            world.model = False
            for _ in range(4):
                await world.epoch()
                assert (world.waiting, world.broken, world.offset) == (DECODING, {}, before)
            way.drip = None
            while world.waiting == DECODING:
                await world.epoch(interval_ms=100)
            assert (world.waiting, world.broken, len(await world.rows(NUMBERS))) == (None, {}, 303)
            assert sum(LOG in data for data in way.asked[asked:]) == 1


async def test_a_log_that_never_goes_on_is_asked_for_again_in_the_end(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.2)
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        with behind(world, external_url) as way:
            now = stood_still(world)
            way.drip = Drip(LOG, piece=100, pause=0.0, most=500)
            execute(world, "insert into numbers select g, g, 'x' from generate_series(100, 399) g")
            world.model = False
            await world.epoch()
            await world.epoch()
            assert world.waiting == DECODING
            now[0] += patience.GONE_SECONDS
            await world.epoch()
            assert world.waiting == "the rest of the log did not come within 300 s"
            way.drip = None
            now[0] += patience.GONE_SECONDS
            await world.epoch()
            assert (world.waiting, world.broken, len(await world.rows(NUMBERS))) == (None, {}, 303)


@pytest.mark.parametrize("room", [0, 3_000, 1 << 30])
async def test_a_log_that_comes_slowly_is_read_however_little_of_it_is_kept(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", room)
    monkeypatch.setattr(kept, "MEMORY_BYTES_MAX", 1_000)
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(patience, "BYTES_PER_SECOND", 1 << 30)
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        with behind(world, external_url) as way:
            # What is not kept is read to its end at once. Where some is kept, the log stops for the first epoch.
            way.drip = Drip(LOG, piece=1_000, pause=0.02, most=1_000 if room else float("inf"))
            execute(world, "insert into numbers select g, g, 'x' from generate_series(100, 499) g")
            world.model = False
            await world.epoch()
            assert world.waiting == (DECODING if room else None)
            way.drip.most = float("inf")
            epochs = 0
            while world.waiting == DECODING and epochs < 100:
                epochs += 1
                await world.epoch()
            assert (world.waiting, world.broken, len(await world.rows(NUMBERS))) == (None, {}, 403)
