"""`/v1/relations`: the catalog, and the bulk load of a table."""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from service.api.access import needs
from service.api.calling import Calling, Cursor, Here, Limit
from service.api.errors import MEDIA, answer
from service.domain.roles import Role
from service.operations.rows import bulk
from service.operations.rows.unpacking import unpacked
from service.operations.status import listing
from service.operations.status.models import RelationPage, RelationView
from service.ports.records import Claim

router = APIRouter(prefix="/v1", tags=["relations"])

Name = Annotated[str, Path(min_length=1, max_length=200)]
BYTES: Final = "application/octet-stream"
_FORMATS: Final = {form.name.lower(): form for form in bulk.Form}
_BODY: Final = {"schema": {"type": "string", "format": "binary"}}


class Loaded(BaseModel):
    """How many rows were loaded."""

    rows: int = Field(ge=0)


@router.get("/relations", dependencies=needs(Role.VIEWER))
async def list_relations(world: Here, after: Cursor = 0, limit: Limit = 100) -> RelationPage:
    """List relations, oldest first."""
    return await listing.relations(world, after=after, limit=limit)


@router.get("/relations/{name}", dependencies=needs(Role.VIEWER))
async def show_relation(world: Here, name: Name) -> RelationView:
    """Show a relation."""
    return await listing.relation(world, name)


@router.post(
    "/relations/{name}/rows",
    response_model=Loaded,
    # One media type, because client generators know no other one for bytes. `format` tells the format.
    openapi_extra={"requestBody": {"required": True, "content": {BYTES: _BODY}}},
    dependencies=needs(Role.OPERATOR),
)
async def load_rows(
    name: Name,
    request: Request,
    call: Calling,
    columns: Annotated[
        str | None,
        Query(max_length=4000, description="The columns that the rows give, by name with commas; default: all"),
    ] = None,
    *,
    rows_format: Annotated[
        Literal["arrow", "parquet", "csv", "ndjson"] | None,
        Query(alias="format", description="What the body is where its media type is application/octet-stream"),
    ] = None,
) -> Mapping[str, Any] | Response:
    """Load rows into a table: all of them or, if one is invalid, none. A row with an existing key replaces the old row.

    The body is an Arrow stream, Parquet, CSV with a header or NDJSON. Its media type tells which one
    (`application/vnd.apache.arrow.stream`, `application/vnd.apache.parquet`, `text/csv`, `application/x-ndjson`). With
    `application/octet-stream`, the parameter `format` does. The body may be packed, with `Content-Encoding: gzip`.
    """
    media, _, options = request.headers.get("content-type", "").partition(";")
    named = _FORMATS[rows_format] if rows_format is not None and media.strip().lower() == BYTES else media
    form = next((form for form in bulk.Form if form == named.strip().lower()), None)
    if form is None or ("charset" in options.lower() and "utf-8" not in options.lower()):
        forms = ", ".join(bulk.Form)
        return answer(MEDIA, f'rows come as {forms}, text in UTF-8; not as "{media}"')
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip"}:
        return answer(MEDIA, f'a body of rows comes as it is, or with Content-Encoding: gzip; not as "{encoding}"')
    names = None if columns is None else [part.strip() for part in columns.split(",")]
    # Checked first, so that no rows are received for a table that does not exist.
    await bulk.table_called(call.world, name)
    stream, loading = bulk.paced(call.world, request.stream()), call.world.loading
    if encoding == "gzip":
        stream = unpacked(stream, loading.pieces)
    receiving = bulk.received(loading.spool, stream, form, pieces=loading.pieces, caller=call.asked_by.actor)
    async with aclosing(stream), receiving as body:

        async def act(claim: Claim | None) -> Loaded:
            return Loaded(rows=await bulk.load(call.world, name, names, body, asked_by=call.asked_by, claim=claim))

        return await call.claimed(Loaded, act, body=body.digest)
