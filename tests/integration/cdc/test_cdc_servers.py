"""The name of the server leads to another one: followed where that has all that this one had, and named where not."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from service.domain.errors import Unavailable
from service.embedded.postgres import EmbeddedPostgres
from service.ports.sources import Address
from service.sources import connections
from service.sources.replication import PostgresReplication
from tests.support.cdc_steps import NUMBERS, Started, add, finish
from tests.support.real_cdc import CdcWorld, External, LocalPages
from tests.support.run_directories import run_directory
from tests.support.state_store import prepared_store
from workers.cdc import backoff
from workers.runners import source_scan as executor

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]

SMALL = {"shared_buffers": "64MB", "wal_buffers": "4MB", "max_wal_size": "200MB", "min_wal_size": "80MB"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with run_directory() as directory:
        yield directory


async def test_a_server_without_the_slot_is_named_and_breaks_nothing(started: Started, folder: Path) -> None:
    """It has neither slot nor table: the first is said, and the second held against nobody."""
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        other = EmbeddedPostgres(folder, SMALL)
        try:
            world.conninfo = other.start()
            world.close()
            await world.epoch()
            assert 'the slot "slot" was dropped: DROP and CREATE the source' in str(world.waiting)
            with psycopg.connect(world.conninfo, autocommit=True) as admin:
                admin.execute("select pg_create_logical_replication_slot('slot', 'pgoutput')")
            await world.epoch()
            assert "DROP and CREATE" in str(world.waiting)
        finally:
            other.stop()
        before = world.offset
        await world.epoch()
        assert "does not answer" in str(world.waiting)
        assert (world.offset, world.broken) == (before, {})
        world.conninfo = None
        add(world, NUMBERS, 50, "new")
        await world.epoch()
        assert (world.waiting, len(await world.rows(NUMBERS))) == (None, 4)


async def test_a_server_with_a_slot_of_the_same_name_is_told_apart(started: Started) -> None:
    async with started(NUMBERS, rows=3) as world:
        await finish(world)
        places, before = world.places, world.offset
        world.places = {name: place.model_copy(update={"system": "17"}) for name, place in places.items()}
        await world.recover()
        await world.epoch()
        assert "the server is another one, with a slot of the same name" in str(world.waiting)
        assert (world.offset, world.broken) == (before, {})
        world.places = places
        await world.recover()
        await world.epoch()
        assert world.waiting is None


async def test_a_promoted_copy_is_followed_as_long_as_it_has_what_was_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """It has the slot, and its positions hold; the old server, come back, has not what was read of the new one."""
    monkeypatch.setattr(executor, "PagesJob", LocalPages)
    monkeypatch.setattr(backoff, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(backoff, "SLOW_TIMES", 0.0)
    old = EmbeddedPostgres(folder / "old", SMALL)
    external = External(old.start(), (NUMBERS,))
    async with prepared_store(database_url) as store:
        world = CdcWorld(store, external, actors=1)
        new = EmbeddedPostgres(folder / "new", SMALL)
        try:
            await world.prepare()
            add(world, NUMBERS, 1, "new")
            await finish(world)
            world.close()
            rest(external)
            old.stop()
            copy(folder / "old", folder / "new")
            lead(external, new.start())
            external.admin.execute("select pg_promote()")
            found = external.admin.execute("select pg_walfile_name(pg_current_wal_lsn())").fetchone()
            assert str(found).startswith("('00000002"), "another timeline"
            add(world, NUMBERS, 2, "new")
            await world.epoch()
            assert (world.waiting, len(await world.rows(NUMBERS))) == (None, 2)
            external.admin.execute("create table elsewhere as select generate_series(1, 10000) i")
            await world.epoch()
            before = world.offset
            world.conninfo = old.start()
            world.close()
            await world.epoch()
            assert "the server is another one, or has lost what it had" in str(world.waiting)
            assert (world.offset, world.broken) == (before, {})
            world.conninfo = None
            add(world, NUMBERS, 3, "new")
            await world.epoch()
            assert (world.waiting, len(await world.rows(NUMBERS))) == (None, 3)
        finally:
            world.close()
            rest(external)
            old.stop()
            new.stop()


def rest(external: External) -> None:
    """End every session of the test's."""
    for connection in (external.admin, *(writer.connection for writer in external.writers)):
        connection.close()
    external.writers = []


def lead(external: External, server: str) -> None:
    """Have the test's sessions go to another server from here on."""
    external.url = server
    external.admin = psycopg.connect(server, autocommit=True)


def copy(old: Path, new: Path) -> None:
    """Copy a server that is stopped, as one that will be a standby."""
    subprocess.run(["cp", "-a", str(old), str(new)], check=True)
    (control,) = new.rglob("global/pg_control")
    signal = control.parent.parent / "standby.signal"
    signal.touch()
    owner = control.stat()
    os.chown(signal, owner.st_uid, owner.st_gid)


@pytest.mark.parametrize("options", ["-c statement_timeout=500ms", "-c statement_timeout=20s -c lock_timeout=500ms"])
async def test_a_slot_waits_for_what_is_prepared_and_says_so(
    external_url: str, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr(connections, "_OPTIONS", options)
    at = Address("pg", "here", external_url)
    with psycopg.connect(external_url, autocommit=True) as admin:
        admin.execute("begin")
        admin.execute("create table t (id int)")
        admin.execute("prepare transaction 'an order'")
        try:
            with pytest.raises(Unavailable, match="have ended: those that are prepared as an order"):
                await PostgresReplication().create_slot(at, "s")
        finally:
            admin.execute("rollback prepared 'an order'")
    await PostgresReplication().create_slot(at, "s")
    await PostgresReplication().drop_slot(at, "s")
