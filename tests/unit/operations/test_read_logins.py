"""Whose login is whose, and when it is over (S3)."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from service.domain.errors import Conflict
from service.domain.roles import Role
from service.domain.sessions import Ended
from service.operations.read_logins import end_overdue, is_over, login, suffix_of
from service.ports.audit import Asker
from service.ports.read_logins import ReadLogin, ReadPlace
from service.ports.tokens import ApiToken, TokenId
from tests.support.fake_meta_store import FakeStores
from tests.support.http import StillClock, changed, world_of
from tests.support.meta_store import LEASE, NOW

SEVEN = TokenId(7)
TOKEN = ApiToken(SEVEN, "ci", Role.VIEWER, "a", NOW, NOW + timedelta(hours=1), None, None, b"")


def test_s3_every_caller_has_a_login_of_its_own() -> None:
    actors = ["token 7 (ci)", "token 71 (ci)", "oidc token 7 (ci)", "oidc a", "oidc b", "TIDEFILL_API_TOKEN"]
    suffixes = [suffix_of(Asker(actor, Role.VIEWER)) for actor in actors]
    assert (suffixes[0], suffixes[1], suffixes[-1]) == ("t7", "t71", "root")
    assert len(set(suffixes)) == len(actors)
    assert suffix_of(Asker("http 127.0.0.1", Role.ADMIN)) == "root"


@pytest.mark.parametrize(
    ("token", "over"),
    [
        (TOKEN, False),
        (replace(TOKEN, expires_at=None), False),
        (replace(TOKEN, revoked_at=NOW), True),
        (replace(TOKEN, expires_at=NOW), True),
        (None, True),
    ],
)
def test_s3_a_login_is_over_with_its_token(token: ApiToken | None, over: bool) -> None:
    tokens = {} if token is None else {SEVEN: token}
    assert is_over(ReadLogin("t7"), tokens, now=NOW) is over


def test_s3_other_logins_are_over_at_their_end() -> None:
    assert not is_over(ReadLogin("root"), {}, now=NOW)
    assert not is_over(ReadLogin("o1", NOW + timedelta(hours=1)), {}, now=NOW)
    assert is_over(ReadLogin("o1", NOW), {}, now=NOW)


async def test_n1_a_login_that_wrote_is_closed_for_some_time() -> None:
    clock = StillClock()
    stores = FakeStores(clock.now)
    logins = Mock(**{"name.side_effect": "tidefill_read_{}".format}, open=AsyncMock(), end=AsyncMock(return_value=True))
    ended = [Ended(1, "tidefill_read_t7", "it wrote", barred=True), Ended(2, "tidefill_read_t8", "idle")]
    sessions = SimpleNamespace(end_overdue=AsyncMock(return_value=ended))
    place = ReadPlace("h", 1, "d", "key")
    world = changed(world_of(stores, clock=clock), read_logins=cast("Any", logins), sessions=sessions, place=place)
    async with stores.begin() as tx:
        term = await tx.leases.gain("a", lease=LEASE)
    assert term is not None
    assert await end_overdue(world, term=term) == 2
    logins.end.assert_awaited_once_with("t7")
    seven, eight = (Asker(f"token {number} (ci)", Role.VIEWER) for number in (7, 8))
    with pytest.raises(
        Conflict, match="wrote, though it may only read, or held all buffers of the server: it is closed for 10 minutes"
    ):
        await login(world, password=True, asked_by=seven)
    assert (await login(world, password=True, asked_by=eight)).user == "tidefill_read_t8"
    clock.seconds += 600
    assert (await login(world, password=True, asked_by=seven)).user == "tidefill_read_t7"


async def test_a_second_call_waits_for_the_login_that_the_first_one_opens() -> None:
    """It answered with a login that was not there yet."""
    clock, may_open = StillClock(), asyncio.Event()
    opened: list[str] = []

    async def slowly(one: ReadLogin, _: str) -> None:
        await may_open.wait()
        opened.append(one.suffix)

    logins = Mock(**{"name.side_effect": "tidefill_read_{}".format}, open=slowly)
    world = changed(world_of(FakeStores(clock.now), clock=clock), read_logins=cast("Any", logins))
    world = changed(world, place=ReadPlace("h", 1, "d", "key"))
    calls = [asyncio.create_task(login(world, password=True, asked_by=Asker("a", Role.ADMIN))) for _ in range(2)]
    for _ in range(20):
        await asyncio.sleep(0)  # noqa: TID251 - lets the calls come as far as they can
    assert not any(call.done() for call in calls)
    may_open.set()
    first, second = await asyncio.gather(*calls)
    assert first == second
    assert opened == ["root"]
    assert not world.logins.opening
