"""What a stranger can send: requests made from `/openapi.json`, valid and broken ones, against a live service.

None may be answered by a 5xx, and every answer must be as documented. What valid requests mean is not judged here:
most name jobs, tables and statements that do not exist.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

from service.api.app import create_app
from service.operations.rows.bulk import Form
from service.operations.world import World
from tests.support.http import OPEN, Checks
from tests.support.sampling import SHARE

pytestmark = pytest.mark.e2e

SLOW = {"/v1/recover", "/v1/jobs/{job}/wait", "/v1/events"}
"""A recovery makes what follows wait for it; waiting for a job is waiting; a stream never ends."""
SETTINGS = "/v1/system-parameters"
EXAMPLES = 20
"""Of each operation, in `make soak`."""
QUICK = {"barrier_interval_ms": 250}
"""Much of what is asked waits for a barrier."""
TIMEOUT_SECONDS = 60


class LiveService(Protocol):
    """A service with a worker that runs."""

    url: str
    token: str | None


@schemathesis.serializer(*(form for form in Form if form is not Form.CSV))
def as_bytes(_context: object, value: object) -> bytes:
    """Rows in a form of which schemathesis knows nothing: it makes bytes, and they are sent as they are."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


schema = schemathesis.openapi.from_dict(
    create_app(cast("World", None), settings=OPEN, ready=Checks()).openapi(),
).exclude(path=sorted(SLOW))

for_every_operation = cast("Callable[[Callable[..., None]], Callable[..., None]]", schema.parametrize())


@pytest.fixture(scope="module", autouse=True)
def left_as_found(live_service: LiveService) -> Iterator[None]:
    """Whatever was set or paused, others find the service as it was."""
    with httpx.Client(base_url=live_service.url, headers=bearer(live_service), timeout=TIMEOUT_SECONDS) as http:
        restore(http, **QUICK)
        yield
        restore(http)
        resumed = http.post("/v1/mutations?wait=applied", json={"type": "resume"})
        assert resumed.status_code == 200, resumed.text


def drawn(examples: int) -> settings:
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
    )


@for_every_operation
@drawn(EXAMPLES // SHARE)
def test_no_request_breaks_the_service(case: "schemathesis.Case[Any]", live_service: LiveService) -> None:
    judge(case, live_service)


@pytest.mark.soak
@for_every_operation
@drawn(EXAMPLES)
def test_no_request_of_many_breaks_the_service(case: "schemathesis.Case[Any]", live_service: LiveService) -> None:
    judge(case, live_service)


def judge(case: "schemathesis.Case[Any]", live_service: LiveService) -> None:
    """Make the request, and assert that the answer is as documented."""
    response = case.call(base_url=live_service.url, headers=bearer(live_service), timeout=TIMEOUT_SECONDS)
    if case.operation.path == SETTINGS and case.method == "PATCH":
        # An interval of an hour would have every later statement wait for it.
        with httpx.Client(base_url=live_service.url, headers=bearer(live_service)) as http:
            restore(http, **QUICK)
    case.validate_response(
        response,
        checks=[
            checks.not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_headers_conformance,
            checks.response_schema_conformance,
            checks.negative_data_rejection,
            checks.unsupported_method,
            checks.allow_header_conformance,
        ],
    )


def bearer(service: LiveService) -> dict[str, str]:
    return {} if service.token is None else {"Authorization": f"Bearer {service.token}"}


def restore(http: httpx.Client, **but: int) -> None:
    """Set every system parameter to its default, but some."""
    names = http.get(SETTINGS).json()
    answer = http.patch(SETTINGS, json=dict.fromkeys(names, "default") | but)
    assert answer.status_code == 200, answer.text
