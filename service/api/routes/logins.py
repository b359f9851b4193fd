"""`/v1/read-login`: the Postgres login for psql, BI tools and Spark. It can read public views and nothing else."""

from typing import Annotated, cast
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from service.api.access import needs
from service.api.settings import ReadLogin
from service.domain.errors import NotFound
from service.domain.roles import Role

router = APIRouter(prefix="/v1", tags=["relations"])


class ReadLoginView(BaseModel):
    """A Postgres login. `password` is null, and missing in `dsn`, unless the call asks for it."""

    host: str = Field(description="As the service reaches the server; from elsewhere it may have another name")
    port: int
    database: str
    user: str
    password: str | None
    dsn: str = Field(examples=["postgresql://tidefill_read@127.0.0.1:5432/tidefill"])
    jdbc_url: str = Field(examples=["jdbc:postgresql://127.0.0.1:5432/tidefill"])


@router.get("/read-login", dependencies=needs(Role.VIEWER))
async def show_read_login(
    request: Request, *, password: Annotated[bool, Query(description="Show the password as well")] = False
) -> ReadLoginView:
    """Show how to log in to Postgres to read tables and views. The login cannot write."""
    login = cast("ReadLogin | None", request.app.state.read_login)
    if login is None:
        raise NotFound("this service made no login for reading", kind="login")
    secret = f":{quote(login.password, safe='')}" if password else ""
    place = f"{login.host}:{login.port}/{quote(login.database, safe='')}"
    return ReadLoginView(
        host=login.host,
        port=login.port,
        database=login.database,
        user=login.user,
        password=login.password if password else None,
        dsn=f"postgresql://{quote(login.user, safe='')}{secret}@{place}",
        jdbc_url=f"jdbc:postgresql://{place}",
    )
