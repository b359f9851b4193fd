"""Whose login is whose, and when it is over (S3)."""

from dataclasses import replace
from datetime import timedelta

import pytest

from service.domain.roles import Role
from service.operations.read_logins import is_over, suffix_of
from service.ports.audit import Asker
from service.ports.read_logins import ReadLogin
from service.ports.tokens import ApiToken, TokenId
from tests.support.meta_store import NOW

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
