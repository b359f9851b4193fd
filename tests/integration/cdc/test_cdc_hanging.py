"""External servers that hang, take long or talk nonsense: an epoch goes on without them, and nobody waits (I13)."""

import psycopg
import pytest

from service.ports.sources import Address
from service.protocol.cdc import SourceReport
from service.sources.replication import PostgresReplication
from tests.support.cdc_steps import NUMBERS, SPLIT, Started, add, execute, finish
from tests.support.hanging import message, rows_of, said, way_to
from workers.cdc import connecting, patience
from workers.cdc.connecting import AwayError, connect

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "BRIEF_SECONDS", 0.3)
    monkeypatch.setattr("workers.cdc.external.BRIEF_SECONDS", 0.3)


async def test_a_server_that_hangs_keeps_no_epoch(started: Started, external_url: str) -> None:
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        with way_to(external_url) as (way, conninfo):
            world.conninfo = conninfo
            world.close()
            await world.epoch()
            assert world.waiting is None
            way.hangs.set()
            await world.epoch()
            assert "no answer within 0.3 s" in str(world.waiting)
            await world.epoch()
            assert "does not answer" in str(world.waiting)
        world.conninfo = None
        add(world, NUMBERS, 50, "new")
        await world.epoch()
        assert (world.waiting, world.broken, len(await world.rows(NUMBERS))) == (None, {}, 4)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (rows_of(b"so", b"what"), "not understood"),
        (said(b"no" * 1_000_000), "nono"),
        (b"\x00" * 100, ""),
        (message(b"C", b"SELECT 0\x00") + message(b"Z", b"I"), "produce records"),
    ],
    ids=["row", "words", "garbage", "nothing"],
)
async def test_a_server_that_talks_nonsense_keeps_no_epoch(
    started: Started, external_url: str, answer: bytes, reason: str
) -> None:
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        with way_to(external_url, answer=answer) as (_, conninfo):
            world.conninfo = conninfo
            world.close()
            await world.epoch()
        assert reason in str(world.waiting)
        assert len(str(world.waiting)) < 1000
        world.conninfo = None
        await world.epoch()
        assert (world.waiting, world.broken) == (None, {})


def test_an_answer_without_an_end_is_given_up(external_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "BRIEF_SECONDS", 60.0)
    monkeypatch.setattr(connecting, "ANSWER_BYTES_MAX", 8 << 20)
    head = message(b"T", b"\x00\x01a\x00" + bytes(18))
    row = message(b"D", b"\x00\x01\x00\x00\x27\x10" + b"x" * 10_000)
    with way_to(external_url, answer=head, more=row) as (_, conninfo), pytest.raises(AwayError, match="more than 8 MB"):
        connect(conninfo, "slot")


def test_many_slow_answers_are_no_more_waited_for_than_one(external_url: str) -> None:
    with connect(external_url, "slot") as connection:
        connection.left = 2.0
        connection.execute("select pg_sleep(0.1)")
        with pytest.raises(psycopg.OperationalError, match=r"no answer (within|in the time)"):
            _sleep(connection, times=100)


async def test_a_log_that_takes_long_to_decode_keeps_no_epoch(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        add(world, NUMBERS, 50, "new")
        monkeypatch.setattr(patience, "FIRST_SECONDS", 0.0)
        before = world.offset
        execute(world, "create table others (id int)")
        execute(world, "insert into others select generate_series(1, 300000)")
        await world.epoch()
        assert (world.waiting, world.offset) == ("the external database is still decoding its log", before)
        # What its slot holds grows meanwhile.
        assert world.collected is not None
        (told,) = world.collected.of(SourceReport)
        assert min(told.lag_bytes or 0, told.retained_bytes or 0) > 10 << 20
        monkeypatch.undo()
        for _ in range(600):
            await world.epoch(interval_ms=100)
            if world.waiting is None:
                break
        assert (world.waiting, len(await world.rows(NUMBERS))) == (None, 4)


async def test_a_session_that_is_closed_leaves_its_slot(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """What still decodes would keep the slot from the next worker, and from being dropped."""
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        execute(world, "create table others (id int)")
        execute(world, "insert into others select generate_series(1, 300000)")
        monkeypatch.setattr(patience, "FIRST_SECONDS", 0.0)
        await world.epoch()
        assert world.waiting == "the external database is still decoding its log"
        world.close()
        with psycopg.connect(world.external.url, autocommit=True) as admin:
            found = admin.execute("select active from pg_replication_slots where slot_name = 'slot'").fetchone()
        assert found == (False,)


async def test_a_slot_that_is_decoded_from_can_be_dropped(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped because the disk is filling up, while the log takes long to be decoded."""
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        execute(world, "create table others (id int)", "insert into others select generate_series(1, 2000000)")
        monkeypatch.setattr(patience, "FIRST_SECONDS", 0.0)
        await world.epoch()
        assert world.waiting == "the external database is still decoding its log"
        slot = "select active from pg_replication_slots where slot_name = 'slot'"
        assert world.external.admin.execute(slot).fetchone() == (True,)
        await PostgresReplication().drop_slot(Address("pg", "here", world.external.url), "slot")
        assert world.external.admin.execute(slot).fetchone() is None
        await world.epoch()
        assert world.waiting is not None
        execute(world, "select pg_create_logical_replication_slot('slot', 'pgoutput')")


async def test_a_table_that_somebody_locks_holds_no_epoch_up_and_is_followed_afterwards(started: Started) -> None:
    """The epoch ends while the lock is still held, because the session waits for no lock for long."""
    held = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and relation = 'numbers'::regclass"
    async with started(NUMBERS, SPLIT, rows=3) as world:
        await finish(world)
        add(world, SPLIT, 70, "new")
        with psycopg.connect(world.external.url) as locking:
            locking.execute("lock table numbers in access exclusive mode")
            await world.epoch()
            # Before Postgres 16 nothing waits for it.
            assert world.waiting in (None, 'of a table that "pub" publishes: somebody holds an exclusive lock on it')
            assert world.external.admin.execute(f"{held} and granted").fetchone() == (1,)
            assert world.external.admin.execute(f"{held} and not granted").fetchone() == (0,)
        await world.epoch()
        assert (world.waiting, world.broken, len(await world.rows(SPLIT))) == (None, {}, 4)
    with connect(world.external.url, "slot") as session:
        assert session.execute("show lock_timeout").fetchone() == ("300ms",)


def _sleep(connection: psycopg.Connection, *, times: int) -> None:
    for _ in range(times):
        connection.execute("select pg_sleep(0.1)")
