"""What the login may do changes, and how long it may take: what is not to be had now is waited for, with the reason."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import workers.cdc.connecting as adapter
from service.ports.sources import Address
from service.protocol.cdc import SourceReport
from service.sources.connections import connected
from tests.support.cdc_steps import NUMBERS, Started, finish, put
from tests.support.real_cdc import CdcWorld
from tests.support.waiting import until
from workers.cdc import pages

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

LOGIN = "follower"


@pytest.fixture
def login(external_url: str) -> Iterator[str]:
    """How a login that is no superuser reaches the database."""
    with psycopg.connect(external_url, autocommit=True) as admin:
        admin.execute(f"create role {LOGIN} login replication password 'hush'".encode())
        admin.execute(f"alter default privileges in schema public grant select on tables to {LOGIN}".encode())
        yield make_conninfo(external_url, user=LOGIN, password="hush")
        admin.execute(f"drop owned by {LOGIN}".encode())
        admin.execute(f"drop role {LOGIN}".encode())


def told(world: CdcWorld) -> str:
    """Return what is said of the source or its table."""
    assert world.collected is not None
    (source,) = world.collected.of(SourceReport)
    return source.waiting or " ".join(str(table.waiting) for table in source.tables)


@pytest.mark.parametrize(
    ("takes", "gives", "reason", "follows"),
    [
        (f"revoke select on numbers from {LOGIN}", f"grant select on numbers to {LOGIN}", "permission denied", True),
        (
            "alter table numbers enable row level security",
            "alter table numbers disable row level security",
            "row-level security",
            True,
        ),
        (f"alter role {LOGIN} noreplication", f"alter role {LOGIN} replication", "use replication slots", False),
        (f"alter role {LOGIN} password 'other'", None, "password authentication failed", False),
    ],
)
async def test_what_the_login_may_not_do_any_more_is_waited_for(
    started: Started, login: str, takes: str, gives: str | None, reason: str, *, follows: bool
) -> None:
    """`follows`: it is history alone that cannot be read, and changes go on."""
    async with started(NUMBERS, rows=12) as world:
        external, writer = world.external, world.external.writer()
        world.conninfo = login
        await world.recover()
        await world.epoch(world.throttled(5_000))
        for number, history in enumerate((True, False)):
            external.admin.execute(takes.encode())
            # What is open stays open.
            world.close()
            for turn in range(2):
                before, read, offset = -10 * number - turn, world.read, world.offset
                put(external, writer, NUMBERS, before - 1, "meanwhile")
                external.commit(writer)
                await world.epoch()
                assert (reason in told(world)) == (history or not follows)
                assert world.read == read
                assert (world.offset != offset) == follows
            if gives is None:
                world.conninfo = make_conninfo(login, password="other")
            else:
                external.admin.execute(gives.encode())
            await finish(world)
            assert len(await world.rows(NUMBERS)) == 14 + 2 * number
            if gives is None:
                external.admin.execute(f"alter role {LOGIN} password 'hush'".encode())
                world.conninfo = login


TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)
OF_LOGIN = "select name from pg_settings where name like '%timeout' and source = 'user'"


@pytest.fixture
def impatient(external_url: str, login: str) -> str:
    """A login that has every timeout of its server."""
    with psycopg.connect(external_url, autocommit=True) as admin:
        found = admin.execute("select name from pg_settings where name = any(%s)", [list(TIMEOUTS)]).fetchall()
        for (name,) in found:
            admin.execute(f"alter role {LOGIN} set {name} = '300ms'".encode())
    with psycopg.connect(login) as session:
        assert len(session.execute(OF_LOGIN).fetchall()) == len(found) >= 4
    return login


async def test_f6_timeouts_of_the_login_do_not_end_its_sessions(started: Started, impatient: str) -> None:
    async with started(NUMBERS, rows=12) as world:
        external, writer = world.external, world.external.writer()
        world.conninfo = impatient
        await world.recover()
        await finish(world)
        with psycopg.connect(impatient, autocommit=True) as idle:
            # The sessions of the source are idle for longer, so the server would have ended them before this one.
            there = ("select from pg_stat_activity where pid = %s", [idle.info.backend_pid])
            until(lambda: external.admin.execute(*there).fetchone() is None, what="the idle session ends")
        put(external, writer, NUMBERS, 99, "after")
        external.commit(writer)
        await world.epoch()
        assert world.waiting is None
        assert len(await world.rows(NUMBERS)) == 13


async def test_f6_every_session_sets_the_timeouts_of_its_login(impatient: str) -> None:
    with closing(adapter.connect(impatient, "slot")) as session:
        assert session.execute(OF_LOGIN).fetchall() == []
    hosts = make_conninfo(impatient, host="127.0.0.1")
    async with connected(Address("pg", "there", hosts)) as connection:
        assert await (await connection.execute(OF_LOGIN)).fetchall() == []


async def test_a_page_that_takes_too_long_is_tried_with_less(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pages.page_query

    def slow(*arguments: Any, **more: Any) -> str:
        return asked(*arguments, **more).replace(" where ", " where pg_sleep(0.02) is not null and ", 1)

    async with started(NUMBERS, rows=60) as world:
        world.batch_rows, world.page_rows = 64, None
        with monkeypatch.context() as patch:
            patch.setattr(adapter, "SETUP", (*adapter.SETUP, "set statement_timeout = '300ms'"))
            patch.setattr(pages, "page_query", slow)
            await world.recover()
            await world.epoch(world.throttled(None))
            assert "statement timeout" in told(world)
            assert (world.read, world.broken) == (0, {})
            for _ in range(6):
                await world.epoch()
            assert 0 < world.read < 60
        world.close()
        await finish(world)
        assert len(await world.rows(NUMBERS)) == 60
