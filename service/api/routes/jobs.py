"""`/v1/jobs` and `/v1/fragments`: show jobs and their scans, and control them."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.api.access import needs
from service.api.calling import Call, Calling, Cursor, FragmentPath, Here, JobName, Leaving, Limit, said
from service.api.json_body import ParsedRoute
from service.api.routes.mutations import Acknowledged, Wait, acknowledged
from service.domain.errors import Conflict, Invalid
from service.domain.job import CREATING, JobState
from service.domain.parallelism import ACTORS_MAX, DEFAULT, Parallelism, parse_parallelism
from service.domain.roles import Role
from service.operations.commands import limits, mutations
from service.operations.jobs import lifecycle, rescaling
from service.operations.status import listing
from service.operations.status.models import FragmentView, JobDetail, JobPage, JobView, LimitPage, VnodePage
from service.operations.verify import worker_rpc
from service.protocol.ids import BIGINT_MAX, CommandId, JobId
from service.protocol.mutation import RateLimit, StartFragmentBackfill
from service.protocol.request import Verified
from service.protocol.stage import Engine

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=ParsedRoute)

WAIT_MAX_SECONDS = 7200
"""RisingWave's limit of WAIT: two hours."""


ActorCount = Annotated[int, Field(ge=1, le=ACTORS_MAX)]
ParallelismText = Annotated[
    str, Field(pattern=r"^(default|adaptive|bounded\([1-9][0-9]{0,4}\)|ratio\((0\.[0-9]{0,8}[1-9]|1)\))$")
]


class Limited(BaseModel):
    """A limit in rows per second and actor: null is unlimited, 0 pauses, `auto` adapts to the load."""

    model_config = ConfigDict(extra="forbid", strict=True)

    backfill_rate_limit: RateLimit | Literal["auto"] | None


class Altered(BaseModel):
    """The changes of a job; a member that is left out keeps its value.

    A parallelism is a number of actors per scan, `adaptive` (an actor for each slot of the worker), `bounded(n)`,
    `ratio(r)`, or null for the default. The default is `adaptive`; for the backfill it is the parallelism that applies
    afterwards. A limit is in rows per second and actor: null is unlimited, 0 pauses, `auto` adapts to the load.
    """

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"minProperties": 1})

    backfill_rate_limit: RateLimit | Literal["auto"] | None = None
    parallelism: ActorCount | ParallelismText | None = None
    backfill_parallelism: ActorCount | ParallelismText | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("nothing is to be changed")
        return self

    def parallelisms(self) -> dict[str, Parallelism | None]:
        """Return the parallelisms that were given. Raises Invalid."""
        given = self.model_fields_set
        changes: dict[str, Parallelism | None] = {}
        if "parallelism" in given:
            changes["parallelism"] = _parallelism("parallelism", self.parallelism) or DEFAULT
        if "backfill_parallelism" in given:
            changes["backfill_parallelism"] = _parallelism("backfill_parallelism", self.backfill_parallelism)
        return changes


class Resumed(BaseModel):
    """The limit with which the job resumes; without one, the limit that it had before its pause."""

    model_config = ConfigDict(extra="forbid", strict=True)

    backfill_rate_limit: RateLimit | Literal["auto"] | None = None


class Cancelled(BaseModel):
    """The job that was cancelled. All its state has been removed."""

    cancelled: JobId
    state: Literal["Cancelled"] = "Cancelled"


@router.get("/jobs", dependencies=needs(Role.VIEWER))
async def list_jobs(
    world: Here,
    state: Annotated[list[JobState] | None, Query(description="Only jobs in these states")] = None,
    after: Cursor = 0,
    limit: Limit = 100,
    *,
    dropped: Annotated[bool, Query(description="Also jobs whose relation was dropped")] = False,
) -> JobPage:
    """List jobs, oldest first, finished ones included. Dropped jobs are listed only with `dropped` or `state`."""
    shown = state or (None if dropped else [one for one in JobState if one is not JobState.DROPPED])
    return await listing.jobs(world, shown, after=after, limit=limit)


@router.get("/jobs/{job}", dependencies=needs(Role.VIEWER))
async def show_job(world: Here, job: JobName) -> JobDetail:
    """Show a job with its fragments, their actors and their progress."""
    return await listing.job(world, await listing.job_called(world, job))


@router.get("/jobs/{job}/limit-history", dependencies=needs(Role.VIEWER))
async def list_limit_changes(
    world: Here,
    job: JobName,
    limit: Limit = 100,
    before: Annotated[int | None, Query(ge=0, le=BIGINT_MAX, description="`next` of the page before")] = None,
) -> LimitPage:
    """List how the adaptive limits of the job's scans changed, newest first, with the reason of each change."""
    return await listing.limit_history(world, await listing.job_called(world, job), limit=limit, before=before)


@router.patch("/jobs/{job}", response_model=Acknowledged, dependencies=needs(Role.OPERATOR))
async def alter_job(job: JobName, body: Altered, call: Calling, wait: Wait = "applied") -> Mapping[str, Any]:
    """Set the parallelism of the job, or the rate limit of all its scans. The acknowledgement is that of the last
    change.
    """

    async def queue() -> CommandId:
        changes, command, asked_by = body.parallelisms(), None, call.asked_by.saying(said(body))
        found = await listing.job_called(call.world, job)
        if changes:
            command = await rescaling.alter(call.world, found, changes, asked_by=asked_by)
        if "backfill_rate_limit" in body.model_fields_set:
            limit = body.backfill_rate_limit
            command = await limits.throttle_job(call.world, found, limit, asked_by=asked_by)
        assert command is not None, "an empty body is refused"
        return command

    limited = body.backfill_rate_limit is not None
    return await acknowledged(call, queue, wait, _without_effect(call, job) if limited else None)


@router.post("/jobs/{job}/pause", response_model=Acknowledged, dependencies=needs(Role.OPERATOR))
async def pause_job(job: JobName, call: Calling, wait: Wait = "applied") -> Mapping[str, Any]:
    """Pause the job's backfill by a limit of 0 for every scan. Live changes continue. `POST /v1/mutations` pauses all
    jobs.
    """

    async def queue() -> CommandId:
        found = await listing.job_called(call.world, job)
        return await limits.pause_job(call.world, found, asked_by=call.asked_by)

    return await acknowledged(call, queue, wait, _without_effect(call, job))


@router.post("/jobs/{job}/resume", response_model=Acknowledged, dependencies=needs(Role.OPERATOR))
async def resume_job(
    job: JobName, call: Calling, body: Resumed | None = None, wait: Wait = "applied"
) -> Mapping[str, Any]:
    """Resume the job's backfill with the given limit, or else with the limit that it had before its pause. A job that
    was not paused keeps its limit, unless that is 0.
    """

    async def queue() -> CommandId:
        limit = None if body is None else body.backfill_rate_limit
        found = await listing.job_called(call.world, job)
        if limit is None:
            return await limits.resume_job(call.world, found, asked_by=call.asked_by)
        return await limits.throttle_job(call.world, found, limit, asked_by=call.asked_by.saying(said(body)))

    return await acknowledged(call, queue, wait)


@router.post("/jobs/{job}/start-backfill", response_model=Acknowledged, dependencies=needs(Role.OPERATOR))
async def start_job_backfill(job: JobName, call: Calling, wait: Wait = "applied") -> Mapping[str, Any]:
    """Start every scan of the job now, regardless of its backfill order."""

    async def queue() -> CommandId:
        found = await listing.job_called(call.world, job)
        return await mutations.start_job(call.world, found, asked_by=call.asked_by)

    return await acknowledged(call, queue, wait)


@router.post("/jobs/{job}/cancel", response_model=Cancelled, dependencies=needs(Role.OPERATOR))
async def cancel_job(job: JobName, call: Calling) -> Mapping[str, Any]:
    """Cancel a job that is being created, and wait until all its state is removed."""

    async def act() -> Cancelled:
        found = (await listing.job(call.world, await listing.job_called(call.world, job))).job
        if found.state not in CREATING or not await lifecycle.cancel(call.world, [found.id], asked_by=call.asked_by):
            raise Conflict(f"job {found.id} is {found.state} and cannot be cancelled")
        return Cancelled(cancelled=found.id)

    return await call.once(Cancelled, act)


@router.post("/jobs/{job}/wait", dependencies=needs(Role.VIEWER))
async def wait_for_job(
    world: Here,
    job: JobName,
    gone: Leaving,
    timeout_seconds: Annotated[int, Query(ge=1, le=WAIT_MAX_SECONDS)] = WAIT_MAX_SECONDS,
) -> JobView:
    """Wait until the job is created and readable; 409 when it ended otherwise or its view cannot be made, 503 when the
    time is up.
    """
    limit = timedelta(seconds=timeout_seconds)
    return await listing.settled(world, await listing.job_called(world, job), limit=limit, gone=gone)


@router.post("/jobs/{job}/verify", response_model=Verified, dependencies=needs(Role.OPERATOR))
async def verify_job(job: JobName, call: Calling, engine: Engine | None = None) -> Mapping[str, Any]:
    """Compare the view with its query over its upstreams at one committed epoch. With `engine=store`, the default for
    views with joins or aggregates, Postgres computes the query at the published epoch, and whole rows are compared in
    Postgres's text form.
    """

    async def act() -> Verified:
        found = await listing.job_called(call.world, job)
        return await worker_rpc.verify(call.world, found, engine, asked_by=call.asked_by, gone=call.gone)

    return await call.once(Verified, act)


@router.get("/fragments/{fragment}", dependencies=needs(Role.VIEWER))
async def show_fragment(world: Here, fragment: FragmentPath) -> FragmentView:
    """Show a fragment with its actors and their progress."""
    return await listing.fragment(world, fragment)


@router.get("/fragments/{fragment}/vnodes", dependencies=needs(Role.VIEWER))
async def list_fragment_vnodes(world: Here, fragment: FragmentPath, after: Cursor = 0, limit: Limit = 256) -> VnodePage:
    """Show the progress of each vnode of a scan."""
    return await listing.vnodes(world, fragment, after=after, limit=limit)


@router.patch("/fragments/{fragment}", response_model=Acknowledged, dependencies=needs(Role.OPERATOR))
async def throttle_fragment(
    fragment: FragmentPath, body: Limited, call: Calling, wait: Wait = "applied"
) -> Mapping[str, Any]:
    """Set the rate limit of one scan."""
    limit = body.backfill_rate_limit
    asked_by = call.asked_by.saying(said(body))
    queue = partial(limits.throttle_fragment, call.world, fragment, limit, asked_by=asked_by)
    return await acknowledged(call, queue, wait)


@router.post("/fragments/{fragment}/start-backfill", response_model=Acknowledged, dependencies=needs(Role.OPERATOR))
async def start_fragment_backfill(fragment: FragmentPath, call: Calling, wait: Wait = "applied") -> Mapping[str, Any]:
    """Start one scan now, regardless of its job's backfill order."""
    mutation = StartFragmentBackfill(fragments=(fragment,))
    return await acknowledged(call, partial(mutations.inject, call.world, mutation, asked_by=call.asked_by), wait)


def _without_effect(call: Call, job: str) -> Callable[[], Awaitable[str | None]]:
    async def notice() -> str | None:
        return await limits.without_effect(call.world, await listing.job_called(call.world, job))

    return notice


def _parallelism(name: str, given: int | str | None) -> Parallelism | None:
    if given is None or given == "default":
        return None
    try:
        return parse_parallelism(str(given))
    except Invalid as error:
        raise Invalid(str(error), pointer=f"/{name}") from None
