"""Who gets in: sessions, CSRF tokens, origins and roles, as browsers use them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import SecretStr

from service.api.access import declared
from service.api.settings import ApiSettings
from service.domain.roles import Role
from service.meta_store.stores import PostgresStores
from service.operations import tokens
from service.pages.acting import ACTIONS
from service.pages.app import routers_of
from service.pages.door import SECURE_COOKIE
from service.pages.sessions import LIFETIME_SECONDS, Sessions
from service.pages.table import PAGES
from service.ports.audit import Asker
from tests.support.http import OPEN, WORKER_TOKEN, StillClock, world_of
from tests.support.meta_store import table_and_view
from tests.support.pages import csrf_of, pages, send, text_of

pytestmark = pytest.mark.postgres

ROOT = "the root's own"
CLOSED = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), api_token=SecretStr(ROOT))


@pytest.fixture
async def closed(stores: PostgresStores) -> AsyncGenerator[httpx.AsyncClient]:
    async with pages(stores, settings=CLOSED) as opened:
        yield opened


async def log_in(http: httpx.AsyncClient, token: str, after: str = "/") -> httpx.Response:
    csrf = csrf_of(await http.get("/login", follow_redirects=True))
    return await http.post("/login", data={"csrf": csrf, "token": token, "next": after})


async def token_of(stores: PostgresStores, role: Role) -> str:
    made = await tokens.create(world_of(stores), role, role, None, asked_by=Asker("test", Role.ADMIN))
    return made.text


@pytest.mark.parametrize("address", [page.path.replace("{job}", "1") for page in PAGES])
async def test_without_a_session_every_page_leads_to_the_login(closed: httpx.AsyncClient, address: str) -> None:
    answer = await closed.get(f"{address}?a=b")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login?next=%2F")
    assert answer.headers["location"].endswith("%3Fa%3Db")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("address", ["/livez", "/v1/jobs", "/login"])
async def test_i13_nobody_decodes_the_cookies_of_others(closed: httpx.AsyncClient, address: str) -> None:
    """FastAPI parsed those of each request: one with 64 kB of escapes took 5 s, without a token."""
    hostile = 'a="' + '\\"' * 500_000 + '"'
    assert (await closed.get(address, headers={"cookie": hostile})).status_code in {200, 401}


async def test_a_fragment_without_a_session_leads_the_whole_page_to_the_login(closed: httpx.AsyncClient) -> None:
    answer = await closed.get("/jobs", headers={"hx-request": "true"})
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/login")


async def test_a_token_begins_a_session_and_its_page_goes_on(closed: httpx.AsyncClient, stores: PostgresStores) -> None:
    await table_and_view(stores)
    answer = await log_in(closed, ROOT, "/jobs?state=all")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=all")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("tidefill=")
    for part in ("HttpOnly", "SameSite=strict", "Path=/", f"Max-Age={LIFETIME_SECONDS}"):
        assert part in cookie
    page = await closed.get("/jobs?state=all")
    assert "TIDEFILL_API_TOKEN (admin)" in text_of(page)
    assert ROOT not in page.text
    assert ROOT not in cookie
    left = await send(closed, "/logout", "/jobs")
    assert left.url.path == "/login"
    assert (await closed.get("/jobs")).status_code == 303


@pytest.mark.parametrize("token", ["", "wrong", WORKER_TOKEN, "tdf_1_" + "x" * 43, "ключ", "x" * 12_000])
async def test_another_token_begins_none(closed: httpx.AsyncClient, token: str) -> None:
    answer = await log_in(closed, token)
    assert answer.status_code == 401
    assert "this token is not valid" in answer.text
    assert "set-cookie" not in answer.headers


async def test_s4_calls_of_pages_and_of_the_api_count_together(
    closed: httpx.AsyncClient, stores: PostgresStores
) -> None:
    """A caller with a session had each share of the calls, and each quota, twice."""
    token = await token_of(stores, Role.VIEWER)
    async with stores.begin() as tx:
        await tx.parameters.set("viewer_calls_max", "1")
    await log_in(closed, token)
    arrived, rest = asyncio.Event(), asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        arrived.set()
        yield b'{"sql": '
        await rest.wait()
        yield b'"SHOW JOBS"}'

    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    held = asyncio.create_task(closed.post("/v1/sql", content=body(), headers=headers))
    await arrived.wait()
    refused = await closed.get("/jobs")
    assert (refused.status_code, "viewer_calls_max" in refused.text) == (429, True)
    rest.set()
    assert (await held).status_code == 200
    assert (await closed.get("/jobs")).status_code == 200


async def test_who_needs_no_login_goes_on(http: httpx.AsyncClient) -> None:
    answer = await http.get("/login?next=/jobs")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")


async def test_a_login_leads_to_no_other_site(closed: httpx.AsyncClient) -> None:
    assert (await log_in(closed, ROOT, "//evil.example/")).headers["location"] == "/"


async def test_beyond_this_machine_the_cookie_is_for_https_only(closed: httpx.AsyncClient) -> None:
    closed.base_url = "https://tidefill.example"
    closed.headers["origin"] = "https://tidefill.example"
    answer = await log_in(closed, ROOT)
    assert answer.headers["set-cookie"].startswith(f"{SECURE_COOKIE}=")
    assert "Secure" in answer.headers["set-cookie"]
    closed.base_url = closed.headers["origin"] = "http://tidefill.example"
    assert "use https" in (await log_in(closed, ROOT)).text


async def test_a_revoked_token_ends_its_session(closed: httpx.AsyncClient, stores: PostgresStores) -> None:
    made = await tokens.create(world_of(stores), "v", Role.VIEWER, None, asked_by=Asker("test", Role.ADMIN))
    await log_in(closed, made.text)
    assert (await closed.get("/jobs")).status_code == 200
    gone = await closed.delete(f"/v1/tokens/{made.made.id}", headers={"authorization": f"Bearer {ROOT}"})
    assert gone.status_code == 200
    assert (await closed.get("/jobs")).status_code == 303


async def test_a_viewer_sees_no_control_and_changes_nothing(closed: httpx.AsyncClient, stores: PostgresStores) -> None:
    await table_and_view(stores)
    await log_in(closed, await token_of(stores, Role.VIEWER))
    for page in PAGES:
        address = page.path.replace("{job}", "2") + ("?name=m" if page.path == "/relation" else "")
        found = await closed.get(address)
        assert found.status_code == 200, found.text
        forms = found.text.count('method="post"')
        assert forms == (2 if page.path == "/sql" else 1), f"{address}: only the logout, and statements that read"
    for action in ACTIONS:
        answer = await send(closed, action.path.replace("{job}", "2"), "/jobs", sure="1", limit="5")
        assert answer.status_code == 403, action.path
        assert "this needs the role" in answer.text
    refused = await send(closed, "/sql", "/sql", sql="DROP TABLE t", session="")
    assert "this needs the role operator" in text_of(refused)
    async with stores.begin() as tx:
        assert len(await tx.catalog.all()) == 2


async def test_an_operator_may_not_do_what_admins_do(closed: httpx.AsyncClient, stores: PostgresStores) -> None:
    await log_in(closed, await token_of(stores, Role.OPERATOR))
    assert 'action="/parameters"' not in (await closed.get("/parameters")).text
    for action in ACTIONS:
        if action.role is Role.ADMIN:
            assert (await send(closed, action.path, "/jobs", sure="1")).status_code == 403
    assert "every backfill paused" in text_of(await send(closed, "/pause"))


@pytest.mark.parametrize("csrf", ["", "x", None])
async def test_a_form_without_its_token_does_nothing(
    closed: httpx.AsyncClient, stores: PostgresStores, csrf: str | None
) -> None:
    await log_in(closed, ROOT)
    answer = await closed.post("/pause", data={"other": "x"} if csrf is None else {"csrf": csrf})
    assert answer.status_code == 403
    async with stores.begin() as tx:
        assert await tx.audit.newest(before=None, limit=1, discreet=True, actor=None, target=None) == []


async def test_the_token_of_another_session_is_none(closed: httpx.AsyncClient) -> None:
    await log_in(closed, ROOT)
    csrf = csrf_of(await closed.get("/"))
    await log_in(closed, ROOT)
    assert (await closed.post("/pause", data={"csrf": csrf})).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_form_of_another_origin_does_nothing(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    csrf = csrf_of(await http.get("/"))
    assert (await http.post("/pause", data={"csrf": csrf}, headers=headers)).status_code == 403


async def test_origins_that_may_call_the_api_may_send_no_forms(stores: PostgresStores) -> None:
    allowing = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), allowed_origins=("http://grafana.example",))
    async with pages(stores, settings=allowing) as http:
        csrf = csrf_of(await http.get("/"))
        foreign = {"origin": "http://grafana.example"}
        assert (await http.post("/pause", data={"csrf": csrf}, headers=foreign)).status_code == 403
        assert (await http.get("/v1/jobs", headers=foreign)).status_code == 200


async def test_a_body_that_is_no_form_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.post("/pause", json={})).status_code == 415
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await http.post("/pause", content=b"a=%ff", headers=form)).status_code == 400
    assert (await http.post("/pause", content=b"a=b&" * 300, headers=form)).status_code == 400
    assert (await http.post("/pause", content=b"a=%00", headers=form)).status_code == 422
    assert (await http.post("/pause", content=b"x" * (OPEN.body_size_max + 1), headers=form)).status_code == 413


async def test_those_whom_nobody_knows_send_little(closed: httpx.AsyncClient) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await closed.post("/login", content=b"x" * 20_000, headers=form)).status_code == 413
    await log_in(closed, ROOT)
    assert (await closed.post("/pause", content=b"x" * 200_000, headers=form)).status_code == 413
    assert (await closed.post("/sql", content=b"x" * 200_000, headers=form)).status_code == 403


async def test_the_api_takes_no_cookie(closed: httpx.AsyncClient) -> None:
    await log_in(closed, ROOT)
    assert (await closed.get("/v1/jobs")).status_code == 401


async def test_a_session_ends_after_its_time_and_old_ones_make_room() -> None:
    clock = StillClock()
    sessions = Sessions(clock.monotonic, size_max=2)
    first, second, _ = (sessions.begin(SecretStr("t"), by="a") for _ in range(3))
    assert sessions.called(first) is None
    assert sessions.called(second) is not None
    assert "secret" not in repr(sessions.called(sessions.begin(SecretStr("secret"), by="a")))
    third = sessions.begin(SecretStr("t"), by="a")
    clock.seconds += timedelta(hours=8).total_seconds()
    assert sessions.called(third) is None


async def test_i13_an_actor_that_logs_in_again_and_again_ends_no_session_of_others() -> None:
    """Also with a new token each time, as the JWTs of one bearer are."""
    sessions = Sessions(StillClock().monotonic, size_max=10)
    others = [sessions.begin(SecretStr(name), by=name) for name in ("a", "b", "a")]
    own = [sessions.begin(SecretStr(f"t{number}"), by="t") for number in range(20)]
    assert all(sessions.called(one) is not None for one in others)
    assert [one for one in own if sessions.called(one) is not None] == own[-7:]


async def test_every_link_is_below_the_root_path(stores: PostgresStores) -> None:
    await table_and_view(stores)
    async with pages(stores, base="/below/it") as http:
        for prefix in ("/below/it", ""):
            for page in PAGES:
                address = page.path.replace("{job}", "2") + ("?name=m" if page.path == "/relation" else "")
                found = await http.get(f"{prefix}{address}")
                assert found.status_code == 200, found.text
                for mark in ('href="/', 'src="/', 'action="/', 'hx-get="/', 'sse-connect="/'):
                    assert found.text.count(mark) == found.text.count(f"{mark}below/it"), address
        answer = await send(http, "/below/it/pause", "/below/it/")
        assert answer.url.path == "/below/it/"
        assert (await http.get("/below/it/v1/jobs")).status_code == 200


def test_every_route_of_the_pages_declares_the_role_that_it_needs() -> None:
    open_paths = {"/login", "/logout", "/static/{name:path}"}
    for router in routers_of():
        for route in router.routes:
            assert isinstance(route, APIRoute)
            needs = declared(route)
            assert needs is not None
            assert (needs.role is None) == (route.path in open_paths)
