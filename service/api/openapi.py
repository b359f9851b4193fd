"""The OpenAPI document: FastAPI's own, with the problems that any route may answer."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import FastAPI

from service.api.errors import MEDIA_TYPE, Problem

DESCRIPTION: Final = """\
Materialized views over live tables, built while the tables keep changing.

Errors are `application/problem+json` with a stable `type`. Calls that change something take an `Idempotency-Key`.
Epochs are strings. With an API token configured every call but the probes needs `Authorization: Bearer`.

**Events.** `GET /v1/events` is a stream of server-sent events that never ends, and therefore not among the paths
below. It resumes after the `Last-Event-ID` header or the `after` parameter; without either it starts now. With
`Accept: application/json` it answers one page, `{"items": [{"id", "at", "kind", "facts"}], "next"}`, with `after` and
`limit`.
"""

_ANY: Final = {
    400: "The request cannot be read",
    401: "A bearer token is needed",
    404: "The thing named does not exist",
    409: "The present state does not allow this",
    413: "The body is too large",
    415: "The body's media type is not supported",
    422: "The request is not valid",
    503: "The world did not answer in time, or the graph is recovering; see Retry-After",
    500: "The service failed",
}
_OF_PROBES: Final = frozenset({500})


def document(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Return the app's `openapi`, made once."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(made())
        return app.openapi_schema

    return openapi


def _completed(made: dict[str, Any]) -> dict[str, Any]:
    schemas: dict[str, Any] = made["components"]["schemas"]
    schemas["Problem"] = Problem.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path, operations in made["paths"].items():
        for operation in operations.values():
            _document_problems(operation["responses"], probe=not path.startswith("/v1"))
    return made


def _document_problems(responses: dict[str, Any], *, probe: bool) -> None:
    responses.pop("422", None)
    for status, text in _ANY.items():
        if not probe or status in _OF_PROBES:
            responses.setdefault(str(status), _problem(status, text))


def _problem(status: int, text: str) -> Mapping[str, Any]:
    response: dict[str, Any] = {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    if status == 503:
        response["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "string"}}}
    return response
