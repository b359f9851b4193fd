"""The places where a follower loses or doubles rows, each by itself; and what a source that is away costs."""

from typing import Any

import pytest

from service.protocol.barrier import BarrierKind
from service.protocol.cdc import SourceReport
from service.protocol.mutation import Pause, Resume
from tests.support.cdc_steps import NUMBERS, SPLIT, Started, finish, move, put, remove
from workers.cdc.connecting import AwayError
from workers.cdc.external import Session
from workers.runners import source_scan as executor

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

LONG = "x" * 9000


async def test_a_page_that_hides_what_was_decoded_is_not_read(started: Started) -> None:
    """A commit is in the log before it is visible: what it changed beyond the position is decoded and dropped, so a
    page that does not show it would lose it.
    """
    async with started(NUMBERS, rows=3, unseen=True) as world:
        writer = world.external.writer(hangs=True)
        put(world.external, writer, NUMBERS, 50, "unseen")
        world.external.commit_unseen(writer)
        await world.epoch()
        assert len(world.undecided) == 1
        await world.epoch(world.throttled(None))
        await world.epoch(interval_ms=50)
        assert world.read == 0
        assert world.collected is not None
        (told,) = world.collected.of(SourceReport)[0].tables
        assert told.waiting is not None
        assert "not yet visible" in told.waiting
        world.external.show()
        await finish(world)
        assert [row[0] for row in await world.rows(NUMBERS)] == [0, 1, 2, 50]
        assert world.undecided == ()


async def test_a_change_that_a_page_shows_takes_nothing_from_the_page(started: Started) -> None:
    """A row moved, its long value unsent, and another row came to its old key: what is stored there is not what it
    had.
    """
    async with started(NUMBERS) as world:
        writer = world.external.writer()
        put(world.external, writer, NUMBERS, 1, LONG)
        world.external.commit(writer)
        await world.epoch()
        move(world.external, writer, NUMBERS, 1, 2)
        world.external.commit(writer)
        put(world.external, writer, NUMBERS, 1, "y" * 9000)
        world.external.commit(writer)
        await world.epoch(world.throttled(None), interval_ms=50)
        assert [(row[0], row[2][:1]) for row in await world.rows(NUMBERS)] == [(1, "y"), (2, "x")]


async def test_a_long_value_that_was_never_read_is_asked_for(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row moves from beyond the position to before it, and changes once more before it is asked for: the log is
    read up to there.
    """
    async with started(NUMBERS, rows=6) as world:
        external, writer = world.external, world.external.writer()
        put(external, writer, NUMBERS, 90, LONG)
        external.commit(writer)
        await world.epoch(world.throttled(5_000))
        await world.epoch(world.throttled(0))
        assert 0 < world.read < 7
        move(external, writer, NUMBERS, 90, -5)
        external.commit(writer)
        asked = Session.rows

        def late(session: Session, table: Any, keys: Any) -> Any:
            external.run(
                writer,
                "update numbers set n = n + 1 where id = -5 returning *",
                (),
                lambda made: ("numbers", (-5,), made),
            )
            external.commit(writer)
            return asked(session, table, keys)

        with monkeypatch.context() as patch:
            patch.setattr(Session, "rows", late)
            await world.epoch()
        (moved, *_) = await world.rows(NUMBERS)
        assert moved == (-5, 91, LONG)
        await finish(world)


async def test_rows_that_came_after_a_truncate_are_kept(started: Started) -> None:
    """A page shows them, and the log says first that all are gone."""
    async with started(NUMBERS, rows=6) as world:
        await world.epoch()
        writer = world.external.writer()
        world.external.empty(writer, "numbers")
        put(world.external, writer, NUMBERS, 1, "after")
        world.external.commit(writer)
        put(world.external, writer, NUMBERS, 2, "later")
        world.external.commit(writer)
        await world.epoch(world.throttled(None), interval_ms=50)
        assert [row[0] for row in await world.rows(NUMBERS)] == [1, 2]
        await finish(world)


async def test_what_is_prepared_counts_from_when_it_is_committed(started: Started) -> None:
    """Prepared before a page, and committed between the page and the log that follows, or after both; or never."""
    async with started(NUMBERS, rows=6) as world:
        external = world.external
        names: list[str] = []
        for key in (0, 1, 2):
            writer = external.writer()
            remove(external, writer, NUMBERS, key)
            put(external, writer, NUMBERS, 100 + key, "prepared")
            names.append(external.prepare(writer))
        high = Session.high

        def late(session: Session) -> int:
            if names[0] in external.prepared:
                external.finish(names[0])
            return high(session)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "high", late)
            await finish(world)
        assert [row[0] for row in await world.rows(NUMBERS)] == [1, 2, 3, 4, 5, 100]
        external.finish(names[1])
        external.finish(names[2], "rollback")
        await world.epoch()
        assert [row[0] for row in await world.rows(NUMBERS)] == [2, 3, 4, 5, 100, 101]


async def test_what_happened_while_nobody_followed_is_not_lost(started: Started) -> None:
    """Deletes of keys that were read before a worker died, by it or by the one whose epoch never committed."""
    async with started(SPLIT, rows=60) as world:
        await world.epoch(world.throttled(5_000))
        await world.epoch(kill=True)
        writer = world.external.writer()
        for key in (0, 1, 2, 30, 59):
            remove(world.external, writer, SPLIT, key)
        world.external.commit(writer)
        world.actors = 2
        await world.recover()
        await world.epoch(world.rescaled(1))
        remove(world.external, writer, SPLIT, 3)
        world.external.commit(writer)
        await finish(world)
        assert [row[0] for row in await world.rows(SPLIT)] == [
            key for key in range(60) if key not in {0, 1, 2, 3, 30, 59}
        ]


async def test_pages_count_only_with_the_log_that_follows(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """The external database goes away after the pages were read: they are taken back, and barriers go on."""

    def away(_self: Session) -> int:
        raise AwayError("cut off")

    async with started(NUMBERS, rows=10) as world:
        with monkeypatch.context() as patch:
            patch.setattr(Session, "high", away)
            await world.epoch(world.throttled(None), interval_ms=50)
        assert world.waiting == "cut off"
        assert world.stored.get(NUMBERS.fragment, {}) == {}
        assert await world.rows(NUMBERS) == []
        await finish(world)
        assert len(await world.rows(NUMBERS)) == 10


async def test_a_source_that_does_not_answer_costs_no_barrier(started: Started) -> None:
    async with started(NUMBERS, rows=4) as world:
        before = world.offset
        world.conninfo = "host=127.0.0.1 port=1 user=nobody password=hush"
        world.close()
        await world.epoch(world.throttled(None))
        assert world.waiting is not None
        assert "does not answer" in world.waiting
        assert "hush" not in world.waiting
        assert world.offset == before
        world.conninfo = None
        await finish(world)
        assert len(await world.rows(NUMBERS)) == 4


async def test_a_slot_that_was_dropped_is_no_gap_to_jump(started: Started) -> None:
    async with started(NUMBERS, rows=4) as world:
        await finish(world)
        world.external.admin.execute("select pg_drop_replication_slot('slot')")
        writer = world.external.writer()
        put(world.external, writer, NUMBERS, 9, "lost")
        world.external.commit(writer)
        before = world.offset
        await world.epoch()
        assert "dropped" in str(world.waiting)
        world.external.admin.execute("select pg_create_logical_replication_slot('slot', 'pgoutput')")
        await world.epoch()
        assert "made anew" in str(world.waiting)
        assert world.offset == before
        assert len(await world.rows(NUMBERS)) == 4


async def test_a_slot_whose_log_was_removed_is_named(started: Started) -> None:
    async with started(NUMBERS, rows=4) as world:
        await finish(world)
        admin, before = world.external.admin, world.offset
        world.close()
        admin.execute("alter system set max_slot_wal_keep_size = '1MB'")
        try:
            admin.execute("select pg_reload_conf()")
            limit = "select setting = '1' from pg_settings where name = 'max_slot_wal_keep_size'"
            while admin.execute(limit).fetchone() != (True,):
                pass
            for _ in range(3):
                admin.execute("create table if not exists elsewhere (i int)")
                admin.execute("insert into elsewhere values (1)")
                admin.execute("select pg_switch_wal()")
            admin.execute("checkpoint")
        finally:
            admin.execute("alter system reset max_slot_wal_keep_size")
            admin.execute("select pg_reload_conf()")
        await world.epoch()
        assert 'the slot "slot" was invalidated, its log is removed: DROP and CREATE the source' in str(world.waiting)
        assert (world.offset, world.broken) == (before, {})


async def test_the_slot_follows_what_is_committed(started: Started) -> None:
    """Also where nothing is written to the tables: the log is not held for ever."""
    async with started(NUMBERS, rows=4) as world:
        await finish(world)
        world.external.admin.execute("create table elsewhere as select generate_series(1, 50000) i")
        before = world.offset
        await world.epoch()
        assert log_place(world.offset) > log_place(before)
        await world.epoch()
        confirmed = "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'slot'"
        found = world.external.admin.execute(confirmed).fetchone()
        assert found is not None
        assert log_place(before) < log_place(found[0]) <= log_place(world.offset)


async def test_the_slot_never_passes_what_is_committed(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """Barriers that wait for a checkpoint commit nothing: what they decoded is decoded again after a recovery."""
    monkeypatch.setattr(executor, "ADVANCE_BYTES", 0)
    async with started(NUMBERS, rows=4) as world:
        await finish(world)
        writer = world.external.writer()
        for number in range(3):
            put(world.external, writer, NUMBERS, 50 + number, "new")
            world.external.commit(writer)
            # `prev` stays at the last checkpoint here: only the offset is looked at.
            world.run(BarrierKind.BARRIER, None)
        await world.recover()
        await world.epoch()
        assert world.waiting is None
        assert [row[0] for row in await world.rows(NUMBERS)] == [0, 1, 2, 3, 50, 51, 52]


async def test_a_pause_stops_pages_and_nothing_else(started: Started) -> None:
    async with started(NUMBERS, rows=30) as world:
        await world.epoch(world.throttled(5_000))
        await world.epoch(Pause())
        read = world.read
        writer = world.external.writer()
        remove(world.external, writer, NUMBERS, 0)
        put(world.external, writer, NUMBERS, -1, "new")
        world.external.commit(writer)
        await world.epoch()
        assert world.read == read
        assert [row[0] for row in await world.rows(NUMBERS)][:2] == [-1, 1]
        await world.epoch(Resume())
        await finish(world)


@pytest.mark.parametrize("prepared", [False, True])
async def test_transactions_older_than_the_table_are_waited_for(started: Started, *, prepared: bool) -> None:
    async with started(NUMBERS, rows=3) as world:
        writer = world.external.writer()
        put(world.external, writer, NUMBERS, 7, "open")
        name = world.external.prepare(writer) if prepared else ""
        whose = f"prepared transaction {name} since"
        found = world.external.admin.execute("select pg_current_xact_id()::text::bigint").fetchone()
        assert found is not None
        world.readable_after = int(found[0])
        await world.recover()
        await world.epoch(world.throttled(None), interval_ms=50)
        assert world.read == 0
        assert world.collected is not None
        (told,) = world.collected.of(SourceReport)[0].tables
        assert (whose if prepared else f"process {writer.connection.info.backend_pid} since") in str(told.waiting)
        if prepared:
            world.external.finish(name)
        else:
            world.external.commit(writer)
        await finish(world)
        assert len(await world.rows(NUMBERS)) == 4


def log_place(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)
