"""Bearers of JWTs of an OIDC issuer, which a server on loopback stands in for."""

import base64
import hmac
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from pydantic import SecretStr

from service.api.app import create_app
from service.api.settings import ApiSettings
from service.domain.claims import OidcRules, bearer, is_trusted, oidc_rules
from service.domain.errors import Invalid
from service.domain.roles import Role
from service.identity.oidc import KEYS_KEPT_SECONDS, REREAD_SECONDS, RETRY_SECONDS, OidcBearers
from service.meta_store.audit import Audit
from service.ports.audit import Outcome
from tests.support.fake_meta_store import FakeStores
from tests.support.http import WORKER_TOKEN, Checks, StillClock, refused, world_of
from tests.support.meta_store import NOW

Key = RSAKey | ECKey | OKPKey
KEYS: dict[str, tuple[str, Key]] = {
    "r": ("RS256", RSAKey.generate_key(2048, {"kid": "r", "use": "sig"})),
    "e": ("ES256", ECKey.generate_key("P-256", {"kid": "e"})),
    "o": ("Ed25519", OKPKey.generate_key("Ed25519", {"kid": "o"})),
}
STRANGER = RSAKey.generate_key(2048, {"kid": "r"})


@dataclass
class Issuer:
    """What the server tells: its keys, and how often they were read."""

    url: str = ""
    keys: list[Any] = field(default_factory=list[Any])
    named: str | None = None
    reads: int = 0
    away: bool = False

    def answer(self, path: str) -> object:
        if self.away:
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.named or self.url, "jwks_uri": f"{self.url}/keys"}
        self.reads += 1
        return {"keys": self.keys}

    def shows(self, *kids: str) -> None:
        self.keys = [KEYS[kid][1].as_dict(private=False) for kid in kids]


@contextmanager
def served(issuer: Issuer) -> Generator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = issuer.answer(self.path)
            body = json.dumps(found).encode()
            self.send_response(503 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Doors:
    http: httpx.AsyncClient
    issuer: Issuer
    clock: StillClock

    def token(self, kid: str = "r", *, key: Any = None, header: Any = None, **but: Any) -> str:
        alg, own = KEYS[kid]
        claims = {
            "iss": self.issuer.url,
            "aud": ["other", "tidefill"],
            "sub": "anna",
            "exp": int(self.clock.now().timestamp()) + 60,
            "groups": ["people", "sre"],
        } | but
        claims = {name: value for name, value in claims.items() if value is not None}
        head = {"alg": alg, "kid": kid} | (header or {})
        return jwt.encode(head, claims, key or own, algorithms=[head["alg"]])

    async def get(self, token: str, path: str = "/v1/jobs") -> httpx.Response:
        return await self.http.get(path, headers={"Authorization": f"Bearer {token}"})

    async def post(self, token: str, path: str) -> httpx.Response:
        return await self.http.post(path, headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
async def doors() -> AsyncGenerator[Doors]:
    issuer, clock = Issuer(), StillClock()
    issuer.shows("r", "e", "o")
    with served(issuer):
        rules = OidcRules(issuer.url, "tidefill", "groups", {"sre": Role.OPERATOR, "people": Role.VIEWER})
        settings = ApiSettings(worker_token=SecretStr(WORKER_TOKEN))
        world = world_of(FakeStores(lambda: NOW), clock=clock)
        app = create_app(world, settings=settings, ready=Checks(), bearers=OidcBearers(rules, clock))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service.example") as http:
            yield Doors(http, issuer, clock)


@pytest.mark.parametrize("kid", KEYS)
async def test_a_token_of_the_issuer_has_the_highest_role_of_its_claim(
    doors: Doors, kid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Audit, "add", added := AsyncMock())
    token = doors.token(kid)
    assert (await doors.get(token)).status_code == 200
    problem = refused(await doors.post(token, "/v1/recover"), 403, "forbidden")
    assert (problem["needs"], problem["has"]) == ("admin", "operator")
    asker, outcome = added.call_args.args
    assert (asker.actor, asker.role, outcome) == ("oidc anna", Role.OPERATOR, Outcome.REFUSED)
    assert doors.issuer.reads == 1


async def test_the_older_name_of_ed25519_works(doors: Doors) -> None:
    with pytest.warns(SecurityWarning):
        token = doors.token("o", header={"alg": "EdDSA"})
    assert (await doors.get(token)).status_code == 200


@pytest.mark.parametrize(
    "but",
    [
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": None},
        {"iss": "https://elsewhere.example"},
        {"iss": None},
        {"exp": int(NOW.timestamp()) - 31},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": float("inf")},
        {"exp": 10**400},
        {"sub": "a\nb"},
        {"sub": "a\x00"},
        {"nbf": int(NOW.timestamp()) + 31},
        {"sub": None},
        {"sub": ""},
        {"groups": None},
        {"groups": ["admins"]},
        {"groups": {"sre": True}},
    ],
    ids=str,
)
async def test_a_token_that_is_not_for_this_service_is_refused(doors: Doors, but: dict[str, Any]) -> None:
    refused(await doors.get(doors.token(**but)), 401, "unauthorized")


async def test_a_token_that_the_issuer_did_not_sign_is_refused(doors: Doors) -> None:
    good = doors.token()
    head, claims, signature = good.split(".")

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    other = part({"iss": doors.issuer.url, "aud": "tidefill", "sub": "eve", "exp": 9e9, "groups": ["sre"]})
    public = KEYS["r"][1].as_pem(private=False)
    symmetric = f"{part({'alg': 'HS256', 'kid': 'r'})}.{other}"
    mac = hmac.digest(public, symmetric.encode(), "sha256")
    bad = [
        doors.token(key=STRANGER),
        f"{head}.{other}.{signature}",
        f"{part({'alg': 'none'})}.{other}.",
        f"{part({'alg': 'none', 'kid': 'r'})}.{claims}.{signature}",
        f"{symmetric}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}",
        f"{part({'alg': 'ES256', 'kid': 'r'})}.{claims}.{signature}",
        f"{part({'alg': 'RS256', 'kid': ['r']})}.{claims}.{signature}",
        f"{part(['alg'])}.{claims}.{signature}",
        doors.token(header={"alg": "PS256"}),
        f"{head}.{claims}.",
        "..",
        "a.b.c",
        good + "x" * (16 << 10),
    ]
    for token in bad:
        refused(await doors.get(token), 401, "unauthorized")
    assert (await doors.get(good)).status_code == 200
    refused(await doors.http.get("/v1/jobs"), 401, "unauthorized")


async def test_keys_are_read_again_for_an_unknown_one_once_a_minute(doors: Doors) -> None:
    doors.issuer.shows("r")
    assert (await doors.get(doors.token("r"))).status_code == 200
    doors.issuer.shows("e")
    for _ in range(3):
        refused(await doors.get(doors.token("e")), 401, "unauthorized")
    assert doors.issuer.reads == 1
    doors.clock.seconds += REREAD_SECONDS
    assert (await doors.get(doors.token("e"))).status_code == 200
    refused(await doors.get(doors.token("r")), 401, "unauthorized")
    assert doors.issuer.reads == 2


async def test_keys_are_read_again_after_an_hour_and_kept_while_the_issuer_is_away(doors: Doors) -> None:
    assert (await doors.get(doors.token())).status_code == 200
    doors.issuer.away = True
    doors.clock.seconds += KEYS_KEPT_SECONDS
    assert (await doors.get(doors.token())).status_code == 200
    doors.issuer.away = False
    doors.issuer.shows("e")
    doors.clock.seconds += RETRY_SECONDS
    refused(await doors.get(doors.token()), 401, "unauthorized")


async def test_an_issuer_that_never_answered_is_no_refusal(doors: Doors) -> None:
    doors.issuer.away = True
    refused(await doors.get(doors.token()), 503, "unavailable")
    doors.issuer.away = False
    refused(await doors.get(doors.token()), 503, "unavailable")
    doors.clock.seconds += RETRY_SECONDS
    assert (await doors.get(doors.token())).status_code == 200


async def test_keys_of_another_issuer_are_not_taken(doors: Doors) -> None:
    doors.issuer.named = "https://elsewhere.example"
    refused(await doors.get(doors.token()), 503, "unavailable")


async def test_keys_of_unknown_kinds_secret_keys_and_keys_to_encrypt_with_are_left_out(doors: Doors) -> None:
    secret = OctKey.generate_key(256, {"kid": "s"}).as_dict()
    doors.issuer.shows("e")
    encrypting = {**KEYS["r"][1].as_dict(private=False), "use": "enc"}
    doors.issuer.keys += [{"kty": "odd"}, "no object", secret, encrypting, KEYS["o"][1].as_dict(private=True)]
    assert (await doors.get(doors.token("e"))).status_code == 200
    for kid in ("r", "o"):
        refused(await doors.get(doors.token(kid)), 401, "unauthorized")


async def test_a_token_without_a_key_id_is_of_the_only_key(doors: Doors) -> None:
    doors.issuer.shows("e")
    alg, key = KEYS["e"]
    claims = {"iss": doors.issuer.url, "aud": "tidefill", "sub": "a", "exp": 9e9, "groups": "people"}
    token = jwt.encode({"alg": alg}, claims, key, algorithms=[alg])
    assert (await doors.get(token)).status_code == 200
    doors.issuer.shows("e", "r")
    doors.clock.seconds += KEYS_KEPT_SECONDS
    refused(await doors.get(token), 401, "unauthorized")


@pytest.mark.parametrize(
    ("claim", "claims", "role"),
    [
        ("groups", {"groups": "sre"}, Role.OPERATOR),
        ("groups", {"groups": ["sre", 7, None]}, Role.OPERATOR),
        ("realm_access.roles", {"realm_access": {"roles": ["sre"]}}, Role.OPERATOR),
        ("https://x.example/roles", {"https://x.example/roles": ["sre"]}, Role.OPERATOR),
        ("realm_access.roles", {"realm_access": ["sre"]}, None),
        ("a.b", {}, None),
    ],
)
def test_the_claim_of_the_role_may_lie_inside_another(claim: str, claims: dict[str, Any], role: Role | None) -> None:
    rules = OidcRules("https://i.example", "t", claim, {"sre": Role.OPERATOR})
    whole = {"iss": "https://i.example", "aud": "t", "sub": "a", "exp": NOW.timestamp() + 1, **claims}
    found = bearer(whole, rules, now=NOW)
    assert (found and found[1]) == role
    assert bearer(whole, rules, now=NOW + timedelta(hours=1)) is None


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ((None, "t", None), "ISSUER"),
        (("http://i.example", "t", {"a": "viewer"}), "ISSUER"),
        (("http://localhost.example", "t", {"a": "viewer"}), "ISSUER"),
        (("https://i.example", None, {"a": "viewer"}), "AUDIENCE"),
        (("https://i.example", "t", None), "ROLES"),
        (("https://i.example", "t", {"a": "worker"}), "ROLES"),
        (("https://i.example", "t", {"a": "root"}), "ROLES"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(given: tuple[Any, Any, Any], variable: str) -> None:
    issuer, audience, roles = given
    with pytest.raises(Invalid) as refusal:
        oidc_rules(issuer, audience, "groups", roles)
    assert refusal.value.pointer == f"TIDEFILL_OIDC_{variable}"


def test_without_an_issuer_there_are_no_rules() -> None:
    assert oidc_rules(None, None, "groups", None) is None
    assert [is_trusted(url) for url in ("https://x", "http://127.0.0.1:7/a", "http://127.0.0.1.evil")] == [
        True,
        True,
        False,
    ]
