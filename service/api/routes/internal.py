"""`/internal/v1`: the worker API, as `service.protocol.api` describes it. Status 410 makes a worker stop."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import StringConstraints, TypeAdapter, ValidationError

from service.api.access import needs
from service.api.calling import Reserved
from service.domain.errors import Conflict, Invalid
from service.domain.roles import Role
from service.operations.barriers import worker_calls
from service.operations.sources import registry, secrets
from service.protocol.api import Left, Registered, Registration, SecretValue
from service.protocol.ids import BIGINT_MAX, DATABASE_GRAPH, Epoch, GraphId, RequestId, SourceId, WorkerId
from service.protocol.report import ANSWER
from service.protocol.request import RESPONSE

router = APIRouter(prefix="/internal/v1", include_in_schema=False)

T = TypeVar("T")
_NO_CONTENT = 204
_FAULTS_MAX = 20
_REGISTRATION: TypeAdapter[Registration] = TypeAdapter(Registration)
Graph = Annotated[int, Query(ge=0, le=BIGINT_MAX)]
SourcePath = Annotated[SourceId, Path(ge=0, le=BIGINT_MAX)]
Taken = Annotated[Sequence[Annotated[str, StringConstraints(pattern=r"^\d{1,18}:\d{1,19}$")]], Query()]
"""The last barrier that a worker has taken of each graph, as `<graph>:<epoch>`."""


@router.post("/workers", dependencies=needs(Role.WORKER))
async def register(world: Reserved, request: Request) -> Registered:
    """Register a worker whose session is warm."""
    return await worker_calls.register(world, await _parsed(request, _REGISTRATION))


@router.post("/workers/{worker}/leaving", dependencies=needs(Role.WORKER))
async def leave(world: Reserved, worker: WorkerId) -> Left:
    """Move a worker's graphs to another one, and return after the wait or once they have moved."""
    return await worker_calls.leave(world, worker)


@router.get("/workers/{worker}/barrier", dependencies=needs(Role.WORKER))
async def next_barrier(world: Reserved, worker: WorkerId, taken: Taken = ()) -> Response:
    """Return a barrier that the worker has to answer and has not taken yet, or which graphs of those that it has taken
    are gone; 204 if there is none within the wait.
    """
    known = {GraphId(int(graph)): Epoch(int(epoch)) for graph, epoch in (one.split(":") for one in taken)}
    if any(epoch > BIGINT_MAX for epoch in known.values()):
        raise Invalid("taken: no epoch is so large", pointer="taken")
    barrier = await worker_calls.next_barrier(world, worker, known)
    return Response(status_code=_NO_CONTENT) if barrier is None else _json(barrier.model_dump_json())


@router.post("/workers/{worker}/answers", status_code=_NO_CONTENT, dependencies=needs(Role.WORKER))
async def answer(world: Reserved, worker: WorkerId, request: Request) -> None:
    """Store the answer to a barrier."""
    given = await _parsed(request, ANSWER)
    if given.worker != worker:
        raise Conflict("the answer is another worker's")
    await worker_calls.answer(world, given)


@router.get("/workers/{worker}/request", dependencies=needs(Role.WORKER))
async def next_request(world: Reserved, worker: WorkerId, graph: Graph = DATABASE_GRAPH) -> Response:
    """Return a request that no worker has taken; 204 if there is none within the wait."""
    question = await worker_calls.next_request(world, worker, GraphId(graph))
    return Response(status_code=_NO_CONTENT) if question is None else _json(question.model_dump_json())


@router.get("/requests/{request_id}", dependencies=needs(Role.WORKER))
async def wanted(world: Reserved, request_id: Annotated[int, Path(ge=1, le=BIGINT_MAX)]) -> bool:
    """Return whether somebody waits for the answer to a request."""
    return await worker_calls.wanted(world, RequestId(request_id))


@router.post("/workers/{worker}/responses", status_code=_NO_CONTENT, dependencies=needs(Role.WORKER))
async def respond(world: Reserved, worker: WorkerId, request: Request) -> None:
    """Store the response to a request."""
    await worker_calls.respond(world, worker, await _parsed(request, RESPONSE))


@router.get("/sources/{source}", dependencies=needs(Role.WORKER))
async def source(world: Reserved, source: SourcePath) -> Response:
    """Return how a source is reached."""
    found = await registry.connection(world, source)
    return _json(found.model_dump_json())


@router.get("/secrets", dependencies=needs(Role.WORKER))
async def secret(world: Reserved, name: str) -> Response:
    """Return the value of a secret that an option of a sink names."""
    return _json(SecretValue(value=await secrets.value(world, name)).model_dump_json())


async def _parsed(request: Request, adapter: TypeAdapter[T]) -> T:
    """Return the body as a value. It is parsed in one step, because an answer can hold every vnode of every scan."""
    try:
        return adapter.validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[:_FAULTS_MAX]
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in first]
        raise RequestValidationError(faults) from None


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")
