"""What a viewer can send, made from `/openapi.json`, to a live service: none of it changes anything.

`tests.integration.api.test_access` has the routes and the kinds of statements one by one.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from service.api.app import create_app
from service.operations.world import World
from tests.architecture.test_roles import ADMINISTERED, OPERATED
from tests.support.http import OPEN, Checks
from tests.support.sampling import SHARE, sampled
from tests.support.service import Service

pytestmark = pytest.mark.e2e

EXAMPLES: Final = 8
"""Of each operation, in `make soak`."""
SLOW: Final = ["/v1/events", "/v1/jobs/{job}/wait"]
"""A stream never ends, and waiting for a job is waiting."""
CATALOG: Final = (
    "select id, name, kind, definition, shown, dropped from tidefill.relation",
    "select id, statement, state, parallelism, backfill_parallelism from tidefill.job",
    "select id, rate_limit, auto from tidefill.fragment",
    "select id, paused, recoveries from tidefill.graph where id = 1",
    "select id, asked_by from tidefill.command",
    "select id from tidefill.statement",
    "select id, name, role, revoked_at from tidefill.api_token",
    "select id from tidefill.audit_entry where outcome = 'accepted'",
    "select * from tidefill.secret",
    "select * from tidefill.system_parameter",
    "select relation, options from tidefill.source",
    "select * from public.kept",
)

schema = schemathesis.openapi.from_dict(
    create_app(cast("World", None), settings=OPEN, ready=Checks()).openapi(),
).exclude(path=SLOW)
for_every_operation = cast("Callable[[Callable[..., None]], Callable[..., None]]", schema.parametrize())


def catalog(service: Service) -> list[list[str]]:
    return [sorted(map(str, service.stored(query))) for query in CATALOG]


@pytest.fixture(scope="module")
def viewer(live_service: Service) -> Iterator[str]:
    """The token of a viewer. After the module's tests the catalog is what it was before."""
    live_service.reset()
    live_service.run("CREATE TABLE kept (id int primary key)")
    live_service.run("INSERT INTO kept VALUES (1), (2)")
    live_service.run("CREATE MATERIALIZED VIEW of_kept AS SELECT id FROM kept")
    made = live_service.post("/v1/tokens", {"name": "of-the-tests", "role": "viewer"})
    before = catalog(live_service)
    assert all(before[:2])
    yield made["text"]
    assert catalog(live_service) == before
    live_service.call("DELETE", f"/v1/tokens/{made['id']}")
    live_service.reset()


def drawn(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
    )


@for_every_operation
@drawn(EXAMPLES // SHARE)
def test_no_request_of_a_viewer_changes_anything(
    case: "schemathesis.Case[Any]", live_service: Service, viewer: str
) -> None:
    judge(case, live_service, viewer)


@pytest.mark.soak
@for_every_operation
@drawn(EXAMPLES)
def test_no_request_of_many_of_a_viewer_changes_anything(
    case: "schemathesis.Case[Any]", live_service: Service, viewer: str
) -> None:
    judge(case, live_service, viewer)


def judge(case: "schemathesis.Case[Any]", live_service: Service, viewer: str) -> None:
    response = case.call(base_url=live_service.url, headers={"Authorization": f"Bearer {viewer}"}, timeout=60)
    assert response.status_code < 500, response.text


@pytest.mark.parametrize("statement", sampled([*OPERATED, *ADMINISTERED]))
def test_no_statement_of_a_viewer_changes_anything(live_service: Service, viewer: str, statement: str) -> None:
    headers = {"Authorization": f"Bearer {viewer}"}
    answer = live_service.http.post("/v1/sql", json={"sql": statement}, headers=headers)
    assert (answer.status_code, answer.json()["has"]) == (403, "viewer")
