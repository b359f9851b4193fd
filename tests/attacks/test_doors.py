"""Attacks on the HTTP doors: web pages that call the service, and sources that scan its network."""

import httpx
import pytest

from tests.support.bystander import Bystander
from tests.support.service import Service

pytestmark = pytest.mark.e2e
FOREIGN = (
    {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "same-site"},
)


def test_s8_no_web_page_changes_anything_even_with_the_token(service: Service, bystander: Bystander) -> None:
    with bystander.unharmed(), httpx.Client(base_url=service.url, headers=service.headers) as page:
        for sent in FOREIGN:
            for path in ("/v1/recover", "/v1/barriers", "/v1/jobs/1/cancel", "/v1/jobs/1/pause", "/v1/jobs/1/verify"):
                answer = page.post(path, headers=sent)
                assert (answer.status_code, answer.json()["type"]) == (403, "urn:tidefill:problem:foreign-origin")
            answer = page.post("/v1/sql", json={"sql": "CREATE SECRET s WITH (backend = 'meta') AS 'x'"}, headers=sent)
            assert answer.status_code == 403
            assert page.get("/v1/events", headers=sent).status_code == 403
    assert service.get("/v1/secrets") == []
