"""The dependencies of a route: the world, the caller, and the idempotency key of the call."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel, TypeAdapter

from service.api.access import AskedBy
from service.domain.roles import Role
from service.operations.idempotency import once
from service.operations.leaving import Gone
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.records import Claim
from service.protocol.ids import BIGINT_MAX, FragmentId

T = TypeVar("T")

JobName = Annotated[
    str, Path(min_length=1, max_length=200, description="The job's id, or the name of the relation that it creates")
]
FragmentPath = Annotated[FragmentId, Path(ge=0, le=BIGINT_MAX)]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many items to return at most")]
Cursor = Annotated[int, Query(ge=0, le=BIGINT_MAX, description="`next` of the page before; 0 starts at the beginning")]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client that may change something."""

    world: World
    request: Request
    asked_by: Asker
    key: str | None

    async def once(self, shape: type[T], act: Callable[[], Awaitable[T]]) -> Mapping[str, Any]:
        """Run `act` at most once for the call's idempotency key, unless this process dies. Return its result as JSON of
        `shape`.
        """
        return await self.claimed(shape, lambda _claim: act())

    async def claimed(
        self, shape: type[T], act: Callable[[Claim | None], Awaitable[T]], *, body: bytes | None = None
    ) -> Mapping[str, Any]:
        """Run `act` with the claim of the call's key; return its result as JSON of `shape`.

        `act` ties the statement that it accepts to the claim.
        """
        adapter = TypeAdapter(shape)

        async def rendered(claim: Claim | None) -> Mapping[str, Any]:
            return adapter.dump_python(await act(claim), mode="json")

        return await self.kept(rendered, body=body)

    async def kept(
        self, act: Callable[[Claim | None], Awaitable[Mapping[str, Any]]], *, body: bytes | None = None
    ) -> Mapping[str, Any]:
        """Run `act`, which returns JSON, with the claim of the call's key.

        The call's fingerprint is its method, its whole path and its body. `body` replaces a body that is streamed. The
        role belongs to it too, so that nobody gets the answer to a call that they may not make.
        """
        url, role = self.request.url, self.asked_by.role
        # An admin's fingerprint names no role, as before there were roles.
        who = "" if role is Role.ADMIN else f"{role} "
        head = f"{who}{self.request.method} {url.path}?{url.query}\n".encode()
        content = await self.request.body() if body is None else body
        return await once(self.world, self.key, head + content, act, caller=self.asked_by.actor)

    async def gone(self) -> None:
        """Return when the client has left. The body was read before."""
        await (await gone_of(self.request))()


def said(body: BaseModel | None) -> str | None:
    """Return a body as the audit trail keeps it. It must hold no secret."""
    return None if body is None else body.model_dump_json(exclude_unset=True)


async def gone_of(request: Request) -> Gone:
    """Return what waits until the client has left. The body has to be read before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return gone


async def world_of(request: Request) -> World:
    """Return the world that bootstrap passed in."""
    return cast("World", request.app.state.world)


async def reserved_of(request: Request) -> World:
    """Return the world whose connections are reserved for workers and loops."""
    return cast("World", request.app.state.reserved or request.app.state.world)


async def call_of(
    request: Request,
    asked_by: AskedBy,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=200,
            pattern=r"^[\x21-\x7e]+$",
            description="Makes the call happen once: a repetition by the same caller gets the first answer",
        ),
    ] = None,
) -> Call:
    """Return the call that a route carries out."""
    return Call(await world_of(request), request, asked_by, idempotency_key)


Here = Annotated[World, Depends(world_of)]
Reserved = Annotated[World, Depends(reserved_of)]
Leaving = Annotated[Gone, Depends(gone_of)]
Calling = Annotated[Call, Depends(call_of)]
