"""`/v1/read-login`: the caller's Postgres login for psql, BI tools and Spark. It only reads public views."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from service.api.access import AskedBy, needs
from service.api.calling import Here
from service.domain.roles import Role
from service.operations import read_logins

router = APIRouter(prefix="/v1", tags=["relations"])


class ReadLoginView(BaseModel):
    """A Postgres login. `password` is null, and missing in `dsn`, unless the call asks for it."""

    host: str = Field(description="As the service reaches the server; from elsewhere it may have another name")
    port: int
    database: str
    user: str
    password: str | None
    dsn: str = Field(examples=["postgresql://tidefill_read_t7@127.0.0.1:5432/tidefill"])
    jdbc_url: str = Field(examples=["jdbc:postgresql://127.0.0.1:5432/tidefill"])


@router.get("/read-login", dependencies=needs(Role.VIEWER))
async def show_read_login(
    world: Here,
    asked_by: AskedBy,
    *,
    password: Annotated[bool, Query(description="Open the login, and show its password as well")] = False,
) -> ReadLoginView:
    """Show how to log in to Postgres to read tables and views. The login is the caller's own, and cannot write. It ends
    with the caller's token. With `password` its password and settings are put back to the initial ones.
    """
    login = await read_logins.login(world, password=password, asked_by=asked_by)
    secret = "" if login.password is None else f":{quote(login.password, safe='')}"
    place = f"{login.host}:{login.port}/{quote(login.database, safe='')}"
    return ReadLoginView(
        host=login.host,
        port=login.port,
        database=login.database,
        user=login.user,
        password=login.password,
        dsn=f"postgresql://{quote(login.user, safe='')}{secret}@{place}",
        jdbc_url=f"jdbc:postgresql://{place}",
    )
