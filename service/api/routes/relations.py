"""`/v1/relations`: the catalog, and the bulk load of a table."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from service.api.calling import Calling, Cursor, Here, Limit
from service.api.errors import MEDIA, answer
from service.operations import bulk, status
from service.operations.views import RelationPage, RelationView
from service.ports.records import Claim

router = APIRouter(prefix="/v1", tags=["relations"])

Name = Annotated[str, Path(min_length=1, max_length=200)]
_BODY = {"schema": {"type": "string", "format": "binary"}}


class Loaded(BaseModel):
    """How many rows the table took."""

    rows: int = Field(ge=0)


@router.get("/relations")
async def page(world: Here, after: Cursor = 0, limit: Limit = 100) -> RelationPage:
    """List relations, oldest first."""
    return await status.relations(world, after=after, limit=limit)


@router.get("/relations/{name}")
async def detail(world: Here, name: Name) -> RelationView:
    """Show a relation."""
    return await status.relation(world, name)


@router.post(
    "/relations/{name}/rows",
    response_model=Loaded,
    openapi_extra={"requestBody": {"required": True, "content": {str(form): _BODY for form in bulk.Form}}},
)
async def load(
    name: Name,
    request: Request,
    call: Calling,
    columns: Annotated[
        str | None,
        Query(max_length=4000, description="The columns that the rows give, by name with commas; default: all"),
    ] = None,
) -> Mapping[str, Any] | Response:
    """Load rows into a table: all of them or, when one is bad, none. A row whose key exists overwrites."""
    media, _, options = request.headers.get("content-type", "").partition(";")
    form = next((form for form in bulk.Form if form == media.strip().lower()), None)
    if form is None or ("charset" in options.lower() and "utf-8" not in options.lower()):
        forms = ", ".join(bulk.Form)
        return answer(MEDIA, f'rows come as {forms}, text in UTF-8; not as "{media}"')
    names = None if columns is None else [part.strip() for part in columns.split(",")]
    async with bulk.received(request.stream(), form, keep=call.key is not None) as body:

        async def act(claim: Claim | None) -> Loaded:
            return Loaded(rows=await bulk.load(call.world, name, names, body, claim=claim))

        return await call.claimed(Loaded, act, body=body.digest)
