"""Complete FastAPI's OpenAPI document with the problems that any route may return.

It also adds what client generators need: readable operation ids, tags and the security scheme.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.api.errors import MEDIA_TYPE, Problem

DESCRIPTION: Final = """\
Materialized views over live tables, built while the tables keep changing.

Errors are `application/problem+json` with a stable `type`. Calls that change something take an `Idempotency-Key`: a
repetition with the same key and body gets the first answer. Calls with GET may be repeated at will. Lists are
`{"items": [..], "next": cursor}`; give `next` as `after` (newest first: as `before`) for the following page.
Epochs are strings, because they exceed 2^53. With an API token configured every call but the probes needs
`Authorization: Bearer`. Without one only clients of this machine are served. Viewers may read, operators may also
change data and jobs, and admins everything (`docs/access.md`).
"""
TAGS: Final = (
    {"name": "sql", "description": "Run SQL: create, drop, alter, insert, select. Most of tidefill is done here."},
    {
        "name": "relations",
        "description": "Tables and views in the catalog; bulk loads; the login for reading.",
    },
    {"name": "sources", "description": "External databases that tables follow, and the secrets to reach them."},
    {"name": "jobs", "description": "What is being created, and every way to steer it. Jobs are named by id or name."},
    {"name": "progress", "description": "How far every backfill is, with rows, totals and rates."},
    {"name": "mutations", "description": "Pause, resume and throttle with a barrier, acknowledged with its epoch."},
    {"name": "graphs", "description": "Barriers with their latencies, graphs, workers, and recovery."},
    {"name": "parameters", "description": "What ALTER SYSTEM SET sets."},
    {"name": "access", "description": "API tokens with their roles, and the audit trail of who changed what."},
    {"name": "events", "description": "The event log, page by page or live as server-sent events."},
    {"name": "probes", "description": "For those who keep the service running. Probes need no token."},
)

_ANY: Final = {
    400: "The request cannot be read",
    401: "A bearer token is needed",
    403: "The caller's role does not permit the call, or a web page of another origin sent it",
    404: "The thing named does not exist",
    409: "The present state does not allow this",
    413: "The body is too large",
    415: "The body's media type is not supported",
    421: "Without a token, the service is not known by this host name",
    422: "The request is not valid",
    429: "A quota of the caller's role is reached; see `quota` and Retry-After",
    503: "Not possible at this moment, for example because the graph is recovering; see Retry-After",
    500: "The service failed",
}
_OF_PROBES: Final = frozenset({400, 403, 421, 422, 500})
_SCHEMA: Final = "#/components/schemas/"
_BEARER: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token of `POST /v1/tokens`, or TIDEFILL_API_TOKEN, where that is configured",
}


def operation_id(route: APIRoute) -> str:
    """Return the name of the route's function, which reads well in a generated client."""
    return route.name


def document(app: FastAPI, *, token: bool) -> Callable[[], dict[str, Any]]:
    """Return the app's `openapi` function, which builds the document once. `token`: calls need a token."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(made(), token=token)
        return app.openapi_schema

    return openapi


def _completed(made: dict[str, Any], *, token: bool) -> dict[str, Any]:
    components: dict[str, Any] = made["components"]
    components["schemas"]["Problem"] = Problem.model_json_schema()
    components["securitySchemes"] = {"bearer": _BEARER}
    made["security"] = [{"bearer": []}] if token else [{}, {"bearer": []}]
    made["tags"] = list(TAGS)
    for path, operations in made["paths"].items():
        probe = not path.startswith("/v1")
        for operation in operations.values():
            _document_problems(operation["responses"], probe=probe)
            if probe and path != "/metrics":
                operation["security"] = []
    used = _used(made)
    components["schemas"] = {name: schema for name, schema in components["schemas"].items() if name in used}
    return made


def _used(made: dict[str, Any]) -> set[str]:
    """Return the schemas that some route refers to, directly or through another schema."""
    schemas: dict[str, Any] = made["components"]["schemas"]
    used: set[str] = set()
    found = set(_references(made["paths"]))
    while found:
        used |= found
        found = {name for one in found for name in _references(schemas[one])} - used
    return used


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():  # pyright: ignore[reportUnknownVariableType] - JSON
            if name == "$ref" and isinstance(value, str):
                yield value.removeprefix(_SCHEMA)
            else:
                yield from _references(value)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(part, list):
        for value in part:  # pyright: ignore[reportUnknownVariableType] - JSON
            yield from _references(value)  # pyright: ignore[reportUnknownArgumentType]


def _document_problems(responses: dict[str, Any], *, probe: bool) -> None:
    responses.pop("422", None)
    for status, text in _ANY.items():
        if not probe or status in _OF_PROBES:
            responses.setdefault(str(status), _problem(status, text))


def _problem(status: int, text: str) -> Mapping[str, Any]:
    response: dict[str, Any] = {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": f"{_SCHEMA}Problem"}}},
    }
    if status == 503:
        response["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "string"}}}
    return response
