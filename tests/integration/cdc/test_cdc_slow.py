"""Sources whose answers, and stores whose writing, take long: what an epoch waits for, what it leaves, what breaks."""

from typing import Any

import pytest

from service.protocol.cdc import SourceReport
from tests.support.cdc_steps import NUMBERS, SPLIT, Started, add, execute, finish, move, put
from tests.support.hanging import way_to
from tests.support.real_cdc import CdcWorld, Followed
from workers.cdc import following, log, patience
from workers.cdc.apply import Applying
from workers.cdc.external import Session, ask
from workers.cdc.streaming import Streaming
from workers.runners import source_scan

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

DECODING = "the external database is still decoding its log"
LOG = b"pg_logical_slot_peek"
LONG = "x" * 9000
MANY = "from generate_series(100, 4000) g"


class Clock:
    """A worker's clock, which goes on only while the store writes a part, or rows of the log are waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.part = self.row = 0.0
        self.wrote: list[int] = []
        begin, take = Applying.begin, Streaming.take

        def slow_begin(writing: Applying, relation: Any, epoch: Any, *, nulls: bool = False) -> None:
            self.now += self.part
            self.wrote.append(relation.id)
            begin(writing, relation, epoch, nulls=nulls)

        def slow_take(rows: Streaming, seconds: float) -> list[bytes] | None:
            self.now += self.row
            return take(rows, seconds)

        monkeypatch.setattr(Applying, "begin", slow_begin)
        monkeypatch.setattr(Streaming, "take", slow_take)

    def keep(self, world: CdcWorld) -> None:
        """Have the worker know the time by it."""
        assert world.executor is not None
        world.executor.clock = lambda: self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


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


@pytest.mark.soak
async def test_history_is_read_while_the_slot_takes_long_to_be_moved(
    started: Started, external_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is moved every other epoch, which goes on without it."""
    monkeypatch.setattr(source_scan, "ADVANCE_BYTES", 0)
    monkeypatch.setattr(patience, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(patience, "AGAIN_SECONDS", 0.05)
    async with started(NUMBERS, rows=20) as world:
        with way_to(external_url) as (way, conninfo):
            world.conninfo = conninfo
            world.close()
            way.late = (b"pg_replication_slot_advance", 0.3)
            await world.epoch(world.throttled(None))
            waits = 0
            for key in range(100, 130):
                add(world, NUMBERS, key, "new")
                await world.epoch(interval_ms=100)
                waits += world.waiting == "the external database is still reading what its slot may forget"
                execute(world, f"select pg_sleep({0.3 if world.waiting else 0})")
            assert waits > 5
            assert NUMBERS.fragment in world.finished
            world.close()


@pytest.mark.soak
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


async def test_a_transaction_that_takes_too_long_to_write_breaks_its_table_alone(
    started: Started, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """It would take as long in every epoch that tries it, and everybody waits for the epoch. The table that took most
    is left out, not the one that comes last.
    """
    monkeypatch.setattr(log, "PART_CHANGES", 100)
    async with started(NUMBERS, SPLIT, rows=3) as world:
        await finish(world)
        clock.keep(world)
        clock.part = 10.0
        writer, before = world.external.writer(), world.offset
        for verb in ("numbers", "split"):
            many, each = (1400, 10) if verb == "numbers" else (300, 3)
            text = f"insert into {verb} (id, n, t) select g, g, '{each}' from generate_series(100, {99 + many}) g"
            world.external.run(writer, f"{text} returning *", (), lambda made, table=verb: (table, None, made))
        world.external.commit(writer)
        add(world, SPLIT, 70, "new")
        await world.epoch()
        assert list(world.broken) == [NUMBERS.fragment]
        assert "takes more than 150 s to be written" in world.broken[NUMBERS.fragment]
        assert (world.offset, await keys(world, NUMBERS)) == (before, 3)
        clock.wrote = []
        await world.epoch()
        await world.epoch()
        assert (world.waiting, await keys(world, SPLIT)) == (None, 3 + 300 + 1)
        assert set(clock.wrote) == {SPLIT.relation.id}


async def test_many_small_transactions_break_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Together they take as long as one that would, but an epoch may end after each of them."""
    monkeypatch.setattr(log, "PART_CHANGES", 1)
    async with started(NUMBERS, SPLIT, rows=3) as world:
        await finish(world)
        clock.keep(world)
        clock.part = 10.0
        for key in range(100, 130):
            add(world, NUMBERS, key, "new")
        epochs = 0
        while await keys(world, NUMBERS) < 33:
            before, began = world.offset, clock.now
            await world.epoch()
            assert (world.waiting, world.broken) == (None, {})
            assert world.offset != before
            assert clock.now - began <= following.READING_SECONDS + 2 * clock.part
            epochs += 1
        assert epochs > 5
        with monkeypatch.context() as patch:
            patch.setattr(following, "READING_SECONDS", 1e9)
            patch.setattr(following, "ENDING_SECONDS", 1e9)
            for key in range(200, 230):
                add(world, NUMBERS, key, "new")
            await world.epoch()
        assert (world.waiting, world.broken, await keys(world, NUMBERS)) == (None, {}, 63)


async def test_an_epoch_that_reads_for_long_reads_no_pages(
    started: Started, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """They would count only with all of the log after them, and it would be read again and again."""
    monkeypatch.setattr(log, "PART_CHANGES", 1)
    monkeypatch.setattr(log, "PART_BYTES", 1)
    async with started(NUMBERS, SPLIT, rows=6) as world:
        await world.epoch(world.throttled(5_000))
        for key in range(-10, 0):
            add(world, NUMBERS, key, "new")
        clock.keep(world)
        clock.part = 10.0
        before = world.offset
        await world.epoch(world.throttled(None), interval_ms=50)
        assert (world.waiting, world.offset) == ("the log takes long to be read", before)
        read, epochs = world.read, 0
        while len([one for one in await world.rows(NUMBERS) if one[0] < 0]) < 10:
            await world.epoch(interval_ms=50)
            assert world.waiting is None
            epochs += 1
            assert world.read == read or epochs > 3
        assert epochs > 2
        await finish(world)
        assert world.broken == {}


@pytest.mark.parametrize("row", [40.0, 90.0])
async def test_what_the_external_database_is_waited_for_breaks_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch, clock: Clock, row: float
) -> None:
    """A large transaction that comes slowly is collected while epochs go on without it, and read when all has come."""
    monkeypatch.setattr(log, "PART_CHANGES", 100)
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        clock.keep(world)
        clock.part, clock.row = 1.0, row
        before = world.offset
        execute(world, "insert into numbers (id, n) select g, g from generate_series(100, 899) g")
        world.model = False
        await world.epoch()
        epochs = 1
        while world.waiting == DECODING and epochs < 20:
            assert (world.broken, world.offset, await keys(world, NUMBERS)) == ({}, before, 3)
            epochs += 1
            await world.epoch()
        assert (world.waiting, world.broken, 2 < epochs < 20) == (None, {}, True)
        assert await keys(world, NUMBERS) == 3 + 800


async def test_a_table_that_breaks_stays_broken_where_its_epoch_comes_to_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Else it would break again in every epoch that tries it; and the rest of its rows is not decoded."""
    monkeypatch.setattr(log, "PART_CHANGES", 100)
    async with started(NUMBERS, SPLIT, rows=3) as world:
        await finish(world)
        clock.keep(world)
        before = world.offset
        world.model = False
        execute(world, "alter table numbers alter n type numeric")
        execute(world, f"insert into numbers (id, n) select g, g {MANY}")
        add(world, SPLIT, 70, "new")
        clock.row = 30.0
        await world.epoch()
        assert "its column" in world.broken[NUMBERS.fragment]
        assert (world.offset, world.waiting) == (before, DECODING)
        clock.row = 0.0
        await world.epoch()
        assert (world.waiting, await keys(world, SPLIT)) == (None, 4)
        assert world.collected is not None
        assert world.collected.of(SourceReport)[0].changes == 1


async def test_the_rows_of_a_table_that_broke_are_not_decoded(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "PART_CHANGES", 100)
    async with started(NUMBERS, SPLIT, rows=3) as world:
        await finish(world)
        monkeypatch.setattr(log, "ROW_BYTES_MAX", 1000)
        execute(world, f"insert into numbers select g, g, repeat('x', case g when 200 then 9000 else 9 end) {MANY}")
        add(world, SPLIT, 70, "new")
        await world.epoch()
        assert world.collected is not None
        assert list(world.broken) == [NUMBERS.fragment]
        assert (world.waiting, await keys(world, SPLIT)) == (None, 4)
        assert world.collected.of(SourceReport)[0].changes < 400


@pytest.mark.soak
async def test_every_part_may_ask_where_its_keys_lie(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch may ask for as many parts as a large transaction has, however many these are."""
    regions = Session.regions

    def slowly(session: Session, *arguments: Any) -> Any:
        ask(session.control, "select pg_sleep(0.1)")
        return regions(session, *arguments)

    monkeypatch.setattr(Session, "regions", slowly)
    monkeypatch.setattr(source_scan, "EPOCH_SECONDS", 1.5)
    monkeypatch.setattr(log, "PART_CHANGES", 20)
    async with started(NUMBERS, rows=6) as world:
        await world.epoch(world.throttled(5_000))
        await world.epoch(world.throttled(0))
        assert 0 < world.read < 6
        writer = world.external.writer()
        text = "insert into numbers (id, n, t) select g, g, 'new' from generate_series(-400, -1) g returning *"
        world.external.run(writer, text, (), lambda made: ("numbers", None, made))
        world.external.commit(writer)
        await world.epoch()
        assert (world.waiting, await keys(world, NUMBERS)) == (None, 400 + world.read)
