"""Everything that can go wrong has one place in the table, and none of it shows the inside."""

import json
import re
from collections.abc import Iterator

import pytest

from service.api.errors import KINDS, kind_of
from service.domain.errors import (
    Conflict,
    Deadlocked,
    Deposed,
    Exhausted,
    Fenced,
    Forbidden,
    InLake,
    InUse,
    Invalid,
    MetaError,
    Moved,
    NotFound,
    OverQuota,
    Refused,
    Stale,
    TimedOut,
    TooLarge,
    Unavailable,
    UnderRecovery,
    Unreachable,
)
from service.domain.job import IllegalTransition, JobEvent, JobState
from service.domain.roles import Role
from service.protocol.ids import Generation, Term
from tests.support.http import BrokenStores, doors, refused

CASES = [
    (Invalid("no", position=3, pointer="/a"), 422, "invalid"),
    (NotFound("no", kind="job"), 404, "not-found"),
    (Conflict("no"), 409, "conflict"),
    (IllegalTransition(JobState.DROPPED, JobEvent.FAILED), 409, "conflict"),
    (Forbidden(needs=Role.ADMIN, has=Role.VIEWER), 403, "forbidden"),
    (InLake("no"), 422, "invalid"),
    (TooLarge("no", limited_by="viewer_result_bytes_max"), 422, "invalid"),
    (OverQuota("no", quota="operator_creating_jobs_max", limit=3, used=4), 429, "quota"),
    (TimedOut("no"), 408, "request-timeout"),
    (Refused("no"), 422, "refused"),
    (Deposed(Term(2)), 410, "deposed"),
    (Stale(Generation(2)), 410, "stale"),
    (Fenced("no"), 410, "fenced"),
    (UnderRecovery("worker lost"), 503, "under-recovery"),
    (Unreachable("no", 6.0), 503, "unreachable"),
    (Deadlocked("no"), 503, "unavailable"),
    (Moved("no"), 503, "unavailable"),
    (InUse("no"), 503, "unavailable"),
    (Unavailable("no"), 503, "unavailable"),
    (Exhausted("no"), 503, "exhausted"),
]


@pytest.mark.parametrize(("error", "status", "kind"), CASES, ids=lambda case: type(case).__name__)
async def test_an_error_of_the_domain_has_its_answer(error: MetaError, status: int, kind: str) -> None:
    async with doors(BrokenStores(error)) as http:
        response = await http.get("/v1/jobs")
    problem = refused(response, status, kind)
    assert problem["detail"] == str(error)
    assert ("retry-after" in response.headers) == (status == 503)


def test_every_error_of_the_domain_is_in_the_table() -> None:
    tried = {type(error) for error, _, _ in CASES}
    for error in _below(MetaError):
        assert error in tried, f"{error.__name__} has no case here"
        assert error in KINDS or error is IllegalTransition, f"{error.__name__} has no entry of its own"


def test_an_error_without_an_entry_takes_that_of_the_class_above() -> None:
    class Odd(UnderRecovery):
        pass

    assert kind_of(Odd("x")).name == "under-recovery"


async def test_position_and_pointer_are_told() -> None:
    async with doors(BrokenStores(Invalid("no", position=3, pointer="/a"))) as http:
        problem = (await http.get("/v1/jobs")).json()
    assert (problem["position"], problem["pointer"]) == (3, "/a")


async def test_what_nobody_foresaw_tells_nothing_of_the_inside() -> None:
    async with doors(BrokenStores(ZeroDivisionError("password=hunter2"))) as http:
        response = await http.get("/v1/jobs")
    refused(response, 500, "internal")
    assert "hunter2" not in response.text
    assert "ZeroDivision" not in response.text


async def test_an_error_text_that_utf8_cannot_carry_is_answered_all_the_same() -> None:
    async with doors(BrokenStores(Invalid("odd \ud800"))) as http:
        assert refused(await http.get("/v1/jobs"), 422, "invalid")["detail"] == "odd ?"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nothing", 404, "no-such-route"),
        ("GET", "/v1/jobs/", 404, "no-such-route"),
        ("DELETE", "/v1/jobs", 405, "method-not-allowed"),
        ("GET", f"/v1/jobs/{2**63}", 422, "invalid"),
        ("GET", "/v1/jobs/" + "9" * 150, 422, "invalid"),
        ("GET", "/v1/jobs?limit=0", 422, "invalid"),
        ("GET", "/v1/jobs?limit=" + "9" * 5000, 422, "invalid"),
        ("GET", "/v1/jobs?state=Lost", 422, "invalid"),
        ("GET", "/v1/jobs?after=%00", 400, "malformed"),
        ("GET", "/v1/relations/a%00b", 400, "malformed"),
        ("GET", f"/v1/barriers?before={2**64}", 422, "invalid"),
    ],
)
async def test_a_request_that_names_nothing_is_refused_before_anything_is_read(
    method: str, path: str, status: int, kind: str
) -> None:
    stores = BrokenStores(AssertionError("reached"))
    async with doors(stores) as http:
        refused(await http.request(method, path), status, kind)
    assert stores.asked == 0


async def test_a_refused_method_is_told_which_ones_the_document_has_at_the_path() -> None:
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        assert "/v1/sources/check" in paths
        for path, operations in paths.items():
            answer = await http.options(re.sub("{.*?}", "7", path))
            refused(answer, 405, "method-not-allowed")
            assert answer.headers["allow"] == ", ".join(sorted(method.upper() for method in operations)), path


async def test_a_fault_is_named_by_its_place() -> None:
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        body = {"type": "throttle", "fragments": {"7": -1}}
        problem = refused(await http.post("/v1/mutations", json=body), 422, "invalid")
        assert problem["pointer"] == "/fragments/7"
        problem = refused(await http.post("/v1/sql", json={"session": {}}), 422, "invalid")
        assert problem["pointer"] == "/sql"
        problem = refused(await http.patch("/v1/system-parameters", json={"a/b": []}), 422, "invalid")
        assert problem["pointer"] == "/a~1b"
        problem = refused(await http.get("/v1/jobs?limit=x"), 422, "invalid")
        assert problem["pointer"] == "limit"


async def test_the_document_says_which_problems_a_route_may_answer() -> None:
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        document = (await http.get("/openapi.json")).json()
        again = (await http.get("/openapi.json")).json()
    assert document == again
    assert "HTTPValidationError" not in json.dumps(document)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            wanted = (
                {"400", "401", "404", "409", "413", "415", "422", "500", "503"} if path.startswith("/v1") else {"500"}
            )
            assert wanted <= operation["responses"].keys(), path


def _below(error: type[MetaError]) -> Iterator[type[MetaError]]:
    for below in error.__subclasses__():
        if below.__module__.startswith("service."):
            yield below
        yield from _below(below)


async def test_a_quota_is_told_with_its_numbers_and_with_a_time_if_it_is_short() -> None:
    for soon in (False, True):
        error = OverQuota("no", quota="viewer_calls_max", limit=3, used=4, retry_soon=soon)
        async with doors(BrokenStores(error)) as http:
            answer = await http.get("/v1/jobs")
        problem = refused(answer, 429, "quota")
        assert (problem["quota"], problem["limit"], problem["used"]) == ("viewer_calls_max", 3, 4)
        assert answer.headers.get("retry-after") == ("1" if soon else None)
