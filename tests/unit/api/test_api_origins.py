"""S8: no web page reaches the service, by DNS rebinding or across sites."""

from collections.abc import Sequence
from itertools import product

import pytest
from pydantic import SecretStr

from service.api.origins import Head, Refusal, is_loopback, judge, origin_of
from service.api.settings import ApiSettings
from tests.support.http import WORKER_TOKEN, BrokenStores, doors, refused

HERE = "localhost:8700"
LISTED = "https://grafana.example"
ALLOWED = frozenset({LISTED})

LOOPBACK = [
    "localhost",
    "localhost:8700",
    "LocalHost:8700",
    "localhost.",
    "localhost.:8700",
    "localhost:",
    "127.0.0.1",
    "127.0.0.1:8700",
    "127.255.3.4:1",
    "[::1]",
    "[::1]:8700",
    "[0:0:0:0:0:0:0:1]:8700",
]
FOREIGN = [
    "",
    " ",
    ":8700",
    "evil.example",
    "evil.example:8791",
    "localhost.evil.example",
    "evil.localhost",
    "127.0.0.1.evil.example",
    "localhost..",
    "127.0.0.1.",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "0.0.0.0",
    "0.0.0.0:8700",
    "128.0.0.1",
    "10.0.0.1",
    "169.254.169.254",
    "::1",
    "[::]",
    "[::2]:8700",
    "[::1%25lo]",
    "[127.0.0.1]",
    "[::1",
    "user@localhost",
    "localhost/evil",
    "localhost, evil.example",
    "localhost:8700:8700",
    "localhost:port",
    "\N{FULLWIDTH LATIN SMALL LETTER L}ocalhost",
    "localhost\n",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_s8_loopback_hosts_are_served_without_a_token(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_s8_no_other_host_is_served_without_a_token(host: str) -> None:
    assert not is_loopback(host)
    for method in ("GET", "POST"):
        assert judge(Head(method, "/v1/sql", host=[host]), loopback_only=True) is Refusal.HOST


METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "ODD"]
HOSTS: list[Sequence[str]] = [[], [HERE], ["evil.example"], [HERE, HERE]]
ORIGINS: list[Sequence[str]] = [
    [],
    [f"http://{HERE}"],
    [f"https://{HERE}"],
    ["HTTP://LOCALHOST:8700"],
    ["http://localhost"],
    ["http://127.0.0.1:8700"],
    ["http://evil.example"],
    ["https://evil.example"],
    ["null"],
    [""],
    [f"http://{HERE}/"],
    ["file://"],
    [LISTED],
    [f"{LISTED}:443"],
    ["https://GRAFANA.example"],
    ["http://grafana.example"],
    ["https://grafana.example:3000"],
    [LISTED, LISTED],
    [f"http://{HERE}", "http://evil.example"],
]
SITES: list[Sequence[str]] = [[], ["same-origin"], ["none"], ["same-site"], ["cross-site"], ["odd"], ["Same-Origin"]]
MODES: list[Sequence[str]] = [[], ["navigate"], ["cors"], ["no-cors"]]


def test_s8_every_combination_of_a_head_is_decided_as_the_rules_say() -> None:
    for method, host, origin, site, mode, loopback_only in product(
        METHODS, HOSTS, ORIGINS, SITES, MODES, [False, True]
    ):
        head = Head(method, "/v1/recover", host, origin, site, mode)
        assert judge(head, loopback_only=loopback_only, allowed=ALLOWED) is _wanted(head, loopback_only=loopback_only)


def _wanted(head: Head, *, loopback_only: bool) -> Refusal | None:
    """The rules once more, by enumeration instead of by parsing."""
    if len(head.host) == 2 or (loopback_only and list(head.host) != [HERE]):
        return Refusal.HOST
    if list(head.origin) in ([LISTED], [f"{LISTED}:443"], ["https://GRAFANA.example"]):
        return None
    hosts = {
        HERE: [[f"http://{HERE}"], [f"https://{HERE}"], ["HTTP://LOCALHOST:8700"]],
        "evil.example": [["http://evil.example"], ["https://evil.example"]],
    }
    own = hosts[head.host[0]] if head.host else []
    if head.origin and list(head.origin) not in own:
        return Refusal.ORIGIN
    if list(head.site) in ([], ["same-origin"], ["none"], ["Same-Origin"]):
        return None
    reads = head.method in {"GET", "HEAD", "OPTIONS"}
    return None if reads and list(head.mode) == ["navigate"] else Refusal.ORIGIN


@pytest.mark.parametrize(
    "target", ["http://evil.example/v1/sql", "https://localhost:8700/", "evil.example:443", "*", ""]
)
def test_s8_a_request_target_that_is_no_path_is_refused(target: str) -> None:
    assert judge(Head("GET", target, host=[HERE]), loopback_only=True) is Refusal.TARGET
    assert judge(Head("GET", target, host=[HERE]), loopback_only=False) is Refusal.TARGET


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://a.example", "https://a.example"),
        ("https://A.example:443", "https://a.example"),
        ("http://a.example:443", "http://a.example:443"),
        ("http://[::1]:8700", "http://[::1]:8700"),
        ("null", None),
        ("*", None),
        ("https://a.example/", None),
        ("https://u@a.example", None),
        ("ftp://a.example", None),
        ("a.example", None),
    ],
)
def test_s8_an_origin_is_a_scheme_a_host_and_a_port(text: str, origin: str | None) -> None:
    assert origin_of(text) == origin


def unreached() -> BrokenStores:
    return BrokenStores(AssertionError("reached"))


@pytest.mark.parametrize("path", ["/v1/jobs", "/docs", "/openapi.json", "/livez", "/readyz", "/metrics", "/none"])
async def test_s8_dns_rebinding_reaches_no_path(path: str) -> None:
    async with doors(unreached()) as http:
        answer = await http.get(path, headers={"Host": "evil.example:8791", "X-Forwarded-Host": HERE})
    assert "TIDEFILL_API_TOKEN" in refused(answer, 421, "misdirected")["detail"]


@pytest.mark.parametrize("path", ["/v1/recover", "/v1/jobs/7/cancel", "/v1/jobs/7/pause", "/v1/jobs/7/verify"])
@pytest.mark.parametrize("token", [None, SecretStr("t")])
async def test_s8_a_page_of_another_site_changes_nothing_even_without_a_body(
    path: str, token: SecretStr | None
) -> None:
    settings = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), api_token=token)
    sent = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Authorization": "Bearer t"}
    async with doors(unreached(), settings=settings) as http:
        assert "ALLOWED_ORIGINS" in refused(await http.post(path, headers=sent), 403, "foreign-origin")["detail"]
        for given in ({"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
            refused(await http.post(path, headers={"Authorization": "Bearer t", **given}), 403, "foreign-origin")


async def test_s8_a_listed_origin_may_call_and_its_browser_is_told_so() -> None:
    settings = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), allowed_origins=(LISTED,))
    async with doors(unreached(), settings=settings) as http:
        asked = {"Origin": LISTED, "Sec-Fetch-Site": "cross-site"}
        answer = await http.get("/livez", headers=asked)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, LISTED)
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "idempotency-key"}
        answer = await http.options("/v1/sql", headers={**asked, **preflight})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, LISTED)
        refused(await http.get("/livez", headers={**asked, "Origin": "https://b.example"}), 403, "foreign-origin")


async def test_s8_with_a_token_any_host_name_is_served() -> None:
    settings = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), api_token=SecretStr("t"))
    async with doors(unreached(), settings=settings) as http:
        assert (await http.get("/livez", headers={"Host": "tidefill.example"})).status_code == 200
