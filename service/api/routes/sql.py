"""`/v1/sql`: one statement a call. The server keeps no session: the client sends back the last answer's session map.

Next: `service.operations.statements.dispatch`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Body, Request, Response
from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter

from service.api import rows_json
from service.api.access import needs
from service.api.calling import Calling
from service.api.json_body import ParsedRoute
from service.domain.roles import Role
from service.operations.statements import dispatch
from service.ports.records import Claim
from service.protocol.first_fault import first_fault
from service.protocol.ids import JobId

router = APIRouter(prefix="/v1", tags=["sql"], route_class=ParsedRoute)

_SESSION_MAX = 100
Name = Annotated[str, Field(max_length=200)]
Value = Annotated[int, Strict()] | Annotated[bool, Strict()] | Annotated[str, Field(max_length=1000)]
_Session = dict[Name, Value]

_EXAMPLES: Final[dict[str, Example]] = {
    "select": {"summary": "Read", "value": {"sql": "SELECT id, note FROM orders LIMIT 10"}},
    "insert": {"summary": "Write", "value": {"sql": "INSERT INTO orders VALUES (1, 'first')"}},
    "background": {
        "summary": "Create a view in the background",
        "value": {
            "sql": "CREATE MATERIALIZED VIEW big AS SELECT id FROM orders WHERE id > 100",
            "session": {"background_ddl": "true"},
        },
    },
}


class SqlBody(BaseModel):
    """One statement, and the session map of the last answer. Values are texts; numbers and booleans work as well."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sql: str = Field(min_length=1, examples=["SELECT 1"])
    session: Annotated[_Session, first_fault(TypeAdapter(_Session))] = Field(
        default_factory=dict[Name, Value], max_length=_SESSION_MAX
    )


class ResultColumn(BaseModel):
    """A column of the result; `type` is Postgres's name."""

    name: str
    type: str


class SqlResult(BaseModel):
    """The result of the statement.

    `rows` are JSON: numbers where exact, else strings; NULL is null. `truncated` tells that the row cap cut them. Send
    `session` with the next statement. `job` is the job of a table or materialized view that was created; `background`
    tells that it is still running, as status 202 does.
    """

    tag: str
    columns: list[ResultColumn]
    rows: list[list[Any]]
    notices: list[str]
    session: dict[str, str]
    truncated: bool
    job: JobId | None = None
    background: bool = False


@router.post(
    "/sql",
    response_model=SqlResult,
    responses={
        202: {
            "model": SqlResult,
            "description": "A background CREATE was accepted; its job goes on",
            "headers": {"Location": {"description": "The job", "schema": {"type": "string"}}},
        }
    },
    dependencies=needs(Role.VIEWER),
)
async def run_statement(
    body: Annotated[SqlBody, Body(openapi_examples=_EXAMPLES)], call: Calling, request: Request
) -> Response:
    """Run one SQL statement. A CREATE with `background_ddl` returns 202 and its job in `Location`."""
    session = {name: value if isinstance(value, str) else str(value).lower() for name, value in body.session.items()}

    admitted = await dispatch.admitted(call.world, body.sql, session=session, asked_by=call.asked_by)

    async def act(claim: Claim | None) -> Mapping[str, Any]:
        outcome = await admitted.run(claim, call.gone)
        return {
            "tag": outcome.tag,
            "columns": [{"name": name, "type": kind} for name, kind in outcome.columns],
            "notices": outcome.notices,
            "session": outcome.session,
            "truncated": outcome.truncated,
            "job": outcome.job,
            "background": outcome.background,
            "rows": outcome.rows,
        }

    # A statement that only reads may be run again, and its result may be large.
    answer = dict(await (call.kept(act) if admitted.changes else act(None)))
    rows, unsent, caller = answer.pop("rows"), cast("rows_json.Unsent", request.app.state.unsent), call.asked_by.actor
    # The kept answer contains it, so that a repetition with the same key gets the same status.
    if not answer.get("background"):
        return rows_json.answer(answer, rows, unsent, caller)
    location = {"Location": f"/v1/jobs/{answer['job']}"}
    return rows_json.answer(answer, rows, unsent, caller, status=202, headers=location)
