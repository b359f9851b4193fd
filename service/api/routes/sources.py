"""`/v1/sources` and `/v1/secrets`: external databases that tables follow. No answer holds a password or a secret."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, Strict, TypeAdapter
from starlette.convertors import StringConvertor, register_url_convertor

from service.api.access import needs
from service.api.calling import Calling, Here
from service.api.json_body import ParsedRoute
from service.domain.connectors import CONNECTOR, IN_PLACE
from service.domain.errors import Invalid
from service.domain.roles import Role
from service.domain.source import PASSWORD
from service.operations.jobs import lifecycle
from service.operations.sources import checks, lake_sources, registry, secrets, shown
from service.operations.sources.checks import CheckItem
from service.operations.sources.shown import CleanupView, SourceView
from service.protocol.first_fault import first_fault
from service.protocol.ids import BIGINT_MAX
from service.protocol.relation import RelationKind
from service.sql.statements.lake import CreateLakeSource
from service.sql.statements.sources import CreateSource, lake_source_statement, source_statement
from service.sql.text.cursor import NAME_BYTES_MAX


class _SourceConvertor(StringConvertor):
    """The name of a source in a path. The path `/v1/sources/check` is not a source, whatever the method."""

    regex = "(?!check$)[^/]+"


register_url_convertor("source", _SourceConvertor())
router = APIRouter(prefix="/v1", tags=["sources"], route_class=ParsedRoute)

_TABLES_MAX = 200
Name = Annotated[str, Path(min_length=1, max_length=200)]


def _short(name: str) -> str:
    """Return a name that a statement can spell. Raises ValueError."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"a name has at most {NAME_BYTES_MAX} bytes")
    return name


NewName = Annotated[str, Field(min_length=1, max_length=NAME_BYTES_MAX), AfterValidator(_short)]
CleanupPath = Annotated[int, Path(ge=0, le=BIGINT_MAX)]
OptionName = Annotated[str, Field(max_length=200)]
OptionValue = (
    Annotated[int, Strict()] | Annotated[bool, Strict()] | Annotated[str, Field(min_length=1, max_length=1000)]
)
_Options = dict[OptionName, OptionValue]


class Reached(BaseModel):
    """How to reach a database: the options of CREATE SOURCE, and the password or the name of the secret that has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    options: Annotated[_Options, first_fault(TypeAdapter(_Options))] = Field(
        max_length=50, examples=[{"connector": "postgres-cdc", "hostname": "db", "database.name": "shop"}]
    )
    password: SecretStr | None = None
    secret: NewName | None = None


class SourceBody(Reached):
    """A source to create. One that is a place in a lake takes `secrets`: options, each with the name of its secret."""

    name: NewName
    if_not_exists: bool = False
    secrets: dict[OptionName, NewName] = Field(default={}, max_length=50)


class CheckBody(Reached):
    """A source to check, and the tables to follow: `table` or `schema.table`."""

    tables: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(default=[], max_length=_TABLES_MAX)


class SecretBody(BaseModel):
    """A secret to store."""

    model_config = ConfigDict(extra="forbid")

    name: NewName
    value: SecretStr = Field(min_length=1, max_length=10_000)


class SecretValue(BaseModel):
    """The new value of a secret."""

    model_config = ConfigDict(extra="forbid")

    value: SecretStr = Field(min_length=1, max_length=10_000)


class Secret(BaseModel):
    """A secret. Its value is never shown."""

    name: str


@dataclass(frozen=True, slots=True)
class SourceList:
    """Every source, oldest first. `next` is null: the list is whole."""

    items: Sequence[SourceView]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class CheckList:
    """The requirements for following a database, item by item. `next` is null: the list is whole."""

    items: Sequence[CheckItem]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class CleanupList:
    """The objects that are still to be removed from external databases. `next` is null: the list is whole."""

    items: Sequence[CleanupView]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class SecretList:
    """Every secret by name. `next` is null: the list is whole."""

    items: Sequence[Secret]
    next: str | None = None


class Done(BaseModel):
    """The notices of a completed call."""

    notices: list[str] = []


@router.get("/sources", dependencies=needs(Role.VIEWER))
async def list_sources(world: Here) -> SourceList:
    """List the sources, oldest first, with the state of each."""
    return SourceList(await shown.sources(world))


@router.post("/sources", response_model=SourceView, dependencies=needs(Role.ADMIN))
async def create_source(body: SourceBody, call: Calling) -> Mapping[str, Any]:
    """Create a source: an external database, with its publication and its replication slot there, or a place in a
    lake.
    """
    statement = _in_lake(body) or _statement(body.name, body, if_not_exists=body.if_not_exists)

    async def act() -> SourceView:
        if isinstance(statement, CreateLakeSource):
            await lake_sources.create(call.world, statement, asked_by=call.asked_by.saying(None, body.name))
        else:
            await registry.create(call.world, statement, asked_by=call.asked_by.saying(statement.text, body.name))
        return await shown.source(call.world, body.name)

    return await call.once(SourceView, act)


@router.post("/sources/check", dependencies=needs(Role.ADMIN))
async def check_source(body: CheckBody, world: Here) -> CheckList:
    """Check, item by item, whether a database can be followed, and what decoding will cost it. Creates nothing."""
    statement = _statement("checked", body, if_not_exists=False)
    password = await registry.password_of(world, statement)
    return CheckList(await checks.check(world, statement.options, password, body.tables))


@router.get("/sources/{name:source}", dependencies=needs(Role.VIEWER))
async def show_source(world: Here, name: Name) -> SourceView:
    """Show a source and its state."""
    return await shown.source(world, name)


@router.delete("/sources/{name:source}", response_model=Done, dependencies=needs(Role.ADMIN))
async def drop_source(call: Calling, name: Name, *, cascade: Annotated[bool, Query()] = False) -> Mapping[str, Any]:
    """Drop a source. With `cascade`, also drop the tables that follow it and the views that read them."""

    async def act() -> Done:
        kind = RelationKind.SOURCE
        concerned = await lifecycle.drop(call.world, name, kind, cascade=cascade, asked_by=call.asked_by)
        return Done(notices=list(await registry.left_behind(call.world, concerned)))

    return await call.once(Done, act)


@router.get("/source-cleanups", dependencies=needs(Role.VIEWER))
async def list_source_cleanups(world: Here) -> CleanupList:
    """List the objects that are still to be removed from external databases, and why they remain."""
    return CleanupList(await shown.cleanups(world))


@router.delete("/source-cleanups/{cleanup}", response_model=Done, dependencies=needs(Role.ADMIN))
async def forget_source_cleanup(call: Calling, cleanup: CleanupPath) -> Mapping[str, Any]:
    """Forget an object that was to be removed, because its server will never come back."""

    async def act() -> Done:
        await shown.give_up(call.world, cleanup, asked_by=call.asked_by)
        return Done()

    return await call.once(Done, act)


@router.get("/secrets", dependencies=needs(Role.ADMIN))
async def list_secrets(world: Here) -> SecretList:
    """List the secrets by name."""
    return SecretList([Secret(name=name) for name in await secrets.names(world)])


@router.post("/secrets", response_model=Secret, dependencies=needs(Role.ADMIN, discreet=True))
async def create_secret(body: SecretBody, call: Calling) -> Mapping[str, Any]:
    """Store a secret under a name."""

    async def act() -> Secret:
        asked_by = call.asked_by.saying(None, body.name)
        await secrets.create(call.world, body.name, body.value.get_secret_value(), asked_by=asked_by)
        return Secret(name=body.name)

    return await call.once(Secret, act)


@router.put("/secrets/{name}", response_model=Secret, dependencies=needs(Role.ADMIN, discreet=True))
async def change_secret(body: SecretValue, call: Calling, name: Name) -> Mapping[str, Any]:
    """Change the value of a secret. Sources with this secret as password use the new value from their next connection
    on.
    """

    async def act() -> Secret:
        await secrets.change(call.world, name, body.value.get_secret_value(), asked_by=call.asked_by)
        return Secret(name=name)

    return await call.once(Secret, act)


@router.delete("/secrets/{name}", response_model=Done, dependencies=needs(Role.ADMIN, discreet=True))
async def drop_secret(call: Calling, name: Name) -> Mapping[str, Any]:
    """Delete a secret that no source uses as a password."""

    async def act() -> Done:
        await secrets.drop(call.world, name, asked_by=call.asked_by)
        return Done()

    return await call.once(Done, act)


def _in_lake(body: SourceBody) -> CreateLakeSource | None:
    """Return the statement of a place in a lake, or None for another source. Raises Invalid."""
    if body.options.get(CONNECTOR) not in IN_PLACE:
        if body.secrets:
            raise Invalid("secrets are those of a place in a lake", pointer="/secrets")
        return None
    if body.password is not None or body.secret is not None:
        raise Invalid("a place in a lake has no password: give its secrets", pointer="/password")
    try:
        return lake_source_statement(body.name, _texts(body.options), body.secrets, if_not_exists=body.if_not_exists)
    except Invalid as error:
        raise Invalid(error.message, pointer=f"/options/{error.pointer}") from None


def _texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    return {option: value if isinstance(value, str) else str(value).lower() for option, value in options.items()}


def _statement(name: str, body: Reached, *, if_not_exists: bool) -> CreateSource:
    given = _texts(body.options)
    password = given.pop(PASSWORD, None) if body.password is None else body.password.get_secret_value()
    if (password is None or not password) == (body.secret is None):
        raise Invalid("either a password is given, or the name of the secret that is it", pointer="/password")
    try:
        return source_statement(name, given, password=password, secret=body.secret, if_not_exists=if_not_exists)
    except Invalid as error:
        raise Invalid(error.message, pointer=f"/options/{error.pointer}") from None
