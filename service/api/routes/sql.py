"""`/v1/sql`: one statement a call. The server keeps no session: the client sends back the map that it was given."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, Strict

from service.api.calling import Calling
from service.api.encoding import encoded
from service.operations import sql
from service.ports.records import Claim

router = APIRouter(prefix="/v1", tags=["sql"])

_SESSION_MAX = 100
Name = Annotated[str, Field(max_length=200)]
Value = Annotated[int, Strict()] | Annotated[bool, Strict()] | Annotated[str, Field(max_length=1000)]


class SqlBody(BaseModel):
    """One statement, and the session map that the last answer gave: texts there; a number or a boolean will do."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sql: str = Field(min_length=1, examples=["SELECT 1"])
    session: dict[Name, Value] = Field(default_factory=dict, max_length=_SESSION_MAX)


class ResultColumn(BaseModel):
    """A column of the result; `type` is Postgres's name."""

    name: str
    type: str


class SqlResult(BaseModel):
    """What the statement gave. Values are JSON: numbers where exact, else strings; NULL is null. `truncated` says that
    the row cap cut the rows. `session` is to be sent with the next statement.
    """

    tag: str
    columns: list[ResultColumn]
    rows: list[list[Any]]
    notices: list[str]
    session: dict[str, str]
    truncated: bool


@router.post("/sql", response_model=SqlResult)
async def run(body: SqlBody, call: Calling) -> Response:
    """Run one SQL statement."""
    session = {name: value if isinstance(value, str) else str(value).lower() for name, value in body.session.items()}

    async def act(claim: Claim | None) -> Mapping[str, Any]:
        outcome = await sql.run(
            call.world, body.sql, session=session, asked_by=call.asked_by, claim=claim, gone=call.gone
        )
        return {
            "tag": outcome.tag,
            "columns": [{"name": name, "type": kind} for name, kind in outcome.columns],
            "notices": outcome.notices,
            "session": outcome.session,
            "truncated": outcome.truncated,
            "rows": outcome.rows,
        }

    answer = dict(await call.kept(act))
    rows = answer.pop("rows")
    return Response(await encoded(answer, rows), media_type="application/json")
